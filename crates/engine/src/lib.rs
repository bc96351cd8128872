//! The engine: many requests at once, over any back end.
//!
//! An [`Engine`] takes requests that its [`Intake`] accepted and runs them in steps: the cache
//! ([`KvCache`](octavo_kv::KvCache)) plans one, a [`Batch`] lays it out, a [`Runner`] computes it, a [`Sampler`] makes
//! tokens of its logits. [`EngineHandle`] moves an engine to a thread of its own.
#![forbid(unsafe_code)]

mod admit;
mod answer;
mod batch;
mod cache_pool;
mod config;
mod constraint;
mod engine;
mod event;
mod generate;
mod group;
mod inspect;
mod intake;
mod metrics;
mod pace;
mod plan;
mod post;
mod queue;
mod recover;
mod report;
mod request;
mod runner;
mod sampler;
mod score;
mod task;
mod thread;
mod warm_up;
mod zeroing;

pub use answer::{Answer, NoAnswer};
pub use batch::{Batch, Wanted};
pub use cache_pool::{
    AdvanceError, AllocateError, CachePool, CacheView, Gathered, KvPool, PoolError, UpdateError, ViewError,
};
pub use config::{Batching, ConfigError, EngineConfig};
pub use constraint::{
    CompilerError, Constraint, ConstraintError, Grammar, GrammarCompiler, GrammarError, Progress,
};
pub use engine::{Engine, Events, StepReport};
pub use event::{Event, Failure, FinishReason, Finished, NewToken, Usage};
pub use generate::{Flow, Output, Outputs};
pub use intake::{Intake, Place};
pub use metrics::{Counter, Finishes, Gauge, Histogram, Metrics};
pub use report::{AuditReport, CacheReport, PageState, PinReport, SequenceReport, TenantReport};
pub use request::{Accepted, Request, RequestId, SubmitError};
pub use runner::{Logits, ModelRunner, Runner};
pub use sampler::{
    MAX_LOGPROBS, NothingAllowed, Sampled, Sampler, SamplingError, SamplingParams, TokenLogprobs, TokenMask,
    logprobs_of,
};
pub use score::ScoreError;
pub use thread::{EngineHandle, Sink, Ticket};
