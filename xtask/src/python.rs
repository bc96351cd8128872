//! The tests in Python: the real binary, driven by the official `openai` client.

use crate::steps::Cargo;
use crate::venv::Venv;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::fs;
use std::process::Command;

/// Where the tests lie, and what they need.
const TESTS: &str = "tests/python";
const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// The binary that the tests start.
pub(crate) fn build() -> Cargo {
    Cargo::new("build --release --package octavo-cli")
}

/// Runs the tests on the binary that [`build`] made.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let binary = workspace.target.join("release").join(format!("octavo{}", std::env::consts::EXE_SUFFIX));
    let binary = fs::canonicalize(&binary).with_context(|| format!("{} was not built", binary.display()))?;
    let venv = Venv::new(workspace, "python-venv");
    venv.prepare(REQUIREMENTS)?;
    let mut tests = Command::new(venv.python());
    venv.run(tests.args(["-m", "pytest", TESTS, "-q"]).env("OCTAVO_BIN", &binary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_missing_binary_is_named() {
        let workspace = Workspace { root: "/nowhere".into(), target: "/nowhere/target".into() };
        let error = format!("{:#}", run(&workspace).unwrap_err());
        assert!(error.starts_with("/nowhere/target/release/octavo"), "{error}");
    }

    #[test]
    fn requirements_are_pinned() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in
            [REQUIREMENTS, crate::wheel::TOOLS, crate::wheel::REQUIREMENTS, crate::kernels::REQUIREMENTS]
        {
            let text = fs::read_to_string(root.join(file)).unwrap();
            let packages = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let loose: Vec<&str> = packages.filter(|line| !line.contains("==")).collect();
            assert!(loose.is_empty(), "{file}: {loose:?}");
        }
    }
}
