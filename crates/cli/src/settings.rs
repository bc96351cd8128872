//! Options from the command line, the environment and a file, in this order.
//!
//! Every long option `--some-name` of `octavo serve` and `octavo chat` is also the variable `OCTAVO_SOME_NAME` and the
//! key `some-name` of a configuration file. A file's value is put on the command line unless something stronger is
//! there already, so that all three are checked by the same code. An option is stronger also than those it excludes:
//! `--num-pages` on the command line wins over `kv-memory` in a file. One file may serve several commands: options that
//! only others have are left alone.

use crate::LAYERED;
use anyhow::{Context, Result, bail};
use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command, Id};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

/// Lets the options of `commands` come from the environment, unless `argv` rules them out.
pub(crate) fn with_environment(command: Command, commands: &[&'static str], argv: &[OsString]) -> Command {
    // What is wrong with the command line is said later; a call for help types no option.
    let typed = command.clone().ignore_errors(true).try_get_matches_from(argv).ok();
    commands.iter().fold(command, |command, name| {
        let typed = typed.as_ref().and_then(|typed| typed.subcommand_matches(name));
        command.mut_subcommand(name, |command| read_environment(command, typed))
    })
}

fn read_environment(command: Command, typed: Option<&ArgMatches>) -> Command {
    let overruled = typed.map(|typed| overruled(&command, typed)).unwrap_or_default();
    command.mut_args(|arg| {
        let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
            return arg;
        };
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
        if overruled.contains(arg.get_id()) || is_switch && is_switched_off(long) || is_left_empty(long) {
            return arg;
        }
        // The name lives as long as the command does: to the end of the program.
        let name = variable(long).leak();
        let arg = arg.env(&*name).hide_env_values(true);
        // A switch may be set to 1 or yes as well.
        if is_switch { arg.value_parser(BoolishValueParser::new()) } else { arg }
    })
}

/// Whether the variable is there and says nothing, which is as if it were not. An empty key is no way to want none: who
/// sets one wants a lock.
fn is_left_empty(long: &str) -> bool {
    long != "api-key" && std::env::var_os(variable(long)).is_some_and(|value| value.is_empty())
}

/// Whether the environment says no: as if the switch were not there, but for files, which do not turn it on.
fn is_switched_off(long: &str) -> bool {
    let no = ["0", "n", "no", "f", "false", "off"];
    std::env::var(variable(long)).is_ok_and(|value| no.contains(&value.to_ascii_lowercase().as_str()))
}

/// The options that were given in `matches`, and those that cannot be had together with one of them.
fn overruled(command: &Command, matches: &ArgMatches) -> HashSet<Id> {
    let explicit = [ValueSource::CommandLine, ValueSource::EnvVariable];
    let given: HashSet<&Id> = matches
        .ids()
        .filter(|id| matches.value_source(id.as_str()).is_some_and(|source| explicit.contains(&source)))
        .collect();
    let mut overruled: HashSet<Id> = given.iter().map(|id| (*id).clone()).collect();
    for arg in command.get_arguments() {
        for rival in command.get_arg_conflicts_with(arg) {
            // Either of the two may be the one that names the other.
            for (one, other) in [(arg, rival), (rival, arg)] {
                if given.contains(one.get_id()) {
                    overruled.insert(other.get_id().clone());
                }
            }
        }
    }
    overruled
}

/// The error, with where its option was set: as `name` calls it, in `place`.
pub(crate) fn told(mut error: clap::Error, name: impl Fn(&str) -> String, place: &str) -> clap::Error {
    if let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && let Some(long) = option.strip_prefix("--").and_then(|option| option.split([' ', '=', '[']).next())
    {
        let tip = format!("{} is set in {place}", name(long));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

pub(crate) fn variable(long: &str) -> String {
    format!("OCTAVO_{}", long.replace('-', "_").to_ascii_uppercase())
}

/// What a configuration file adds to `argv`, whose subcommand `command` of `octavo` gave `matches`.
pub(crate) fn from_file(
    path: &Path,
    octavo: &Command,
    command: &Command,
    matches: &ArgMatches,
) -> Result<Vec<OsString>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: toml::Table =
        text.parse().with_context(|| format!("{} is not a configuration file", path.display()))?;
    let overruled = overruled(command, matches);
    let mut added = Vec::new();
    for (key, value) in &table {
        let long = key.replace('_', "-");
        let named = |arg: &&clap::Arg| arg.get_long() == Some(&long) && long != "config";
        let Some(arg) = command.get_arguments().find(named) else {
            if !value.is_table() && layered(octavo).any(|other| other.get_arguments().any(|arg| named(&arg)))
            {
                continue;
            }
            let instead = nearest(command, &long).map_or_else(
                || format!("`octavo {} --help` lists them", command.get_name()),
                |option| format!("do you mean `{option}`?"),
            );
            bail!("{}: there is no option `{key}`; {instead}", path.display());
        };
        if overruled.contains(arg.get_id()) {
            continue;
        }
        match (arg.get_action(), value) {
            (ArgAction::SetTrue, toml::Value::Boolean(true)) if is_switched_off(&long) => {}
            (ArgAction::SetTrue, toml::Value::Boolean(true)) => added.push(format!("--{long}").into()),
            (ArgAction::SetTrue, toml::Value::Boolean(false)) => {}
            (ArgAction::SetTrue, _) => bail!("{}: `{key}` is true or false", path.display()),
            (_, toml::Value::Array(values)) => {
                for value in values {
                    added.push(format!("--{long}={}", plain(path, key, value)?).into());
                }
            }
            (_, value) => added.push(format!("--{long}={}", plain(path, key, value)?).into()),
        }
    }
    Ok(added)
}

/// The commands that read files.
fn layered(octavo: &Command) -> impl Iterator<Item = &Command> {
    octavo.get_subcommands().filter(|command| LAYERED.contains(&command.get_name()))
}

/// The option of `command` that is called nearly so, as it would be told to who typed it.
fn nearest(command: &Command, long: &str) -> Option<String> {
    let typed = [command.get_name(), &format!("--{long}")];
    let error = command.clone().try_get_matches_from(typed).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

/// A value as one would type it.
fn plain(path: &Path, key: &str, value: &toml::Value) -> Result<String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(truth) => Ok(truth.to_string()),
        _ => bail!("{}: `{key}` must be text, a number, true or false", path.display()),
    }
}
