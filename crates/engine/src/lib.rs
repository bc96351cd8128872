//! The engine: sequences in, tokens out, over any back end.
//!
//! A step is planned by the cache ([`KvCache`](octavo_kv::KvCache)), laid out as a [`Batch`], computed by a
//! [`Runner`], and its logits become tokens by a [`Sampler`]. [`Generator`] does this for one batch of requests.
#![forbid(unsafe_code)]

mod batch;
mod cache_pool;
mod generate;
mod runner;
mod sampler;
mod score;

pub use batch::{Batch, Wanted};
pub use cache_pool::{
    AdvanceError, AllocateError, CachePool, CacheView, Gathered, KvPool, PoolError, UpdateError, ViewError,
};
pub use generate::{Event, FinishReason, Flow, GenerateError, Generator, Output, Request};
pub use runner::{Logits, ModelRunner, Runner};
pub use sampler::{Sampler, SamplingError, SamplingParams};
