//! Options from the command line, the environment and a file, in this order.
//!
//! Every long option `--some-name` of `octavo serve` and `octavo chat` is also the variable `OCTAVO_SOME_NAME` and the
//! key `some-name` of a configuration file. A file's value is put on the command line unless something stronger is
//! there already, so that all three are checked by the same code.

use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::Path;

/// Lets the options of `commands` come from the environment.
pub(crate) fn with_environment(command: Command, commands: &[&'static str]) -> Command {
    commands.iter().fold(command, |command, name| command.mut_subcommand(name, read_environment))
}

fn read_environment(command: Command) -> Command {
    command.mut_args(|arg| {
        let variable = arg.get_long().filter(|long| !["help", "version"].contains(long)).map(variable);
        match variable {
            // The name lives as long as the command does: to the end of the program.
            Some(name) => arg.env(&*name.leak()).hide_env_values(true),
            None => arg,
        }
    })
}

fn variable(long: &str) -> String {
    format!("OCTAVO_{}", long.replace('-', "_").to_ascii_uppercase())
}

/// What a configuration file adds to `argv`, whose subcommand gave `matches`.
pub(crate) fn from_file(path: &Path, command: &Command, matches: &ArgMatches) -> Result<Vec<OsString>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: toml::Table =
        text.parse().with_context(|| format!("{} is not a configuration file", path.display()))?;
    let mut added = Vec::new();
    for (key, value) in &table {
        let long = key.replace('_', "-");
        let named = |arg: &&clap::Arg| arg.get_long() == Some(&long) && long != "config";
        let Some(arg) = command.get_arguments().find(named) else {
            bail!(
                "{}: there is no option `{key}`; `octavo {} --help` lists them",
                path.display(),
                command.get_name()
            );
        };
        let stronger = [ValueSource::CommandLine, ValueSource::EnvVariable];
        if matches.value_source(arg.get_id().as_str()).is_some_and(|source| stronger.contains(&source)) {
            continue;
        }
        match (arg.get_action(), value) {
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
