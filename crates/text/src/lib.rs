//! Text in and out of a model: tokenizer, incremental detokenizer, chat template.
//!
//! ```no_run
//! use octavo_text::{ChatInput, ChatTemplate, Message, SpecialTokens, TokenizerConfig, Tokenizer};
//!
//! let dir = "models/demo".as_ref();
//! let config = TokenizerConfig::from_dir(dir)?;
//! let tokenizer = Tokenizer::from_dir(dir, &config)?;
//! let template = ChatTemplate::from_config(&config)?;
//!
//! let messages = [Message::new("user", "What does `Vec::push` do?")];
//! let prompt = template.render(&ChatInput::new(&messages))?;
//! let ids = tokenizer.encode_chat(&prompt)?;
//!
//! // A model would answer; here the prompt itself is read back, token by token.
//! let mut stream = tokenizer.stream(SpecialTokens::Skip);
//! for id in ids {
//!     if let Some(text) = stream.push(id) {
//!         print!("{text}");
//!     }
//! }
//! print!("{}", stream.finish());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod chat;
mod config;
mod stop;
mod stream;
mod tokenizer;
mod vocab;

pub use chat::{ChatInput, ChatTemplate, Content, Message, MessageAt, Part, RenderError, TemplateError};
pub use config::{ConfigError, TokenizerConfig};
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Pushed, StopError, StopStrings, StopText};
pub use stream::TextStream;
pub use tokenizer::{DecodeError, EncodeError, Markup, SpecialTokens, Tokenizer, TokenizerError};
