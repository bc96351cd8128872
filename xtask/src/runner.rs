//! Runs steps one after the other and says how each went.

use crate::steps::{Action, Cargo, Step};
use crate::workspace::Workspace;
use crate::{kernels, python, requirements, wheel};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::time::{Duration, Instant};

#[derive(Debug, PartialEq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

/// Runs `steps` up to the first failure, then prints one line a step.
pub(crate) fn run(steps: &[Step], workspace: &Workspace) -> Result<()> {
    let mut outcomes = Vec::with_capacity(steps.len());
    let mut result = Ok(());
    for step in steps {
        if result.is_err() {
            outcomes.push(Outcome::NotRun);
            continue;
        }
        println!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        result = run_step(step, workspace).with_context(|| format!("step `{}` failed", step.name));
        let taken = start.elapsed();
        outcomes.push(if result.is_ok() { Outcome::Passed(taken) } else { Outcome::Failed(taken) });
        println!("== {}: {}", step.name, outcomes.last().expect("just pushed"));
    }
    print!("\n{}", summary(steps, &outcomes));
    result
}

fn run_step(step: &Step, workspace: &Workspace) -> Result<()> {
    match &step.action {
        Action::Cargo(commands) => commands.iter().try_for_each(|command| run_cargo(command, workspace)),
        Action::Requirements => {
            requirements::run(workspace).context("to run it alone: cargo xtask requirements")
        }
        Action::Python => {
            // A test of yesterday's binary would tell nothing.
            run_cargo(&python::build(), workspace)?;
            python::run(workspace)
        }
        Action::Wheel => wheel::run(workspace),
        Action::Kernels => kernels::run(workspace),
    }
}

fn run_cargo(cargo: &Cargo, workspace: &Workspace) -> Result<()> {
    if let Some(component) = cargo.component {
        let installed = cargo.version(workspace).status().is_ok_and(|status| status.success());
        ensure!(installed, "{component} is not installed: run `rustup component add {component}`");
    }
    println!("$ {cargo}");
    let status =
        cargo.command(workspace).status().context("cargo could not be started: is it on the PATH?")?;
    if !status.success() {
        bail!("to run it alone, in the project's root: {cargo}");
    }
    Ok(())
}

fn summary(steps: &[Step], outcomes: &[Outcome]) -> String {
    steps.iter().zip(outcomes).map(|(step, outcome)| format!("{:<13} {outcome}\n", step.name)).collect()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(taken) => write!(f, "passed in {:.1} s", taken.as_secs_f64()),
            Self::Failed(taken) => write!(f, "FAILED after {:.1} s", taken.as_secs_f64()),
            Self::NotRun => f.write_str("not run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    /// Steps that call cargo with these arguments, each in the directory of this package.
    fn run_all(commands: &[Cargo]) -> String {
        let package = env!("CARGO_MANIFEST_DIR");
        let workspace = Workspace { root: package.into(), target: package.into() };
        let steps: Vec<Step> = commands
            .iter()
            .map(|command| Step { name: "step", about: "", action: Action::Cargo(vec![command.clone()]) })
            .collect();
        run(&steps, &workspace).map_or_else(|error| format!("{error:#}"), |()| "passed".into())
    }

    #[test]
    fn steps_that_succeed_pass() {
        assert_eq!(run_all(&[Cargo::new("--version"), Cargo::new("--version")]), "passed");
    }

    #[test]
    fn the_first_failure_ends_the_run_and_names_its_command() {
        let error =
            run_all(&[Cargo::new("--version"), Cargo::new("--no-such-option"), Cargo::new("--worse")]);
        assert!(error.starts_with("step `step` failed"), "{error}");
        assert!(error.ends_with("cargo --no-such-option"), "{error}");
    }

    #[test]
    fn a_missing_component_is_named_with_the_command_that_adds_it() {
        let error = run_all(&[Cargo::new("no-such-tool --check").component("rustfmt")]);
        assert!(error.ends_with("run `rustup component add rustfmt`"), "{error}");
    }

    #[test]
    fn the_summary_has_a_line_a_step() {
        let workspace = Workspace { root: "/project".into(), target: "/project/target".into() };
        let mut steps = steps::all(&workspace);
        steps.truncate(3);
        let second = Duration::from_millis(1250);
        let outcomes = [Outcome::Passed(second), Outcome::Failed(second), Outcome::NotRun];
        let text = summary(&steps, &outcomes);
        let expected =
            ["format        passed in 1.2 s", "lint          FAILED after 1.2 s", "test          not run"];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
