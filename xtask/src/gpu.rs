//! The CUDA back end on a machine with a GPU: everything is in the one binary, which `octavo gpu-test` shows.

use crate::python;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the binary reads, in the project and in a bundle.
const FOLDERS: [&str; 2] = ["tests/fixtures/models", "models/demo"];
/// Runs a bundle; its options are those of `octavo gpu-test`.
const SCRIPT: &str = "#!/bin/sh
# Tests and measures the CUDA back end on this machine; the result goes to docs/benchmarks.md.
cd \"$(dirname \"$0\")\" && ./octavo gpu-test \"$@\" > gpu-test.md
status=$?
cat gpu-test.md
exit $status
";

/// Builds the binary, then runs it here or gathers in `bundle` what another machine needs.
pub(crate) fn run(workspace: &Workspace, bundle: Option<&Path>, options: &[String]) -> Result<()> {
    let build = python::build();
    println!("$ {build}");
    let status = build.command(workspace).status().context("cargo could not be started")?;
    ensure!(status.success(), "the binary could not be built");
    let binary = workspace.target.join("release/octavo");
    match bundle {
        Some(folder) => gather(workspace, &binary, folder),
        None => test(workspace, &binary, options),
    }
}

fn test(workspace: &Workspace, binary: &Path, options: &[String]) -> Result<()> {
    let binary = fs::canonicalize(binary).with_context(|| format!("{} was not built", binary.display()))?;
    let mut command = Command::new(binary);
    command.current_dir(&workspace.root).arg("gpu-test").args(options);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("octavo did not start")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    let report = workspace.target.join("gpu-test.md");
    fs::write(&report, &output.stdout).with_context(|| format!("cannot write {}", report.display()))?;
    println!("written to {}; its figures belong in docs/benchmarks.md", report.display());
    ensure!(output.status.success(), "the GPU did not pass");
    Ok(())
}

fn gather(workspace: &Workspace, binary: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    copy(binary, &folder.join("octavo"))?;
    for part in FOLDERS {
        copy_folder(&workspace.root.join(part), &folder.join(part))?;
    }
    let script = folder.join("run.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    println!("copy {} to a machine with a GPU and run `sh run.sh` there", folder.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path: PathBuf = entry.with_context(|| format!("cannot read {}", from.display()))?.path();
        let name = path.file_name().context("a folder's entry has a name")?;
        match path.is_dir() {
            true => copy_folder(&path, &to.join(name))?,
            false => copy(&path, &to.join(name))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_the_binary_the_models_and_a_script() {
        let scratch = std::env::temp_dir().join(format!("octavo-bundle-{}", std::process::id()));
        let (root, bundle) = (scratch.join("project"), scratch.join("bundle"));
        for part in FOLDERS {
            fs::create_dir_all(root.join(part).join("inner")).unwrap();
            fs::write(root.join(part).join("inner/config.json"), "{}").unwrap();
        }
        fs::write(root.join("octavo"), "binary").unwrap();
        let workspace = Workspace { root: root.clone(), target: root.join("target") };
        gather(&workspace, &root.join("octavo"), &bundle).unwrap();
        assert!(bundle.join("octavo").exists() && bundle.join("models/demo/inner/config.json").exists());
        assert!(fs::read_to_string(bundle.join("run.sh")).unwrap().contains("./octavo gpu-test"));
        fs::remove_dir_all(&scratch).unwrap();
    }
}
