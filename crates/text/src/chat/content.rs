//! Content as a template reads it: some want a string, some a list of parts, some take either.

use serde_json::{Value, json};

use super::message::{Content, Part};

/// The form of content a template renders. Found by trying: nothing in a template's file says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    Text,
    Parts,
    Either,
}

const PROBE: &str = "octavo probe";

impl ContentForm {
    /// Renders one user message in both forms; a form is understood if its text comes out and its list does not.
    pub(super) fn probe(render: &impl Fn(Value) -> Option<String>) -> Self {
        let understood = |content: Value| {
            render(json!([{"role": "user", "content": content}])).is_some_and(|out| {
                out.contains(PROBE) && !out.contains("'type'") && !out.contains("\"type\"")
            })
        };
        match (understood(json!(PROBE)), understood(json!([{"type": "text", "text": PROBE}]))) {
            (true, true) => Self::Either,
            (false, true) => Self::Parts,
            _ => Self::Text,
        }
    }

    /// Content as the template's value.
    pub(super) fn value(self, content: Option<&Content>) -> Value {
        match (self, content) {
            // Templates add content to strings, which null would break.
            (_, None) => json!(""),
            (Self::Parts, Some(Content::Text(text))) => json!([{"type": "text", "text": text}]),
            (Self::Text, Some(Content::Parts(parts))) => {
                let texts: Vec<&str> = parts.iter().map(|Part::Text { text }| text.as_str()).collect();
                json!(texts.join("\n"))
            }
            (_, Some(content)) => json!(content),
        }
    }
}
