//! Makes the models under `tests/fixtures/models` anew, with Hugging Face transformers.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pinned, so that the same values come out.
const PACKAGES: [&str; 4] = ["torch==2.15.0", "transformers==5.22.2", "safetensors==0.8.0", "numpy==2.4.6"];

/// Sets up a Python environment under `target/` (several gigabytes: torch has its CUDA libraries with it) and runs
/// `tools/make_fixtures.py` in it.
pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the project")?;
    let python = environment(&root.join("target/fixtures-venv"))?;
    let script = root.join("tools/make_fixtures.py");
    step(Command::new(python).arg(script).arg(root.join("tests/fixtures/models")))
}

/// The environment's Python; a second run finds everything installed.
fn environment(dir: &Path) -> Result<PathBuf> {
    let python = dir.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    }
    step(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
    Ok(python)
}

fn step(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
