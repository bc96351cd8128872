//! The Python package: the wheel is built, its types are checked, it works in an environment with nothing but NumPy, and
//! its tests pass beside torch.

use crate::venv::{self, Venv};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const PACKAGE: &str = "crates/python";
/// What builds it, and what its tests need.
pub(crate) const TOOLS: &str = "crates/python/requirements.txt";
pub(crate) const REQUIREMENTS: &str = "crates/python/tests/requirements.txt";
/// A program that needs the wheel and NumPy alone.
const FRESH: &str = "crates/python/tests/fresh.py";
/// The CPU build; that of the package index is a hundred times as large.
const TORCH: (&str, &str) = ("torch", "python3-torch");

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let tools = Venv::new(workspace, "wheel-tools");
    tools.prepare(TOOLS)?;
    let wheel = build(workspace, &tools)?;
    let wheel = wheel.to_str().context("a path in UTF-8")?;
    check_types(&tools, wheel)?;
    let fresh = Venv::new(workspace, "wheel-venv");
    fresh.create()?;
    fresh.pip(&[wheel])?;
    fresh.run(Command::new(fresh.python()).arg(FRESH))?;
    let beside_torch = Venv::new(workspace, "torch-venv").over(venv::with_module(TORCH.0, TORCH.1)?);
    beside_torch.prepare(REQUIREMENTS)?;
    beside_torch.pip(&["--force-reinstall", "--no-deps", wheel])?;
    let tests = format!("{PACKAGE}/tests");
    beside_torch.run(Command::new(beside_torch.python()).args(["-m", "pytest", "-q", &tests]))
}

/// What is written in Python is typed, and the types of the native half are what is there.
fn check_types(tools: &Venv<'_>, wheel: &str) -> Result<()> {
    let config = format!("{PACKAGE}/pyproject.toml");
    let sources = format!("{PACKAGE}/python/octavo");
    let mypy = ["-m", "mypy", "--config-file", &config, &sources];
    tools.run(Command::new(tools.python()).args(mypy))?;
    tools.pip(&["--force-reinstall", "--no-deps", wheel])?;
    let stubs =
        ["-m", "mypy.stubtest", "--ignore-disjoint-bases", "--mypy-config-file", &config, "octavo._octavo"];
    tools.run(Command::new(tools.python()).args(stubs))
}

/// The one wheel in a folder that was empty before. It is built in the profile of the binary, whose crates it shares.
fn build(workspace: &Workspace, tools: &Venv<'_>) -> Result<PathBuf> {
    let wheels = workspace.target.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).with_context(|| format!("cannot empty {}", wheels.display()))?;
    }
    let manifest = format!("{PACKAGE}/Cargo.toml");
    let mut maturin = Command::new(tools.program("maturin"));
    maturin.args([
        "build",
        "--release",
        "--auditwheel",
        "skip",
        "--manifest-path",
        &manifest,
        "--interpreter",
    ]);
    maturin.arg(tools.python()).arg("--out").arg(&wheels).env("CARGO_TARGET_DIR", &workspace.target);
    tools.run(&mut maturin)?;
    let built = fs::read_dir(&wheels).with_context(|| format!("{} was not made", wheels.display()))?;
    let built = built.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    ensure!(built.len() == 1, "{} has {} wheels", wheels.display(), built.len());
    Ok(built.into_iter().next().expect("there is one"))
}
