use super::HubName;
use std::path::{Path, PathBuf};

/// Why a model could not be had from the hub.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("no place to keep {name}: set HF_HOME to a directory")]
    NoCache { name: HubName },
    #[error(
        "{name} is no directory, {there} in {}, and HF_HUB_OFFLINE is set: unset it to download the model",
        cache.display(), there = extent(*.part)
    )]
    Offline { name: HubName, cache: PathBuf, part: bool },
    #[error(
        "{name} is neither a directory nor a model that {endpoint} shows without a token: check the name; if it is private or gated, accept its \
         terms at {endpoint}/{} and set HF_TOKEN", name.repo()
    )]
    Unauthorized { name: HubName, endpoint: String },
    #[error(
        "{endpoint} does not accept the token for {name}: set HF_TOKEN to one that is valid, or log in again; a public model needs none"
    )]
    BadToken { name: HubName, endpoint: String },
    #[error("this token may not read {name}: accept its terms at {endpoint}/{}, or set another HF_TOKEN", name.repo())]
    Forbidden { name: HubName, endpoint: String },
    #[error("{name} is neither a directory nor a model on {endpoint}: check the name and the revision")]
    NotFound { name: HubName, endpoint: String },
    #[error("{name} has no {missing}: choose a model in the format of transformers")]
    NotAModel { name: HubName, missing: &'static str },
    #[error("cannot reach {endpoint} for {name}: check the network, or give the directory of a model")]
    Unreachable {
        name: HubName,
        endpoint: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{endpoint} answered with status {status} for {name}: try again later")]
    Status { name: HubName, endpoint: String, status: u16 },
    #[error("{endpoint} does not answer like a hub: check HF_ENDPOINT")]
    Strange {
        endpoint: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the download of {file} stopped: run the same command again, and it goes on from there")]
    Interrupted {
        file: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the download of {file} was broken off")]
    BrokenOff { file: String },
    #[error("{file} has {got} bytes instead of {want}: it was removed, run the same command again")]
    Size { file: String, got: u64, want: u64 },
    #[error(
        "{file} is not what the hub says it is (its SHA-256 differs): it was removed, run the same command again"
    )]
    Contents { file: String },
    #[error("another program is downloading {name}: wait until it is done, and run the same command again")]
    Locked { name: HubName },
    #[error("cannot write to the cache of the hub: {}", path.display())]
    Cache {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl HubError {
    /// Whether the next request may well be answered.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Status { status: 429 | 500..=599, .. })
    }

    /// What goes wrong with this file or directory.
    pub(super) fn cache(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Cache { path: path.into(), source }
    }
}

fn extent(part: bool) -> &'static str {
    if part { "not all of it is" } else { "it is not" }
}
