//! What `cargo xtask test` does, in order.

use crate::python;
use crate::workspace::{Workspace, as_typed_by_a_person};
use anyhow::{Result, bail};
use std::fmt;
use std::process::{Command, Stdio};

/// One step: a name, what it shows, and how.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) action: Action,
}

#[derive(Debug)]
pub(crate) enum Action {
    /// Each must succeed.
    Cargo(Vec<Cargo>),
    /// `cargo xtask requirements`, without another process.
    Requirements,
    /// The tests in Python, on the release binary.
    Python,
    /// The Python package, built and tested.
    Wheel,
    /// The CUDA kernels, compiled.
    Kernels,
}

/// One call of cargo, as a person could type it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cargo {
    args: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// The rustup component without which the command does not exist.
    pub(crate) component: Option<&'static str>,
}

pub(crate) fn all(workspace: &Workspace) -> Vec<Step> {
    let step = |name, about, commands| Step { name, about, action: Action::Cargo(commands) };
    vec![
        step(
            "format",
            "all sources are formatted",
            vec![
                Cargo::new("fmt --all --check").component("rustfmt"),
                Cargo::new("fmt --manifest-path fuzz/Cargo.toml --check").component("rustfmt"),
            ],
        ),
        step(
            "lint",
            "no warning from clippy",
            vec![Cargo::new("clippy --workspace --all-targets -- -D warnings").component("clippy")],
        ),
        step("test", "unit, integration and doc tests", vec![Cargo::new("test --workspace")]),
        Step { name: "kernels", about: "NVIDIA's compiler takes every CUDA kernel", action: Action::Kernels },
        step("loom", "every interleaving of the page pool's atomics", vec![loom(workspace)]),
        Step {
            name: "requirements",
            about: "every requirement has a row, every test named there exists",
            action: Action::Requirements,
        },
        step("build", "the release binary", vec![python::build()]),
        step(
            "smoke",
            "the release binary starts, and the built-in model answers",
            vec![
                Cargo::new("run --release --quiet --package octavo-cli -- --version"),
                Cargo::new("run --release --quiet --package octavo-cli -- --help"),
                Cargo::new(
                    "run --release --quiet --package octavo-cli -- generate --chat Hello --max-tokens 16",
                ),
            ],
        ),
        Step {
            name: "python",
            about: "the release binary serves the official openai client",
            action: Action::Python,
        },
        Step {
            name: "wheel",
            about: "the Python package is built, typed, works alone and beside torch",
            action: Action::Wheel,
        },
    ]
}

/// Under `--cfg loom` every crate is another one: built elsewhere, so that the ordinary build stays valid.
fn loom(workspace: &Workspace) -> Cargo {
    let target = workspace.target.join("loom");
    let flags = std::env::var("RUSTFLAGS").map_or_else(|_| String::new(), |flags| flags + " ");
    Cargo::new("test --package octavo-kv --test loom --release --target-dir")
        .arg(workspace.relative(&target).display().to_string())
        .environment("RUSTFLAGS", flags + "--cfg loom")
}

/// The steps named in `only`, in their usual order; all of them if it names none.
pub(crate) fn select(steps: Vec<Step>, only: &[String]) -> Result<Vec<Step>> {
    if let Some(unknown) = only.iter().find(|name| !steps.iter().any(|step| step.name == **name)) {
        let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`: choose from {}", names.join(", "));
    }
    Ok(steps
        .into_iter()
        .filter(|step| only.is_empty() || only.iter().any(|name| name == step.name))
        .collect())
}

impl Cargo {
    pub(crate) fn new(args: &str) -> Self {
        Self { args: args.split_whitespace().map(str::to_owned).collect(), ..Self::default() }
    }
    fn arg(mut self, arg: String) -> Self {
        self.args.push(arg);
        self
    }
    fn environment(mut self, name: &'static str, value: String) -> Self {
        self.environment.push((name, value));
        self
    }
    pub(crate) fn component(mut self, name: &'static str) -> Self {
        self.component = Some(name);
        self
    }

    /// The process, to be run in the project's root. It reads nothing.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = cargo(workspace);
        command.args(&self.args).envs(self.environment.iter().cloned());
        command
    }

    /// The process that only says which version of this subcommand is installed.
    pub(crate) fn version(&self, workspace: &Workspace) -> Command {
        let mut command = cargo(workspace);
        command.args(self.args.first()).arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    as_typed_by_a_person(&mut command).current_dir(&workspace.root).stdin(Stdio::null());
    command
}

/// As it is typed in a shell.
impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str("cargo")?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    if word.contains(char::is_whitespace) { format!("\"{word}\"") } else { word.to_owned() }
}

/// Name and purpose, then the commands.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<13} {}", self.name, self.about)?;
        match &self.action {
            Action::Cargo(commands) => {
                commands.iter().try_for_each(|command| write!(f, "\n{:13} {command}", ""))
            }
            Action::Requirements => write!(f, "\n{:13} cargo xtask requirements", ""),
            Action::Python => write!(f, "\n{:13} cargo xtask test --only python", ""),
            Action::Wheel => write!(f, "\n{:13} cargo xtask test --only wheel", ""),
            Action::Kernels => write!(f, "\n{:13} cargo xtask test --only kernels", ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Step> {
        all(&Workspace { root: "/project".into(), target: "/project/target".into() })
    }

    fn names(steps: &[Step]) -> Vec<&str> {
        steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn no_selection_runs_every_step() {
        let every = steps();
        assert_eq!(names(&select(steps(), &[]).unwrap()), names(&every));
    }

    #[test]
    fn a_selection_keeps_the_usual_order() {
        let chosen = select(steps(), &["test".into(), "format".into()]).unwrap();
        assert_eq!(names(&chosen), ["format", "test"]);
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_names_there_are() {
        let error = select(steps(), &["tests".into()]).unwrap_err().to_string();
        assert!(error.contains("`tests`") && error.contains("format, lint, test, kernels, loom"), "{error}");
    }

    #[test]
    fn a_command_reads_as_it_is_typed() {
        let command = Cargo::new("test --release").environment("RUSTFLAGS", "-g --cfg loom".into());
        assert_eq!(command.to_string(), "RUSTFLAGS=\"-g --cfg loom\" cargo test --release");
    }

    #[test]
    fn loom_builds_in_a_directory_of_its_own() {
        let step = steps().into_iter().find(|step| step.name == "loom").unwrap();
        assert!(step.to_string().contains("--target-dir target/loom"), "{step}");
        assert!(step.to_string().contains("--cfg loom"), "{step}");
    }
}
