//! Models by their name on the Hugging Face hub: found in its local cache, downloaded into it otherwise.

mod address;
mod blob;
mod cache;
mod client;
mod download;
mod error;
mod located;
mod name;
mod patience;
mod transfer;

pub use error::HubError;
pub use name::{HubName, NameError};

use std::ffi::OsString;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const ENDPOINT: &str = "https://huggingface.co";

/// Which files of a model are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// `config.json` alone: the model's geometry.
    Config,
    /// Configuration, tokenizer, chat template and weights.
    All,
}

/// How far the download of one file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download<'a> {
    pub file: &'a str,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// Where models are kept, and where they come from.
#[derive(Clone, PartialEq, Eq)]
pub struct Hub {
    /// None where nothing says whose cache it is.
    cache: Option<PathBuf>,
    endpoint: String,
    token: Option<String>,
    /// Where a login leaves the token.
    token_file: Option<PathBuf>,
    offline: bool,
    /// The user's folder of caches, whatever program they are of.
    user_caches: Option<PathBuf>,
}

impl Hub {
    /// The hub itself, with its cache in this directory and no token.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            cache: Some(cache),
            endpoint: ENDPOINT.into(),
            token: None,
            token_file: None,
            offline: false,
            user_caches: None,
        }
    }

    /// As the variables say that other programs of the hub read: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and
    /// `HOME` for the cache, `HF_TOKEN`, `HF_ENDPOINT`, and `HF_HUB_OFFLINE`.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let user = || path("HOME").or_else(|| path("USERPROFILE")).map(|home| home.join(".cache"));
        let user_caches = path("XDG_CACHE_HOME").or_else(user);
        let own = || user_caches.as_ref().map(|caches| caches.join("huggingface"));
        let home = path("HF_HOME").or_else(own);
        let is_true = |value: String| matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        Self {
            cache: path("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub"))),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').into(),
            token: text("HF_TOKEN").map(|token| token.trim().into()),
            token_file: home.map(|home| home.join("token")),
            offline: text("HF_HUB_OFFLINE").is_some_and(is_true),
            user_caches,
        }
    }

    pub fn with_endpoint(self, endpoint: &str) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').into(), ..self }
    }

    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Never go online: what is not in the cache is an error.
    pub fn offline(self) -> Self {
        Self { offline: true, ..self }
    }

    /// The folder of which the hub's cache is usually a part, for other things that are worth keeping.
    pub fn user_caches(&self) -> Option<&Path> {
        self.user_caches.as_deref()
    }

    /// The directory of a model in the cache, if all that is wanted of it is there.
    pub fn find(&self, name: &HubName, files: Files) -> Option<PathBuf> {
        let snapshot = cache::snapshot(self.cache.as_deref()?, name)?;
        cache::has(&snapshot, files).then_some(snapshot)
    }

    /// The directory of a model; what is missing is downloaded, as long as `progress` says so. A download that stopped
    /// goes on where it stopped.
    ///
    /// A model that is whole needs no network. One that another program left parts out of, such as a chat template,
    /// is completed if the hub can be reached, and taken as it is otherwise.
    pub fn fetch(
        &self,
        name: &HubName,
        files: Files,
        progress: &mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
    ) -> Result<PathBuf, HubError> {
        let cache = self.cache.as_deref().ok_or_else(|| HubError::NoCache { name: name.clone() })?;
        if let Some(dir) = self.find(name, files) {
            let commit = dir.file_name().and_then(|commit| commit.to_str());
            return match commit {
                Some(commit) if !self.offline && !cache::is_whole(&dir, files) => {
                    let downloader = download::Downloader::new(self, cache, name, progress);
                    Ok(downloader.and_then(|it| it.complete(commit, files)).unwrap_or(dir))
                }
                _ => Ok(dir),
            };
        }
        if self.offline {
            let part = cache::snapshot(cache, name).is_some();
            return Err(HubError::Offline { name: name.clone(), cache: cache.into(), part });
        }
        download::Downloader::new(self, cache, name, progress)?.run(files)
    }

    fn token(&self) -> Option<String> {
        let file = || std::fs::read_to_string(self.token_file.as_ref()?).ok();
        let token = self.token.clone().or_else(file)?;
        Some(token.trim().to_owned()).filter(|token| !token.is_empty())
    }
}

/// Without the token.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache, endpoint, offline, .. } = self;
        f.debug_struct("Hub")
            .field("cache", cache)
            .field("endpoint", endpoint)
            .field("offline", offline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(vars: &[(&str, &str)]) -> Hub {
        Hub::from_vars(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_cache_is_where_other_programs_of_the_hub_have_it() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("USERPROFILE", "/u")], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")], "/f/hub"),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/c"),
        ];
        for (vars, cache) in cases {
            assert_eq!(hub(vars).cache, Some(cache.into()), "{vars:?}");
        }
        assert_eq!(hub(&[("HF_HOME", "")]).cache, None);
    }

    #[test]
    fn token_endpoint_and_offline_follow_their_variables() {
        assert_eq!(hub(&[]).endpoint, ENDPOINT);
        assert_eq!(hub(&[("HF_ENDPOINT", "http://mirror/")]).endpoint, "http://mirror");
        assert_eq!(hub(&[("HF_TOKEN", " hf_x\n")]).token(), Some("hf_x".into()));
        assert_eq!(hub(&[("HF_TOKEN", "")]).token(), None);
        for (value, offline) in [("1", true), ("ON", true), ("0", false), ("", false)] {
            assert_eq!(hub(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value}");
        }
    }

    #[test]
    fn the_token_is_never_printed() {
        assert!(!format!("{:?}", hub(&[("HF_TOKEN", "hf_secret")])).contains("secret"));
    }
}
