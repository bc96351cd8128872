//! Python environments below the target folder.

use crate::workspace::{Workspace, as_typed_by_a_person};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The copy of what was installed, in the environment itself: a finished one has it, and it changes with the original.
const INSTALLED: &str = "installed.txt";

/// An environment of its own, and what is installed there.
#[derive(Debug)]
pub(crate) struct Venv<'a> {
    workspace: &'a Workspace,
    dir: PathBuf,
    /// The interpreter it is made with.
    base: PathBuf,
    /// Whether it sees the packages of that interpreter.
    shares: bool,
}

impl<'a> Venv<'a> {
    pub(crate) fn new(workspace: &'a Workspace, name: &str) -> Self {
        Self { workspace, dir: workspace.target.join(name), base: "python3".into(), shares: false }
    }

    /// Over another interpreter, with the packages it has.
    pub(crate) fn over(self, base: PathBuf) -> Self {
        Self { base, shares: true, ..self }
    }

    pub(crate) fn python(&self) -> PathBuf {
        self.dir.join("bin/python")
    }

    /// A program that a package brought.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    /// Exactly what the requirements say; an environment that has it already is left alone.
    pub(crate) fn prepare(&self, requirements: &str) -> Result<()> {
        let wanted = fs::read_to_string(self.workspace.root.join(requirements))
            .with_context(|| format!("cannot read {requirements}"))?;
        let wanted = format!("{wanted}# {}\n", self.base.display());
        if is_installed(&self.dir, &wanted) && succeeds(Command::new(self.python()).arg("--version")) {
            return Ok(());
        }
        self.create()?;
        self.pip(&["-r", requirements])?;
        fs::write(self.dir.join(INSTALLED), wanted).context("cannot write to the Python environment")
    }

    /// An empty one, whatever there was.
    pub(crate) fn create(&self) -> Result<()> {
        ensure_venv(&self.base)?;
        let mut create = Command::new(&self.base);
        create.args(["-m", "venv", "--clear"]);
        if self.shares {
            create.arg("--system-site-packages");
        }
        self.run(create.arg(&self.dir)).context("no Python environment could be made")
    }

    pub(crate) fn pip(&self, args: &[&str]) -> Result<()> {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(args);
        self.run(&mut pip).context(
            "the packages could not be installed; they want Python 3.11 or later and a package index",
        )
    }

    /// Shows a command, runs it in the project's root, and says how to run it again if it fails.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let shown = shown(self.workspace, command);
        println!("$ {shown}");
        let command = as_typed_by_a_person(command);
        let status = command.current_dir(&self.workspace.root).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("could not be started: {shown}"))?;
        ensure!(status.success(), "to run it alone, in the project's root: {shown}");
        Ok(())
    }
}

/// As it is typed in the project's root.
fn shown(workspace: &Workspace, command: &Command) -> String {
    let relative = |text: &std::ffi::OsStr| workspace.relative(Path::new(text)).display().to_string();
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = variables.map(|(name, value)| format!("{}={} ", name.display(), relative(value)));
    let words: Vec<String> =
        [command.get_program()].into_iter().chain(command.get_args()).map(relative).collect();
    variables.collect::<String>() + &words.join(" ")
}

fn is_installed(dir: &Path, wanted: &str) -> bool {
    fs::read_to_string(dir.join(INSTALLED)).is_ok_and(|installed| installed == wanted)
}

/// Debian and Ubuntu keep the module in a package of its own: it is installed if this user may.
fn ensure_venv(python: &Path) -> Result<()> {
    let there = || succeeds(Command::new(python).args(["-c", "import venv, ensurepip"]));
    if there() {
        return Ok(());
    }
    apt_install("python3-venv");
    ensure!(
        there(),
        "{} has no module `venv`: on Debian and Ubuntu `sudo apt-get install python3-venv`",
        python.display()
    );
    Ok(())
}

/// An interpreter that has a module, which a package of Debian's brings: it is installed if this user may.
pub(crate) fn with_module(module: &str, package: &str) -> Result<PathBuf> {
    if find(module).is_none() {
        apt_install(package);
    }
    find(module).with_context(|| {
        format!(
            "the tests need Python's {module}: on Debian and Ubuntu `sudo apt-get install --no-install-recommends {package}`"
        )
    })
}

/// The system's own comes first: packages of the system are its.
fn find(module: &str) -> Option<PathBuf> {
    let code = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    let has = |python: &&str| succeeds(Command::new(python).args(["-c", &code]));
    ["/usr/bin/python3", "python3"].into_iter().find(has).map(PathBuf::from)
}

/// Only root may; whether it helped is for the caller to see.
fn apt_install(package: &str) {
    if !is_root() || !succeeds(Command::new("apt-get").arg("--version")) {
        return;
    }
    for args in [vec!["update", "-q"], vec!["install", "-qy", "--no-install-recommends", package]] {
        println!("$ apt-get {}", args.join(" "));
        let mut apt = Command::new("apt-get");
        let _ = apt.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).status();
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_reused_only_with_the_same_requirements() {
        let dir = std::env::temp_dir().join(format!("octavo-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(!is_installed(&dir, "a==1\n"));
        fs::write(dir.join(INSTALLED), "a==1\n").unwrap();
        assert!(is_installed(&dir, "a==1\n"));
        assert!(!is_installed(&dir, "a==2\n"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_command_reads_as_it_is_typed_in_the_projects_root() {
        let workspace = Workspace { root: "/project".into(), target: "/project/target".into() };
        let mut command = Command::new("/project/target/python-venv/bin/python");
        command.args(["-m", "pytest"]).env("OCTAVO_BIN", "/project/target/release/octavo");
        assert_eq!(
            shown(&workspace, &command),
            "OCTAVO_BIN=target/release/octavo target/python-venv/bin/python -m pytest"
        );
    }

    #[test]
    fn an_interpreter_is_found_by_the_modules_it_has() {
        assert_eq!(find("no_such_module_of_python"), None);
        assert!(find("sys").is_some());
    }
}
