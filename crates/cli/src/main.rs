//! The command `octavo`: reads the command line, runs one command, and says in words what went wrong.

mod bench;
mod generate;
mod interrupt;
mod model_args;
mod progress;

use clap::{Parser, Subcommand};
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
    Bench(bench::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(command) => generate::run(&command),
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
