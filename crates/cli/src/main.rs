//! The command `octavo`: reads the command line, runs one command, and says in words what went wrong.

mod answer;
mod bench;
mod chat;
mod engine_args;
mod generate;
mod gpu_test;
mod interrupt;
mod json;
mod log;
mod model_args;
mod output;
mod plan;
mod progress;
mod quality;
mod report;
mod serve;
mod settings;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use octavo::Hub;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// An LLM inference engine built around a paged KV cache.
#[derive(Debug, Parser)]
#[command(name = "octavo", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Command>),
    Chat(Box<chat::Command>),
    Generate(generate::Command),
    Plan(plan::Command),
    Quality(quality::Command),
    Bench(bench::Command),
    #[command(hide = true)]
    GpuTest(gpu_test::Command),
}

/// Commands whose options may come from the environment and a file.
const LAYERED: [&str; 2] = ["serve", "chat"];

/// Commands whose switches may be set to true or false: those that are layered, and one that shares options with them.
const SWITCHED: [&str; 3] = ["serve", "chat", "generate"];

fn main() -> ExitCode {
    let result = command(std::env::args_os().collect()).and_then(|command| {
        // The environment is read here and nowhere else.
        let hub = Hub::from_vars(|name| std::env::var_os(name));
        match command {
            Command::Serve(command) => serve::run(&command, &hub),
            Command::Chat(command) => chat::run(&command, &hub),
            Command::Generate(command) => generate::run(&command, &hub),
            Command::Plan(command) => plan::run(&command, &hub),
            Command::Quality(command) => quality::run(&command, &hub),
            Command::Bench(command) => bench::run(&command),
            Command::GpuTest(command) => gpu_test::run(&command),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::log::say(format_args!("octavo: {}", octavo::said(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// A number below zero is a value, which is taken or refused as such, and no option.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let negative = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    };
    command.mut_args(negative).mut_subcommands(with_negative_values)
}

/// The command line, with what a configuration file adds to it.
fn command(mut argv: Vec<OsString>) -> Result<Command> {
    let plain = settings::with_switches(with_negative_values(Cli::command()), &SWITCHED, &argv);
    let parser = settings::with_environment(plain.clone(), &LAYERED, &argv);
    let matches = parser.clone().try_get_matches_from(&argv).unwrap_or_else(|error| {
        // What is right without the environment is wrong because of it.
        let typed = plain.try_get_matches_from(&argv).is_ok();
        let error = if typed { settings::told(error, settings::variable, "the environment") } else { error };
        error.exit()
    });
    let mut file = None;
    if let Some((name, given)) = matches.subcommand().filter(|(name, _)| LAYERED.contains(name))
        && let Some(path) = given.get_one::<PathBuf>("config")
    {
        let layered = parser.find_subcommand(name).expect("it was given");
        let added = settings::from_file(path, &parser, layered, given)?;
        // Where options may be: not after a `--`.
        let at = argv.iter().skip(1).position(|arg| arg == name).map_or(argv.len(), |at| at + 2);
        argv.splice(at..at, added);
        file = Some(path.display().to_string());
    }
    let matches = parser.try_get_matches_from(argv).unwrap_or_else(|error| match file {
        // Without the file it was right.
        Some(file) => settings::told(error, str::to_owned, &file).exit(),
        None => error.exit(),
    });
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command)
}
