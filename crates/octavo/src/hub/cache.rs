//! The hub's cache: `models--org--name/refs/<revision>` holds a commit, `snapshots/<commit>` its files.

use super::name::is_plain;
use super::{Files, HubName};
use octavo_model::weight_files;
use std::path::{Path, PathBuf};

/// The files of a revision, as far as they are there.
pub(super) fn snapshot(cache: &Path, name: &HubName) -> Option<PathBuf> {
    let repo = cache.join(format!("models--{}", name.repo().replace('/', "--")));
    let known = std::fs::read_to_string(repo.join("refs").join(name.revision())).ok();
    let commit = known.as_deref().map_or(name.revision(), str::trim);
    let snapshot = repo.join("snapshots").join(commit);
    (is_plain(commit) && snapshot.is_dir()).then_some(snapshot)
}

/// Whether nothing that is wanted is missing. A file that is still being downloaded is not in the snapshot, or a link
/// to nothing.
pub(super) fn has(snapshot: &Path, files: Files) -> bool {
    let is_there = |name: &str| snapshot.join(name).is_file();
    match files {
        Files::Config => is_there("config.json"),
        Files::All => {
            let weights =
                || weight_files(snapshot).is_ok_and(|paths| paths.iter().all(|path| path.is_file()));
            is_there("config.json") && is_there("tokenizer.json") && weights()
        }
    }
}
