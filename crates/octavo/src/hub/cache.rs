//! The hub's cache: `models--org--name/refs/<revision>` holds a commit, `snapshots/<commit>` its files, and
//! `.no_exist/<commit>` the names of those that it does not have.

use super::name::is_plain;
use super::{Files, HubError, HubName};
use octavo_model::weight_files;
use std::path::{Path, PathBuf};

/// What a model may have or not: that one is missing shows only in the list of its files.
pub(super) const OPTIONAL: [&str; 3] =
    ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];

pub(super) fn repo(cache: &Path, name: &HubName) -> PathBuf {
    cache.join(format!("models--{}", name.repo().replace('/', "--")))
}

pub(super) fn snapshot_of(repo: &Path, commit: &str) -> PathBuf {
    repo.join("snapshots").join(commit)
}

/// The files of a revision, as far as they are there.
pub(super) fn snapshot(cache: &Path, name: &HubName) -> Option<PathBuf> {
    let repo = repo(cache, name);
    let known = std::fs::read_to_string(repo.join("refs").join(name.revision())).ok();
    let commit = known.as_deref().map_or(name.revision(), str::trim);
    let snapshot = snapshot_of(&repo, commit);
    (is_plain(commit) && snapshot.is_dir()).then_some(snapshot)
}

/// Whether nothing that is needed is missing. A file that is still being downloaded is not in the snapshot, or a link
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

/// Whether what is optional is there as well, or known not to be. Another program that needed less may have left it
/// out.
pub(super) fn is_whole(snapshot: &Path, files: Files) -> bool {
    let absent = absent(snapshot);
    let is_settled = |name: &str| {
        snapshot.join(name).is_file() || absent.as_ref().is_some_and(|absent| absent.join(name).is_file())
    };
    files == Files::Config || OPTIONAL.into_iter().all(is_settled)
}

/// Remembers that a commit does not have a file, as other programs of the hub do.
pub(super) fn note_absent(snapshot: &Path, file: &str) -> Result<(), HubError> {
    let Some(absent) = absent(snapshot) else { return Ok(()) };
    std::fs::create_dir_all(&absent).map_err(HubError::cache(&absent))?;
    let path = absent.join(file);
    std::fs::write(&path, "").map_err(HubError::cache(&path))
}

fn absent(snapshot: &Path) -> Option<PathBuf> {
    Some(snapshot.parent()?.parent()?.join(".no_exist").join(snapshot.file_name()?))
}

/// From now on the revision is this commit.
pub(super) fn point(repo: &Path, revision: &str, commit: &str) -> Result<(), HubError> {
    let path = repo.join("refs").join(revision);
    let folder = path.parent().unwrap_or(repo);
    std::fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
    std::fs::write(&path, commit).map_err(HubError::cache(&path))
}
