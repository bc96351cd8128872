//! Chat templates: a conversation to the text a model was trained on.

mod content;
mod environment;
mod json;
mod message;
mod source;
mod template;

pub use environment::MessageAt;
pub use message::{ChatInput, Content, Message, Part};
pub use template::{ChatTemplate, RenderError, TemplateError};
