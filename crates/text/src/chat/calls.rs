//! Calls of tools as a template reads them: some know a call by its null content and some add that content to a
//! string; some print arguments as an object and some as the string that clients send.

use serde_json::{Value, json};

use super::json::dumps;

/// The form of a call that a template renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallForm {
    content: NoContent,
    arguments: Arguments,
}

/// The content of a turn that only calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoContent {
    Null,
    Empty,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    Object,
    /// JSON in a string.
    Text,
}

const NAME: &str = "octavo_probe";
const KEY: &str = "octavo_key";
const ARGUMENT: &str = "octavo_argument";

impl CallForm {
    /// The first form in which a call comes out whole: content as it was sent before content made up, arguments as
    /// an object before text.
    pub(super) fn probe(render: &impl Fn(Value) -> Option<String>) -> Self {
        let usual = Self { content: NoContent::Empty, arguments: Arguments::Object };
        let forms = [Arguments::Object, Arguments::Text].into_iter().flat_map(|arguments| {
            [NoContent::Null, NoContent::Empty].map(|content| Self { content, arguments })
        });
        let mut forms = forms.filter(|form| form.is_understood(render));
        forms.next().unwrap_or(usual)
    }

    fn is_understood(self, render: &impl Fn(Value) -> Option<String>) -> bool {
        let Some(out) = render(self.conversation()) else { return false };
        // An object that is printed as Python's is not JSON.
        let is_whole = out.contains(NAME) && out.contains(ARGUMENT) && !out.contains(&format!("'{KEY}'"));
        is_whole && (self.content == NoContent::Empty || !self.prints_none(&out, render))
    }

    /// Whether null content comes out as a word, beside those of the template itself.
    fn prints_none(self, out: &str, render: &impl Fn(Value) -> Option<String>) -> bool {
        let nones = |text: &str| text.matches("None").count();
        let empty = Self { content: NoContent::Empty, ..self };
        render(empty.conversation()).is_some_and(|without| nones(out) > nones(&without))
    }

    fn conversation(self) -> Value {
        let call = json!([{"id": "octavo123", "type": "function",
            "function": {"name": NAME, "arguments": {KEY: ARGUMENT}}}]);
        json!([
            {"role": "user", "content": "octavo"},
            {"role": "assistant", "content": self.no_content(), "tool_calls": self.value(&call)},
        ])
    }

    pub(super) fn no_content(self) -> Value {
        match self.content {
            NoContent::Null => Value::Null,
            NoContent::Empty => json!(""),
        }
    }

    /// The calls as the template's value.
    pub(super) fn value(self, calls: &Value) -> Value {
        let mut calls = calls.clone();
        for call in calls.as_array_mut().into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let changed = match self.arguments {
                Arguments::Object => arguments.as_str().and_then(object),
                Arguments::Text => arguments.is_object().then(|| json!(dumps(arguments))),
            };
            if let Some(changed) = changed {
                *arguments = changed;
            }
        }
        calls
    }
}

/// The object that a string spells. None where it would lose digits: then the string is what the model said.
fn object(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(|value: &Value| value.is_object() && is_exact(value))
}

/// Integers beyond 64 bits are read as floats.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|x| !number.is_f64() || x.abs() < 2f64.powi(63)),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(fields) => fields.values().all(is_exact),
        _ => true,
    }
}
