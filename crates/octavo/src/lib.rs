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
mod hub;
mod llm;
mod options;
mod source;

pub use hub::{Download, Files, Hub, HubError, HubName, NameError};
pub use llm::{Llm, LlmError, LoadError};
pub use octavo_backend::WeightFormat;
pub use octavo_engine::{
    Event, FinishReason, Flow, GenerateError, Generator, Output, Request, Sampler, SamplingParams,
};
pub use octavo_kv::{PolicyKind, Snapshot, Stop};
pub use octavo_model::{GenerationConfig, ModelConfig, Progress};
pub use octavo_text::{ChatInput, ChatTemplate, Markup, Message, SpecialTokens, TextStream, Tokenizer};
pub use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, SpecError, Tokens};
pub use options::{KvBackend, KvMemory, Options};
pub use source::Source;
