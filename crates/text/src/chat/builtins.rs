//! Filters and tests that differ in Jinja from what the engine has built in.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, Value, filters};

use super::json::to_json;
use super::print::string;

pub(super) fn add_builtins(env: &mut Environment<'_>) {
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_test("callable", is_callable);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("replace", replace);
    env.add_filter("string", string);
    env.add_filter("tojson", to_json);
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What has a length and can be indexed: in Python strings and mappings, too, and what is undefined.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => true,
        // A slice of a list.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// Functions, but not macros, which are mappings here; and what is undefined, as in Python.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}

/// What is undefined has none.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(options.get("default_value")?);
    let boolean = boolean.or(options.get("boolean")?).unwrap_or(false);
    options.assert_all_used()?;
    match value.is_undefined() || (boolean && !value.is_true()) {
        true => Ok(other.unwrap_or_else(|| "".into())),
        false => Ok(value.clone()),
    }
}

fn replace(
    value: &Value,
    from: &Value,
    to: &Value,
    count: Option<i64>,
    options: Kwargs,
) -> Result<String, Error> {
    let count = count.or(options.get("count")?);
    options.assert_all_used()?;
    let (text, from, to) = (value.to_string(), from.to_string(), to.to_string());
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => Ok(text.replacen(&from, &to, count)),
        None => Ok(text.replace(&from, &to)),
    }
}
