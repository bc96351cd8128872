//! From the hub into its cache.
//!
//! All files are those of one commit, the weights last; the revision points to it only once they are there.

use super::blob::Blob;
use super::client::{Client, Listing};
use super::located::Located;
use super::name::is_plain;
use super::patience::Patience;
use super::transfer::Transfer;
use super::{Download, Files, Hub, HubError, HubName, cache};
use octavo_model::weight_files;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Beside the weights, as far as a model has them.
const TEXTS: [&str; 6] =
    [CONFIG, cache::OPTIONAL[0], TOKENIZER, cache::OPTIONAL[1], cache::OPTIONAL[2], INDEX];

pub(super) struct Downloader<'a> {
    name: &'a HubName,
    repo: PathBuf,
    client: Client,
    progress: &'a mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
}

impl<'a> Downloader<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        cache: &Path,
        name: &'a HubName,
        progress: &'a mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
    ) -> Result<Self, HubError> {
        let cache = std::path::absolute(cache).map_err(HubError::cache(cache))?;
        Ok(Self { name, repo: cache::repo(&cache, name), client: Client::new(hub, name)?, progress })
    }

    /// The revision's files; it points to them once they are there.
    pub(super) fn run(mut self, files: Files) -> Result<PathBuf, HubError> {
        let listing = self.client.list(self.name.revision())?;
        let snapshot = self.get_all(&listing, files)?;
        cache::point(&self.repo, self.name.revision(), &listing.commit)?;
        Ok(snapshot)
    }

    /// What is missing of a commit that the cache has a part of.
    pub(super) fn complete(mut self, commit: &str, files: Files) -> Result<PathBuf, HubError> {
        let listing = self.client.list(commit)?;
        if listing.commit != commit {
            return Err(self.client.strange(format!("commit {} instead of {commit}", listing.commit)));
        }
        self.get_all(&listing, files)
    }

    fn get_all(&mut self, listing: &Listing, files: Files) -> Result<PathBuf, HubError> {
        let missing = |missing| HubError::NotAModel { name: self.name.clone(), missing };
        let names = &listing.files;
        let has = |name: &str| names.iter().any(|file| file == name);
        if !has(CONFIG) {
            return Err(missing("config.json"));
        }
        let snapshot = cache::snapshot_of(&self.repo, &listing.commit);
        if files == Files::Config {
            self.get(&listing.commit, &snapshot, CONFIG)?;
            return Ok(snapshot);
        }
        if !names.iter().any(|name| is_weights(name)) {
            return Err(missing("safetensors"));
        }
        for text in TEXTS.into_iter().filter(|text| has(text)) {
            self.get(&listing.commit, &snapshot, text)?;
        }
        for file in self.weights(&snapshot, names)? {
            self.get(&listing.commit, &snapshot, &file)?;
        }
        for text in cache::OPTIONAL.into_iter().filter(|text| !has(text)) {
            cache::note_absent(&snapshot, text)?;
        }
        Ok(snapshot)
    }

    /// The single file, else those the index names, else all there are: what loading will read.
    fn weights(&self, snapshot: &Path, names: &[String]) -> Result<Vec<String>, HubError> {
        let has = |name: &str| names.iter().any(|file| file == name);
        if has(SINGLE) {
            return Ok(vec![SINGLE.into()]);
        }
        if !has(INDEX) {
            return Ok(names.iter().filter(|name| is_weights(name)).cloned().collect());
        }
        let paths = weight_files(snapshot).map_err(|error| self.client.strange(error))?;
        let name = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_plain(name));
            name.map(String::from).ok_or_else(|| self.client.strange(format!("weights in {path:?}")))
        };
        paths.iter().map(name).collect()
    }

    /// One file, unless it is there.
    fn get(&mut self, commit: &str, snapshot: &Path, file: &str) -> Result<(), HubError> {
        if snapshot.join(file).is_file() {
            return Ok(());
        }
        let located = self.locate(commit, file)?;
        let blob = Blob::new(&self.repo, &located)?;
        if !blob.is_there()
            && let Some(_lock) = blob.lock(self.name)?
        {
            let (client, progress) = (&self.client, &mut *self.progress);
            let part = Transfer { client, commit, file, blob: &blob, progress }.run()?;
            blob.finish(file, part)?;
        }
        blob.link(snapshot, file)
    }

    /// The hub answered before, so one time without an answer is not the end.
    fn locate(&self, commit: &str, file: &str) -> Result<Located, HubError> {
        let mut patience = Patience::default();
        loop {
            match self.client.locate(commit, file) {
                Err(error) if error.is_passing() => match patience.pause(false) {
                    Some(pause) => std::thread::sleep(pause),
                    None => return Err(error),
                },
                located => return located,
            }
        }
    }
}

fn is_weights(name: &str) -> bool {
    is_plain(name) && name.ends_with(".safetensors")
}
