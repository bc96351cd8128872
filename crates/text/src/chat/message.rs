//! A conversation as a client sends it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn. Fields beside role and content (`tool_calls`, `tool_call_id`, `name`, `reasoning_content`) reach the
/// template as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    /// Missing or null where the turn has none, such as a call of a tool.
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "content is a text or a list of parts of the type `text`")]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A piece of content. Models here read text alone, so an image is an error where the request is parsed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(content.into())), rest: Map::new() }
    }
}

/// What a template is rendered with.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    pub messages: &'a [Message],
    /// Tools the model may call, as JSON schemas.
    pub tools: &'a [Value],
    /// Ends the text where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Variables of this template alone, such as `enable_thinking`.
    pub extra: Option<&'a Map<String, Value>>,
}

impl<'a> ChatInput<'a> {
    /// A conversation that the model is to answer, without tools.
    pub fn new(messages: &'a [Message]) -> Self {
        Self { messages, tools: &[], add_generation_prompt: true, extra: None }
    }
}
