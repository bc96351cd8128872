//! The tests in Python: the real binary, driven by the official `openai` client.

use crate::steps::Cargo;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the tests lie, and what they need.
pub(crate) const TESTS: &str = "tests/python";
const REQUIREMENTS: &str = "tests/python/requirements.txt";
/// The copy of what was installed, in the environment itself: a finished one has it, and it changes with the original.
const INSTALLED: &str = "installed.txt";

/// The binary that the tests start.
pub(crate) fn build() -> Cargo {
    Cargo::new("build --release --package octavo-cli")
}

/// The environment's Python.
pub(crate) fn interpreter(workspace: &Workspace) -> PathBuf {
    environment(workspace).join("bin/python")
}

fn environment(workspace: &Workspace) -> PathBuf {
    workspace.target.join("python-venv")
}

/// Runs the tests on the binary that [`build`] made.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let binary = workspace.target.join("release").join(format!("octavo{}", std::env::consts::EXE_SUFFIX));
    let binary = fs::canonicalize(&binary).with_context(|| format!("{} was not built", binary.display()))?;
    let python = prepare(workspace)?;
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", TESTS, "-q"]).env("OCTAVO_BIN", &binary);
    let shown = format!(
        "OCTAVO_BIN={} {} -m pytest {TESTS} -q",
        workspace.relative(&binary).display(),
        workspace.relative(&python).display(),
    );
    println!("$ {shown}");
    let passed = tests.current_dir(&workspace.root).stdin(Stdio::null()).status()?.success();
    ensure!(passed, "to run it alone, in the project's root: {shown}");
    Ok(())
}

/// An environment with exactly what the requirements say; one that has it already is left alone.
fn prepare(workspace: &Workspace) -> Result<PathBuf> {
    let (dir, python) = (environment(workspace), interpreter(workspace));
    let wanted = fs::read_to_string(workspace.root.join(REQUIREMENTS))
        .with_context(|| format!("cannot read {REQUIREMENTS}"))?;
    if is_installed(&dir, &wanted) && succeeds(Command::new(&python).arg("--version")) {
        return Ok(python);
    }
    ensure_venv()?;
    let create = format!("python3 -m venv --clear {}", workspace.relative(&dir).display());
    println!("$ {create}");
    let created = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir).status();
    ensure!(created.is_ok_and(|status| status.success()), "no Python environment could be made: {create}");
    let install = format!("{} -m pip install -r {REQUIREMENTS}", workspace.relative(&python).display());
    println!("$ {install}");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]);
    let installed = pip.current_dir(&workspace.root).stdin(Stdio::null()).status();
    ensure!(
        installed.is_ok_and(|status| status.success()),
        "the packages could not be installed; they want Python 3.11 or later and a package index: {install}"
    );
    fs::write(dir.join(INSTALLED), wanted).context("cannot write to the Python environment")?;
    Ok(python)
}

fn is_installed(dir: &Path, wanted: &str) -> bool {
    fs::read_to_string(dir.join(INSTALLED)).is_ok_and(|installed| installed == wanted)
}

/// Debian and Ubuntu keep the module in a package of its own: it is installed if this user may.
fn ensure_venv() -> Result<()> {
    let there = || succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"]));
    if there() {
        return Ok(());
    }
    if is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        println!("$ apt-get install -y python3-venv");
        let _ = Command::new("apt-get").args(["install", "-y", "python3-venv"]).stdin(Stdio::null()).status();
        if there() {
            return Ok(());
        }
    }
    bail!(
        "Python 3 with its module `venv` is not installed: on Debian and Ubuntu `sudo apt-get install python3-venv`"
    )
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
    fn a_missing_binary_is_named() {
        let workspace = Workspace { root: "/nowhere".into(), target: "/nowhere/target".into() };
        let error = format!("{:#}", run(&workspace).unwrap_err());
        assert!(error.starts_with("/nowhere/target/release/octavo"), "{error}");
    }

    #[test]
    fn requirements_are_pinned() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join(REQUIREMENTS)).unwrap();
        let packages = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let loose: Vec<&str> = packages.filter(|line| !line.contains("==")).collect();
        assert!(loose.is_empty(), "{loose:?}");
    }
}
