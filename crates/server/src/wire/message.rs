//! Messages of a conversation, as clients send them.

use super::error::ApiError;
use super::fields::Fields;
use octavo::{Content, Message, Part};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Of JSON in a conversation: such values take many times the memory of their text.
const MOST_VALUES: usize = 1 << 18;

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function"];

/// The conversation in the field `messages`.
pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Vec<Message>, ApiError> {
    if fields.values_in("messages") > MOST_VALUES {
        return Err(ApiError::field(
            "messages",
            format_args!("there can be at most {MOST_VALUES} values in it"),
        ));
    }
    let messages: Vec<RawMessage> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "a conversation has at least one message"));
    }
    (0..).zip(messages).map(|(at, raw)| raw.check(at)).collect()
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a role and content")]
struct RawMessage {
    role: String,
    #[serde(default)]
    content: Option<RawContent>,
    /// `tool_calls`, `tool_call_id`, `name` and the like: the template's business.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug)]
enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a type and text")]
struct RawPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// Whatever else a part has; with it a list is not taken for an object.
    #[serde(flatten)]
    _rest: Map<String, Value>,
}

impl RawMessage {
    fn check(self, at: usize) -> Result<Message, ApiError> {
        let Self { role, content, rest } = self;
        if !ROLES.contains(&role.as_str()) {
            let message = format!("{role:?} is none of {}", ROLES.join(", "));
            return Err(ApiError::field(format!("messages[{at}].role"), message));
        }
        if rest.get("audio").is_some_and(|audio| !audio.is_null()) {
            return Err(ApiError::unsupported(format!("messages[{at}].audio"), "only text is read"));
        }
        let calls = check_calls(at, &rest)?;
        if content.is_none() && !(role == "assistant" && calls) {
            return Err(ApiError::field(format!("messages[{at}].content"), "this field is required"));
        }
        let content = content.map(|content| content.check(at)).transpose()?;
        Ok(Message { role, content, rest })
    }
}

/// Whether a message calls something. What a call says is the template's business.
fn check_calls(at: usize, rest: &Map<String, Value>) -> Result<bool, ApiError> {
    let path = |field: &str| format!("messages[{at}].{field}");
    let given = |name: &str| rest.get(name).filter(|value| !value.is_null());
    let one = match given("function_call") {
        None => false,
        Some(Value::Object(_)) => true,
        Some(_) => return Err(ApiError::field(path("function_call"), "a call is a JSON object")),
    };
    match given("tool_calls") {
        None => Ok(one),
        Some(Value::Array(calls)) => match calls.iter().position(|call| !call.is_object()) {
            None => Ok(one || !calls.is_empty()),
            Some(call) => {
                Err(ApiError::field(path(&format!("tool_calls[{call}]")), "a call is a JSON object"))
            }
        },
        Some(_) => Err(ApiError::field(path("tool_calls"), "calls are a list of objects")),
    }
}

impl RawContent {
    fn check(self, message: usize) -> Result<Content, ApiError> {
        let part = |(at, part): (usize, RawPart)| {
            let path = |field: &str| format!("messages[{message}].content[{at}].{field}");
            match (part.kind.as_str(), part.text) {
                ("text", Some(text)) => Ok(Part::Text { text }),
                ("text", None) => Err(ApiError::field(path("text"), "this field is required")),
                (other, _) => {
                    Err(ApiError::unsupported(path("type"), format_args!("{other:?}: only text is read")))
                }
            }
        };
        match self {
            Self::Text(text) => Ok(Content::Text(text)),
            Self::Parts(parts) => (0..).zip(parts).map(part).collect::<Result<_, _>>().map(Content::Parts),
        }
    }
}

impl<'de> Deserialize<'de> for RawContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = RawContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<RawContent, E> {
                Ok(RawContent::Text(text.into()))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<RawContent, E> {
                Ok(RawContent::Text(text))
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<RawContent, S::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(RawContent::Parts(parts))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Result<Vec<Message>, ApiError> {
        let body = format!(r#"{{"messages": {json}}}"#);
        take(&mut Fields::parse(body.as_bytes())?)
    }

    #[test]
    fn content_is_text_or_parts_of_text() {
        let one = messages(r#"[{"role": "user", "content": "hi", "name": "x"}]"#).unwrap().remove(0);
        assert_eq!(one.content, Some(Content::Text("hi".into())));
        assert_eq!(one.rest["name"], "x");
        let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
        let text = |text: &str| Part::Text { text: text.into() };
        let parts = messages(parts).unwrap().remove(0);
        assert_eq!(parts.content, Some(Content::Parts(vec![text("a"), text("b")])));
    }

    #[test]
    fn a_conversation_has_only_so_many_values() {
        let of = |values: usize| {
            format!(r#"[{{"role": "user", "content": "a", "x": [{}1]}}]"#, "[],".repeat(values))
        };
        assert_eq!(messages(&of(MOST_VALUES / 2 - 20)).unwrap().len(), 1);
        let error = messages(&of(MOST_VALUES / 2 + 1)).unwrap_err();
        assert!(error.message().starts_with("messages: there can be at most 262144"), "{}", error.message());
        // However many commas a text has.
        let text = format!(r#"[{{"role": "user", "content": "\\\"{}"}}]"#, ",[{".repeat(MOST_VALUES));
        assert_eq!(messages(&text).unwrap().len(), 1);
    }

    #[test]
    fn a_call_of_a_tool_needs_no_content() {
        for call in [
            r#"[{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]"#,
            r#"[{"role": "assistant", "function_call": {"name": "f"}, "tool_calls": null}]"#,
        ] {
            assert_eq!(messages(call).expect(call)[0].content, None);
        }
    }

    #[test]
    fn every_role_of_openai_is_known() {
        for role in ["system", "developer", "user", "assistant", "tool", "function"] {
            let one = messages(&format!(r#"[{{"role": "{role}", "content": "a", "audio": null}}]"#));
            assert_eq!(one.expect(role)[0].role, role);
        }
    }

    #[test]
    fn what_is_wrong_with_a_message_is_said_by_path() {
        for (json, path) in [
            ("[]", "messages: "),
            ("3", "messages: "),
            ("[3]", "messages[0]: "),
            (
                r#"["Hi"]"#,
                "messages[0]: invalid type: string \"Hi\", expected an object with a role and content",
            ),
            (r#"[["user", "a"]]"#, "messages[0]: "),
            (
                r#"[{"role": "user", "content": ["Hi"]}]"#,
                "messages[0].content[0]: invalid type: string \"Hi\", expected an object with a type and text",
            ),
            (r#"[{"role": "user", "content": [["text", "a"]]}]"#, "messages[0].content[0]: "),
            (r#"[{"role": "assistant", "tool_calls": 5}]"#, "messages[0].tool_calls: "),
            (r#"[{"role": "assistant", "tool_calls": [{}, 5]}]"#, "messages[0].tool_calls[1]: "),
            (r#"[{"role": "assistant", "tool_calls": []}]"#, "messages[0].content: "),
            (r#"[{"role": "user", "content": "a", "function_call": "f"}]"#, "messages[0].function_call: "),
            (r#"[{"content": "a"}]"#, "messages[0]: missing field `role`"),
            (r#"[{"role": "user"}]"#, "messages[0].content: "),
            (r#"[{"role": "user", "content": null}]"#, "messages[0].content: "),
            (r#"[{"role": "user", "tool_calls": [{}]}]"#, "messages[0].content: "),
            (r#"[{"role": "user", "content": 5}]"#, "messages[0].content: "),
            (r#"[{"role": "wizard", "content": "a"}]"#, "messages[0].role: "),
            (r#"[{"role": 5, "content": "a"}]"#, "messages[0].role: "),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}]"#,
                "messages[0].content[1].type: \"image_url\"",
            ),
            (r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text: "),
            (r#"[{"role": "user", "content": ["a"]}]"#, "messages[0].content[0]: "),
            (r#"[{"role": "assistant", "content": "a", "audio": {"id": "1"}}]"#, "messages[0].audio: "),
        ] {
            let error = messages(json).unwrap_err();
            assert!(error.message().starts_with(path), "{json}: {}", error.message());
        }
    }
}
