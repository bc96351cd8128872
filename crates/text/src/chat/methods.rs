//! Methods of Python's strings that templates call and the engine's companion crate leaves out.

use minijinja::value::{Tuple, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Wider than any text is padded to.
const WIDEST: usize = 1 << 16;

pub(super) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, arguments)
    {
        return result;
    }
    unknown_method_callback(state, value, method, arguments)
}

fn string_method(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => {
            from_args(arguments).map(|(prefix,): (&str,)| text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            from_args(arguments).map(|(suffix,): (&str,)| text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" => from_args(arguments).and_then(|(at,): (&str,)| {
            let (before, after) = separated(text.split_once(at), at)?.unwrap_or((text, ""));
            let found = if before.len() < text.len() { at } else { "" };
            Ok(tuple([before, found, after]))
        }),
        "rpartition" => from_args(arguments).and_then(|(at,): (&str,)| {
            let (before, after) = separated(text.rsplit_once(at), at)?.unwrap_or(("", text));
            let found = if after.len() < text.len() { at } else { "" };
            Ok(tuple([before, found, after]))
        }),
        "rsplit" => from_args(arguments).and_then(|(at, most)| rsplit(text, at, most)),
        "index" => from_args(arguments).and_then(|(what,): (&str,)| match text.find(what) {
            Some(at) => Ok(text[..at].chars().count().into()),
            None => Err(wrong("substring not found")),
        }),
        "zfill" => from_args(arguments).and_then(|(width,)| zfill(text, width)),
        "ljust" | "rjust" | "center" => {
            from_args(arguments).and_then(|(width, fill)| justified(text, method, width, fill))
        }
        _ => return None,
    })
}

fn wrong(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn tuple(parts: [&str; 3]) -> Value {
    Tuple::from(parts.map(Value::from)).into()
}

fn separated<T>(parts: T, at: &str) -> Result<T, Error> {
    if at.is_empty() { Err(wrong("empty separator")) } else { Ok(parts) }
}

/// From the right, at a separator or at any whitespace, at most so often.
fn rsplit(text: &str, at: Option<&str>, most: Option<i64>) -> Result<Value, Error> {
    let mut left = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut rest = text;
    let mut parts = Vec::new();
    if at.is_none() {
        rest = rest.trim_end();
    }
    while left > 0 {
        let split = match at {
            Some(at) => separated(rest.rsplit_once(at), at)?,
            None => rest.rsplit_once(char::is_whitespace).map(|(before, part)| (before.trim_end(), part)),
        };
        let Some((before, part)) = split else { break };
        parts.push(part);
        rest = before;
        left -= 1;
    }
    if at.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

/// How many characters `text` lacks to be `width` wide.
fn lacking(text: &str, width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > WIDEST {
        return Err(wrong("too wide"));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

fn zfill(text: &str, width: i64) -> Result<Value, Error> {
    let zeros = "0".repeat(lacking(text, width)?);
    let sign = usize::from(text.starts_with(['-', '+']));
    Ok(format!("{}{zeros}{}", &text[..sign], &text[sign..]).into())
}

fn justified(text: &str, method: &str, width: i64, fill: Option<&str>) -> Result<Value, Error> {
    let lacking = lacking(text, width)?;
    let odd = lacking & usize::try_from(width).unwrap_or(0) & 1;
    let left = match method {
        "ljust" => 0,
        "rjust" => lacking,
        // As Python has it: the odd one goes to the left where the width is odd, too.
        _ => lacking / 2 + odd,
    };
    let fill = fill.unwrap_or(" ");
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(lacking - left)).into())
}
