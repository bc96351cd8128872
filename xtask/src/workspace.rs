use anyhow::{Context, Result};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the project lies and where its builds go.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// The workspace this program belongs to, whatever the current directory is.
    pub(crate) fn of_this_program() -> Result<Self> {
        let package =
            env::var_os("CARGO_MANIFEST_DIR").map_or(env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let root = package.parent().context("xtask lies in a directory of the project")?.to_owned();
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        Ok(Self { root, target })
    }

    /// `path` as a person in the project's root would write it.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// Takes away what cargo says about this program itself: build scripts that look at it would run anew, and what they
/// belong to with them.
pub(crate) fn as_typed_by_a_person(command: &mut Command) -> &mut Command {
    let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_ours));
    for name in names {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_do_not_hear_of_this_ones_package() {
        assert!(env::var_os("CARGO_PKG_NAME").is_some(), "cargo runs the tests");
        let mut command = Command::new("true");
        let removed: Vec<_> = as_typed_by_a_person(&mut command).get_envs().collect();
        assert!(removed.iter().any(|(name, value)| *name == "CARGO_PKG_NAME" && value.is_none()));
    }
}
