//! An LLM inference engine built around a paged KV cache.
//!
//! ```
//! use octavo::{Llm, Options};
//!
//! let mut llm = Llm::load(&Options::default(), &mut |_| {})?;
//! let prompt = llm.encode_chat(&[octavo::Message::new("user", "What does Vec::push do?")])?;
//! let answer = llm.complete(prompt, 32)?;
//! assert!(answer.contains("element"), "{answer}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod built_in;
mod device;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
mod gpu;
mod hub;
mod llm;
mod load;
mod memory;
mod options;
mod said;
mod source;
mod texts;

pub use device::{Device, DeviceError, DeviceNameError};
pub use hub::{Download, Files, Hub, HubError, HubName, NameError};
pub use llm::{Llm, LlmError, LoadError, Serving};
pub use load::Loading;
pub use octavo_backend::WeightFormat;
pub use octavo_engine::{
    Accepted, Answer, AuditReport, Batching, CacheReport, CompilerError, Constraint, ConstraintError,
    Counter, Engine, EngineConfig, EngineHandle, Event, Events, Failure, FinishReason, Finished, Finishes,
    Flow, Gauge, Grammar, GrammarError, Histogram, Intake, MAX_LOGPROBS, Metrics, NewToken, NoAnswer, Output,
    Outputs, PageState, PinReport, Request, RequestId, Sampler, SamplingError, SamplingParams, ScoreError,
    SequenceReport, Sink, StepReport, SubmitError, TenantReport, Ticket, TokenLogprobs, Usage,
};
pub use octavo_kv::{Counters, PageCounts, PinError, PinId, PolicyKind, Prompt, Scope, Snapshot, Stop};
pub use octavo_model::{GenerationConfig, ModelConfig, Progress};
pub use octavo_text::{
    ChatInput, ChatTemplate, Content, Markup, Message, Part, RenderError, SpecialTokens, StopError,
    StopStrings, StopText, TextStream, Tokenizer,
};
pub use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, SpecError, Tokens};
pub use options::{KvBackend, KvMemory, Options};
pub use said::said;
pub use source::Source;
pub use texts::Texts;
