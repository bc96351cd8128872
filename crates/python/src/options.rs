//! Options of an engine, from the names Python gives them.

use crate::dtype;
use crate::errors::value;
use octavo::{Batching, Bytes, Hub, KvBackend, KvMemory, Options, PageSize, Pages, Tokens, WeightFormat};
use pyo3::prelude::*;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// The fields of `octavo.llm.EngineOptions`, whose texts say what they are.
#[derive(FromPyObject)]
pub(crate) struct Raw {
    device: String,
    deterministic: bool,
    threads: Option<usize>,
    weights: String,
    kv_backend: String,
    kv_dtype: String,
    page_size: u32,
    kv_window: Option<u32>,
    kv_memory: Option<u64>,
    num_pages: Option<u32>,
    commit_kv: bool,
    cached_memory: Option<u64>,
    zero_freed: bool,
    policy: String,
    prefix_cache: bool,
    max_len: Option<u32>,
    max_batch: u32,
    batching: String,
    prompt_share: f32,
    chunk: Option<(u32, u32)>,
    max_itl: Option<f64>,
    max_waiting: usize,
    aging: f64,
    time_limit: Option<f64>,
}

impl Raw {
    /// Of the built-in model.
    pub(crate) fn options(self, hub: &Hub) -> PyResult<Options> {
        let base = Options::default();
        let at_least_one = |name: &str| value(format!("{name} must be at least 1"));
        let threads = self.threads.map(|n| NonZeroUsize::new(n).ok_or_else(|| at_least_one("threads")));
        if self.kv_window == Some(0) {
            return Err(at_least_one("kv_window"));
        }
        Ok(Options {
            source: base.source,
            device: self.device.parse().map_err(value)?,
            deterministic: self.deterministic,
            kernel_cache: hub.user_caches().map(Path::to_owned),
            threads: threads.transpose()?,
            weights: match self.weights.as_str() {
                "stored" => WeightFormat::AsStored,
                "f32" => WeightFormat::F32,
                "int8" => WeightFormat::Int8,
                other => return Err(unknown("weights", other, "stored, f32 or int8")),
            },
            kv_backend: match self.kv_backend.as_str() {
                "paged" => KvBackend::Paged,
                "contiguous" => KvBackend::Contiguous,
                other => return Err(unknown("kv_backend", other, "paged or contiguous")),
            },
            kv_dtype: dtype::parse(&self.kv_dtype)?,
            page_size: PageSize::new(self.page_size).ok_or_else(|| at_least_one("page_size"))?,
            kv_window: self.kv_window.map(Tokens),
            kv_memory: match (self.kv_memory, self.num_pages) {
                (Some(_), Some(_)) => return Err(value("give kv_memory or num_pages, not both")),
                (Some(bytes), None) => KvMemory::Bytes(Bytes(bytes)),
                (None, Some(pages)) => KvMemory::Pages(Pages(pages)),
                (None, None) => KvMemory::Automatic,
            },
            commit_kv: self.commit_kv,
            cached_memory: self.cached_memory.map(Bytes),
            zero_freed: self.zero_freed,
            policy: self.policy.parse().map_err(value)?,
            prefix_cache: self.prefix_cache,
            max_len: self.max_len.map(Tokens),
            max_batch: self.max_batch,
            batching: match self.batching.as_str() {
                "continuous" => Batching::Continuous,
                "static" => Batching::Static,
                other => return Err(unknown("batching", other, "continuous or static")),
            },
            prompt_share: self.prompt_share,
            chunk: self.chunk.map_or(base.chunk, |(least, most)| (Tokens(least), Tokens(most))),
            max_itl: self.max_itl.map(|itl| seconds("max_itl", itl)).transpose()?,
            max_waiting: self.max_waiting,
            aging: seconds("aging", self.aging)?,
            time_limit: self.time_limit.map(|limit| seconds("time_limit", limit)).transpose()?,
        })
    }
}

fn unknown(name: &str, got: &str, choices: &str) -> PyErr {
    value(format!("{name} is `{got}`: choose {choices}"))
}

pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| value(format!("{name} is {seconds}: it must be a number of seconds, 0 or more")))
}
