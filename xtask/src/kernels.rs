//! The CUDA kernels' texts, compiled by NVIDIA's own compiler. It needs no GPU, and a package index has it.

use crate::steps::cargo;
use crate::venv::Venv;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

pub(crate) const REQUIREMENTS: &str = "crates/cuda/requirements.txt";
/// Where its package puts the library, below the environment's packages.
const LIBRARIES: &str = "nvidia/cu13/lib";
/// With it, tests that need the compiler fail without.
const NEEDED: &str = "OCTAVO_NEEDS_NVRTC";

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let venv = Venv::new(workspace, "nvrtc-venv");
    venv.prepare(REQUIREMENTS)?;
    let packages = Command::new(venv.python())
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output()
        .context("the Python environment does not answer")?;
    let libraries = Path::new(String::from_utf8_lossy(&packages.stdout).trim()).join(LIBRARIES);
    ensure!(libraries.is_dir(), "{} is not where the compiler's package puts it", libraries.display());
    let mut tests = cargo(workspace);
    tests.args(["test", "--workspace", "--lib", "--", "gpu::"]);
    venv.run(tests.env("LD_LIBRARY_PATH", libraries).env(NEEDED, "1"))
}
