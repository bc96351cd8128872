//! From the hub into its cache.
//!
//! All files are those of one commit, the weights last; the revision points to it only once they are there. A file
//! grows beside its place and is moved there when it is whole.

use super::name::is_plain;
use super::{Download, Files, Hub, HubError, HubName, cache};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use octavo_model::weight_files;
use std::path::{Path, PathBuf};

/// Beside the weights, as far as a model has them.
const TEXTS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    INDEX,
];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

pub(super) struct Downloader<'a> {
    name: &'a HubName,
    endpoint: &'a str,
    cache: Cache,
    api: Api,
    progress: &'a mut dyn FnMut(Download<'_>),
}

/// Hands what hf-hub reports on.
struct Meter<'a> {
    progress: &'a mut dyn FnMut(Download<'_>),
    file: &'a str,
    done: &'a mut u64,
    total: u64,
}

impl Progress for Meter<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (*self.done, self.total) = (0, size as u64);
    }
    fn update(&mut self, size: usize) {
        *self.done += size as u64;
        let Self { file, ref done, total, .. } = *self;
        (self.progress)(Download { file, bytes_done: **done, bytes_total: total });
    }
    fn finish(&mut self) {}
}

impl<'a> Downloader<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        cache: PathBuf,
        name: &'a HubName,
        progress: &'a mut dyn FnMut(Download<'_>),
    ) -> Result<Self, HubError> {
        let cache = Cache::new(std::path::absolute(cache).map_err(HubError::Cache)?);
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(hub.endpoint.clone())
            .with_token(hub.token())
            .with_user_agent("octavo", env!("CARGO_PKG_VERSION"))
            .build();
        let endpoint = hub.endpoint.as_str();
        let api =
            api.map_err(|error| HubError::Strange { endpoint: endpoint.into(), source: error.into() })?;
        Ok(Self { name, endpoint, cache, api, progress })
    }

    pub(super) fn run(mut self, files: Files) -> Result<PathBuf, HubError> {
        let revision = self.repo(self.name.revision());
        let info =
            self.api.repo(revision.clone()).info().map_err(|error| self.explain("its files", error))?;
        let names: Vec<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        if !is_plain(&info.sha) {
            let source = format!("`{}` is no commit", info.sha).into();
            return Err(HubError::Strange { endpoint: self.endpoint.into(), source });
        }
        let missing = |missing| HubError::NotAModel { name: self.name.clone(), missing };
        if !names.contains(&TEXTS[0]) {
            return Err(missing("config.json"));
        }
        let commit = self.api.repo(self.repo(&info.sha));
        let snapshot = self.cache.repo(revision.clone()).pointer_path(&info.sha);
        if files == Files::Config {
            self.get(&commit, &snapshot, TEXTS[0])?;
        } else {
            if !names.iter().any(|name| is_weights(name)) {
                return Err(missing("safetensors"));
            }
            for text in TEXTS.into_iter().filter(|text| names.contains(text)) {
                self.get(&commit, &snapshot, text)?;
            }
            for file in self.weights(&snapshot, &names)? {
                self.get(&commit, &snapshot, &file)?;
            }
        }
        self.cache.repo(revision).create_ref(&info.sha).map_err(HubError::Cache)?;
        Ok(cache::snapshot(self.cache.path(), self.name).unwrap_or(snapshot))
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name.repo().into(), RepoType::Model, revision.into())
    }

    /// The single file, else those the index names, else all there are: what loading will read.
    fn weights(&self, snapshot: &Path, names: &[&str]) -> Result<Vec<String>, HubError> {
        if names.contains(&SINGLE) {
            return Ok(vec![SINGLE.into()]);
        }
        if !names.contains(&INDEX) {
            return Ok(names.iter().filter(|name| is_weights(name)).map(|&name| name.into()).collect());
        }
        let strange = |source| HubError::Strange { endpoint: self.endpoint.into(), source };
        let paths = weight_files(snapshot).map_err(|error| strange(error.into()))?;
        let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(paths.iter().filter_map(name).collect())
    }

    /// One file, unless it is there. A connection that breaks is made again, as long as each brings something.
    fn get(&mut self, commit: &ApiRepo, snapshot: &Path, file: &str) -> Result<(), HubError> {
        if snapshot.join(file).is_file() {
            return Ok(());
        }
        let size = self.api.metadata(&commit.url(file)).map_err(|error| self.explain(file, error))?.size();
        let mut before = None;
        loop {
            let mut done = 0;
            let meter = Meter { progress: self.progress, file, done: &mut done, total: 0 };
            match commit.download_with_progress(file, meter) {
                Ok(path) => return check_size(&path, file, size as u64),
                Err(ApiError::IoError(_)) if before.is_none_or(|before| done > before) => before = Some(done),
                Err(error) => return Err(self.explain(file, error)),
            }
        }
    }

    fn explain(&self, file: &str, error: ApiError) -> HubError {
        let (name, endpoint) = (self.name.clone(), self.endpoint.to_owned());
        match error {
            ApiError::RequestError(error) => match *error {
                ureq::Error::StatusCode(401) => HubError::Unauthorized { name, endpoint },
                ureq::Error::StatusCode(403) => HubError::Forbidden { name, endpoint },
                ureq::Error::StatusCode(404) => HubError::NotFound { name, endpoint },
                ureq::Error::StatusCode(416) => self.leftover(),
                ureq::Error::StatusCode(status) => HubError::Status { name, endpoint, status },
                source @ ureq::Error::Json(_) => HubError::Strange { endpoint, source: source.into() },
                source => HubError::Unreachable { name, endpoint, source: source.into() },
            },
            ApiError::IoError(source) => HubError::Interrupted { file: file.into(), source },
            ApiError::LockAcquisition(_) => HubError::Locked { name },
            ApiError::InvalidResume => self.leftover(),
            other => HubError::Strange { endpoint, source: other.into() },
        }
    }

    fn leftover(&self) -> HubError {
        let blob = self.cache.repo(self.repo("main")).blob_path("any");
        HubError::Leftover {
            name: self.name.clone(),
            blobs: blob.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }
}

fn is_weights(name: &str) -> bool {
    is_plain(name) && name.ends_with(".safetensors")
}

/// A file of another length than the hub says is worth nothing: neither it nor the link to it stays.
fn check_size(path: &Path, file: &str, want: u64) -> Result<(), HubError> {
    let got = std::fs::metadata(path).map_err(HubError::Cache)?.len();
    if got == want {
        return Ok(());
    }
    let blob = std::fs::canonicalize(path).map_err(HubError::Cache)?;
    std::fs::remove_file(path)
        .and_then(|()| if blob.exists() { std::fs::remove_file(blob) } else { Ok(()) })
        .map_err(HubError::Cache)?;
    Err(HubError::Size { file: file.into(), got, want })
}
