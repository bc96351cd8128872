//! The command `octavo`: reads the command line, runs one command, and says in words what went wrong.

mod bench;
mod generate;
mod interrupt;
mod model_args;
mod plan;
mod progress;
mod quality;
mod report;

use clap::{Parser, Subcommand};
use octavo::Hub;
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
    Generate(generate::Command),
    Plan(plan::Command),
    Quality(quality::Command),
    Bench(bench::Command),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // The environment is read here and nowhere else.
    let hub = Hub::from_vars(|name| std::env::var_os(name));
    let result = match command {
        Command::Generate(command) => generate::run(&command, &hub),
        Command::Plan(command) => plan::run(&command, &hub),
        Command::Quality(command) => quality::run(&command, &hub),
        Command::Bench(command) => bench::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("octavo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
