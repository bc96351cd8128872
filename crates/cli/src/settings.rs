//! Options from the command line, the environment and a file, in this order.
//!
//! Every long option `--some-name` of `octavo serve` and `octavo chat` is also the variable `OCTAVO_SOME_NAME` and the
//! key `some-name` of a configuration file. A file's value is put on the command line unless something stronger is
//! there already, so that all three are checked by the same code. An option is stronger also than those it excludes:
//! `--num-pages` on the command line wins over `kv-memory` in a file. A switch may be set to true or false, so that what
//! is stronger can also turn it off; one that is off excludes nothing. One file may serve several commands: options that
//! only others have are left alone.

use crate::LAYERED;
use anyhow::{Context, Result, bail};
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use std::any::TypeId;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;

/// Lets every switch of `commands` be set as in `--switch=false`. Those that `argv` turns off exclude nothing.
pub(crate) fn with_switches(command: Command, commands: &[&'static str], argv: &[OsString]) -> Command {
    let command = commands
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, |command| command.mut_args(with_value)));
    let typed = typed(&command, argv);
    commands.iter().fold(command, |command, name| {
        let typed = typed.as_ref().and_then(|typed| typed.subcommand_matches(name));
        let off = typed.map(switched_off).unwrap_or_default();
        command.mut_subcommand(name, |command| excluding_nothing(command, &off))
    })
}

/// A switch takes a value only behind a `=`: what follows a bare one may be a prompt.
fn with_value(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .default_value("false")
        .hide_default_value(true)
        .value_name("true|false")
        .value_parser(parse_switch)
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        _ => Err("choose true or false".into()),
    }
}

fn is_switch(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<bool>()
}

/// What is right in `argv`. What is wrong with the command line is said later; a call for help types no option.
fn typed(command: &Command, argv: &[OsString]) -> Option<ArgMatches> {
    command.clone().ignore_errors(true).try_get_matches_from(argv).ok()
}

/// The switches that were set to false.
fn switched_off(typed: &ArgMatches) -> HashSet<Id> {
    let is_typed = |id: &Id| typed.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let is_off = |id: &Id| matches!(typed.try_get_one::<bool>(id.as_str()), Ok(Some(false)));
    typed.ids().filter(|id| is_typed(id) && is_off(id)).cloned().collect()
}

/// The command, where each of the switches `off` can be had together with everything.
fn excluding_nothing(command: Command, off: &HashSet<Id>) -> Command {
    let rivals = |arg: &Arg| -> Vec<Id> {
        let rivals = command.get_arg_conflicts_with(arg).into_iter().map(Arg::get_id);
        rivals.filter(|rival| !off.contains(*rival) && !off.contains(arg.get_id())).cloned().collect()
    };
    let mut rivals: HashMap<Id, Vec<Id>> =
        command.get_arguments().map(|arg| (arg.get_id().clone(), rivals(arg))).collect();
    command.mut_args(|arg| {
        let left = rivals.remove(arg.get_id()).unwrap_or_default();
        arg.conflicts_with(Resettable::Reset).conflicts_with_all(left)
    })
}

/// Lets the options of `commands` come from the environment, unless `argv` rules them out.
pub(crate) fn with_environment(command: Command, commands: &[&'static str], argv: &[OsString]) -> Command {
    let typed = typed(&command, argv);
    commands.iter().fold(command, |command, name| {
        let typed = typed.as_ref().and_then(|typed| typed.subcommand_matches(name));
        command.mut_subcommand(name, |command| read_environment(command, typed))
    })
}

fn read_environment(command: Command, typed: Option<&ArgMatches>) -> Command {
    let overruled = typed.map(|typed| overruled(&command, typed)).unwrap_or_default();
    let read = |arg: &&Arg| !overruled.contains(arg.get_id()) && is_switched_off(arg);
    let off = command.get_arguments().filter(read).map(|arg| arg.get_id().clone()).collect();
    excluding_nothing(command, &off).mut_args(|arg| {
        let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else {
            return arg;
        };
        if overruled.contains(arg.get_id()) || is_left_empty(long) {
            return arg;
        }
        // The name lives as long as the command does: to the end of the program.
        let name = variable(long).leak();
        arg.env(&*name).hide_env_values(true)
    })
}

/// Whether the variable is there and says nothing, which is as if it were not. An empty key is no way to want none: who
/// sets one wants a lock.
fn is_left_empty(long: &str) -> bool {
    long != "api-key" && std::env::var_os(variable(long)).is_some_and(|value| value.is_empty())
}

/// Whether it is a switch and the environment says no.
fn is_switched_off(arg: &Arg) -> bool {
    let value = arg.get_long().filter(|_| is_switch(arg)).and_then(|long| std::env::var(variable(long)).ok());
    value.is_some_and(|value| parse_switch(&value) == Ok(false))
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
        let named = |arg: &&Arg| arg.get_long() == Some(&long) && long != "config";
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
        match (is_switch(arg), value) {
            (true, toml::Value::Boolean(true)) => added.push(format!("--{long}").into()),
            (true, toml::Value::Boolean(false)) => {}
            (true, _) => bail!("{}: `{key}` is true or false", path.display()),
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
