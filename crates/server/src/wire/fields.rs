//! The fields of a JSON object, taken one by one; what is left over is refused by name.
//!
//! A body is kept as slices of its own text until a field is taken as the type it must have. So an error knows the
//! path to what is wrong, and no body costs more memory than itself and what it says.

use super::error::ApiError;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

#[derive(Debug)]
pub(crate) struct Fields<'a> {
    fields: HashMap<Cow<'a, str>, &'a RawValue>,
    /// Where this object lies in the body: empty, or `stream_options.`.
    prefix: &'static str,
}

/// For values that are kept as JSON.
const MOST_JSON: usize = 1 << 20;

impl<'a> Fields<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let invalid = |message: String| ApiError::bad_request("invalid_json", message);
        let text = std::str::from_utf8(body).map_err(|error| {
            invalid(format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to()))
        })?;
        if text.trim().is_empty() {
            return Err(invalid("the body is empty: send a JSON object".into()));
        }
        let Object(fields) = serde_json::from_str(text)
            .map_err(|error| invalid(format!("the body is not a JSON object: {error}")))?;
        Ok(Self { fields, prefix: "" })
    }

    /// The field `name` if it is there and not null.
    pub(crate) fn take<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.fields.remove(name) else { return Ok(None) };
        if let Some(whole) = whole_number(raw.get()) {
            let value: Result<T, serde_json::Error> = T::deserialize(whole.into_deserializer());
            return value
                .map(Some)
                .map_err(|error| ApiError::field(self.path(name), in_words_of_json(&error)));
        }
        let mut json = serde_json::Deserializer::from_str(raw.get());
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let inner = error.path().to_string();
            let path = match inner.as_str() {
                "." => self.path(name),
                path if path.starts_with('[') => format!("{}{path}", self.path(name)),
                path => format!("{}.{path}", self.path(name)),
            };
            ApiError::field(path, in_words_of_json(error.inner()))
        })
    }

    /// A field of any JSON: a tool, a schema. Such values take many times the memory of their text, so that is bounded.
    pub(crate) fn take_json<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.fields.get(name).map(|raw| raw.get().len()) {
            Some(bytes) if bytes > MOST_JSON => {
                let message = format!("{bytes} bytes of JSON: there can be at most {MOST_JSON}");
                Err(ApiError::field(self.path(name), message))
            }
            _ => self.take(name),
        }
    }

    /// No fewer values than the field `name` has, and at most about twice as many.
    pub(crate) fn values_in(&self, name: &str) -> usize {
        let (mut values, mut in_text, mut escaped) = (1, false, false);
        for byte in self.fields.get(name).map_or("", |raw| raw.get()).bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = !in_text,
                b',' | b'[' | b'{' if !in_text => values += 1,
                _ => (),
            }
        }
        values
    }

    pub(crate) fn need<T: Deserialize<'a>>(&mut self, name: &str) -> Result<T, ApiError> {
        let value = self.take(name)?;
        value.ok_or_else(|| ApiError::field(self.path(name), "this field is required"))
    }

    /// The object in the field `name`, as fields of its own.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        let object: Option<Object<'a>> = self.take(name)?;
        Ok(object.map(|Object(fields)| Fields { fields, prefix: name }))
    }

    /// Refuses the field `name` unless it is missing, or as good as.
    pub(crate) fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        match self.fields.remove(name).map(RawValue::get) {
            None | Some("null" | "false" | "[]") => Ok(()),
            Some(_) => Err(ApiError::unsupported(self.path(name), why)),
        }
    }

    /// Whether the field `name` is there, not taken yet and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// Leaves fields aside that change no answer.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.fields.remove(*name);
        }
    }

    /// Refuses whatever was not taken.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        let mut left: Vec<String> = self.fields.keys().map(|name| self.path(name)).collect();
        left.sort_unstable();
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let names = left.join(", ");
                let error =
                    ApiError::bad_request("unknown_field", format!("unknown or unsupported: {names}"));
                Err(error.with_param(first.clone()))
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.into() } else { format!("{}.{name}", self.prefix) }
    }
}

/// `5.0` is 5, as others have it.
fn whole_number(json: &str) -> Option<i64> {
    let (whole, zeros) = json.split_once('.')?;
    if zeros.bytes().all(|digit| digit == b'0') { whole.parse().ok() } else { None }
}

/// Serde's message without the position, which counts from the field's own beginning, and without names of types that
/// JSON does not have.
fn in_words_of_json(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    if let Some(end) = message.rfind(" at line ") {
        message.truncate(end);
    }
    if ["unexpected end of hex escape", "lone leading surrogate in hex escape"].contains(&message.as_str()) {
        return "half of a surrogate pair, such as \\ud83d alone, is no character".into();
    }
    let Some((wrong, expected)) = message.rsplit_once("expected ") else { return message };
    let named = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative and not too large",
        "i8" | "i16" | "i32" | "i64" => "a whole number that is not too large",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        _ => return message,
    };
    format!("{wrong}expected {named}")
}

struct Object<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = HashMap<Cow<'de, str>, &'de RawValue>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = HashMap::new();
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    if fields.contains_key(&name) {
                        return Err(M::Error::custom(format_args!("the field {name:?} is given twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Entries).map(Self)
    }
}

/// Borrowed unless it holds an escape.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<impl fmt::Debug, ApiError>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[test]
    fn an_error_names_the_path_to_what_is_wrong() {
        let mut fields = Fields::parse(br#"{"prompt": [[1, 2], [3, "x"]], "n": -1}"#).unwrap();
        let prompt = fields.take::<Vec<Vec<u32>>>("prompt");
        assert_eq!(
            message(prompt),
            "prompt[1][1]: invalid type: string \"x\", expected a whole number that is not negative and not too large"
        );
        assert!(message(fields.take::<u32>("n")).starts_with("n: invalid value: integer `-1`"));
        let mut fields = Fields::parse(br#"{"a": "x", "b": 1, "c": 2, "d": 3}"#).unwrap();
        assert!(message(fields.take::<f32>("a")).ends_with("expected a number"));
        assert!(message(fields.take::<bool>("b")).ends_with("expected true or false"));
        assert!(message(fields.take::<Vec<u32>>("c")).ends_with("expected a list"));
        assert!(message(fields.take::<HashMap<String, u32>>("d")).ends_with("expected an object"));
        for half in [r"\ud83d", r"\ude00", r"\ud83dA", r"\ud83d\u0041"] {
            let body = format!(r#"{{"a": "{half}"}}"#);
            let error = message(Fields::parse(body.as_bytes()).unwrap().take::<String>("a"));
            assert_eq!(
                error, r"a: half of a surrogate pair, such as \ud83d alone, is no character",
                "{half}"
            );
        }
    }

    #[test]
    fn what_was_not_taken_is_refused_by_name() {
        let mut fields = Fields::parse(br#"{"a": 1, "zz": 2, "b": 3, "user": "x"}"#).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(1));
        fields.ignore(&["user"]);
        let error = fields.end().unwrap_err();
        assert_eq!((error.message(), error.code()), ("unknown or unsupported: b, zz", Some("unknown_field")));
    }

    #[test]
    fn null_is_as_good_as_missing() {
        let mut fields = Fields::parse(br#"{"a": null, "suffix": null, "c": false, "d": []}"#).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), None);
        fields.refuse("suffix", "no").unwrap();
        fields.refuse("c", "no").unwrap();
        fields.refuse("d", "no").unwrap();
        fields.end().unwrap();
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let json = br#"{"a": 5.0, "b": -3.00, "c": 5.5, "d": -1.0, "e": 0.0, "f": 1e3, "g": 5.0}"#;
        let mut fields = Fields::parse(json).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(5));
        assert_eq!(fields.take::<i64>("b").unwrap(), Some(-3));
        assert!(message(fields.take::<u32>("c")).starts_with("c: invalid type: floating point `5.5`"));
        assert!(message(fields.take::<u32>("d")).starts_with("d: invalid value: integer `-1`"));
        assert_eq!(fields.take::<f32>("e").unwrap(), Some(0.0));
        assert!(fields.take::<u32>("f").is_err());
        assert!(message(fields.take::<String>("g")).starts_with("g: invalid type: "));
    }

    #[test]
    fn a_field_of_a_nested_object_has_its_whole_path() {
        let mut fields = Fields::parse(br#"{"stream_options": {"include_usage": 1, "x": 2}}"#).unwrap();
        let mut options = fields.object("stream_options").unwrap().unwrap();
        assert!(message(options.take::<bool>("include_usage")).starts_with("stream_options.include_usage: "));
        assert_eq!(message(options.end()), "unknown or unsupported: stream_options.x");
    }

    #[test]
    fn json_that_is_kept_as_such_is_bounded() {
        let of = |items: usize| format!(r#"{{"tools": [{}0]}}"#, "0,".repeat(items));
        let take = |body: &str| Fields::parse(body.as_bytes())?.take_json::<serde_json::Value>("tools");
        assert!(take(&of(100)).unwrap().is_some());
        assert!(message(take(&of(MOST_JSON / 2))).starts_with("tools: "));
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        assert!(message(Fields::parse(br#"{"n": 1, "n": 2}"#)).contains("\"n\" is given twice"));
        assert!(message(Fields::parse(br#"{"n": 1, "\u006e": 2}"#)).contains("\"n\" is given twice"));
    }

    #[test]
    fn bodies_that_are_no_object_are_refused() {
        for body in ["", "  ", "[]", "1", "null", "{", "{\"a\": }", "{} {}", "{\"a\": NaN}", "\"x\""] {
            let error = Fields::parse(body.as_bytes()).unwrap_err();
            assert_eq!((error.status().as_u16(), error.code()), (400, Some("invalid_json")), "{body}");
        }
        assert!(message(Fields::parse(b"{\"a\": \"\xff\"}")).contains("byte 7 is wrong"));
    }
}
