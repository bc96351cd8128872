//! A message as a template reads it.

use serde_json::{Map, Value, json};

use super::calls::CallForm;
use super::content::ContentForm;
use super::message::Message;

/// How a template wants its messages. Found by trying, once, when the template is loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageForm {
    content: ContentForm,
    calls: CallForm,
}

impl MessageForm {
    pub(super) fn probe(render: impl Fn(Value) -> Option<String>) -> Self {
        Self { content: ContentForm::probe(&render), calls: CallForm::probe(&render) }
    }

    /// The message as the template's value.
    pub(super) fn value(self, message: &Message) -> Value {
        let calls = message.rest.get("tool_calls").and_then(Value::as_array);
        let only_calls = message.content.is_none() && calls.is_some_and(|calls| !calls.is_empty());
        let content = match only_calls {
            true => self.calls.no_content(),
            false => self.content.value(message.content.as_ref()),
        };
        let mut fields = Map::new();
        fields.insert("role".into(), json!(message.role));
        fields.insert("content".into(), content);
        for (name, value) in &message.rest {
            let value = if name == "tool_calls" { self.calls.value(value) } else { value.clone() };
            fields.insert(name.clone(), value);
        }
        Value::Object(fields)
    }
}
