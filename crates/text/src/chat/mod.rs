//! Chat templates: a conversation to the text a model was trained on.

mod builtins;
mod calls;
mod content;
mod environment;
mod form;
mod json;
mod message;
mod methods;
mod print;
mod source;
mod template;

pub use environment::MessageAt;
pub use message::{ChatInput, Content, Message, Part};
pub use template::{ChatTemplate, RenderError, TemplateError};
