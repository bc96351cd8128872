use anyhow::{Context, Result};
use std::env;
use std::path::{Path, PathBuf};

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
