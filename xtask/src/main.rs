//! The project's own commands. `cargo xtask --help` lists them.
#![forbid(unsafe_code)]

mod fixtures;
mod gpu;
mod kernels;
mod python;
mod requirements;
mod runner;
mod steps;
mod venv;
mod wheel;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use workspace::Workspace;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up and run all tests, step by step; stops at the first that fails
    Test {
        /// Run this step alone; may be given more than once
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
    },
    /// List the steps of `test`, and the command that runs each alone
    List,
    /// Check that every requirement has its row in docs/requirements.md and every test named there exists
    Requirements,
    /// Make tests/fixtures/models anew with Hugging Face transformers (several GB of Python packages)
    Fixtures,
    /// Build the binary, and test and measure the CUDA back end with it on this machine's GPU
    GpuTest {
        /// Gather in FOLDER what a machine with a GPU and without Rust needs, instead of running here
        #[arg(long, value_name = "FOLDER")]
        bundle: Option<PathBuf>,
        /// Options for `octavo gpu-test`, after `--`
        #[arg(last = true)]
        options: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let workspace = Workspace::of_this_program()?;
    let steps = steps::all(&workspace);
    match command {
        Command::Test { only } => runner::run(&steps::select(steps, &only)?, &workspace),
        Command::List => {
            print!("{}", steps.iter().map(|step| format!("{step}\n")).collect::<String>());
            Ok(())
        }
        Command::Requirements => requirements::run(&workspace),
        Command::Fixtures => fixtures::run(),
        Command::GpuTest { bundle, options } => gpu::run(&workspace, bundle.as_deref(), &options),
    }
}
