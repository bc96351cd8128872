//! A JSON schema as the compiler can follow it to the letter. It counts in doubles: a constant that none holds is
//! refused, and a bound that none holds moves inwards, so that what is said is never outside of it.

use super::grammar::GrammarError;
use serde_json::{Map, Number, Value};
use std::collections::BTreeSet;

/// Doubles hold every integer up to here.
const ALL_HELD: i128 = 1 << f64::MANTISSA_DIGITS;
/// And the compiler takes them up to here.
const LARGEST: i128 = i64::MAX as i128;
/// The escapes of JSON's strings that the compiler may use. Without `\u`, which would be another way to write a key that
/// the schema names, past what it says of that key.
pub(super) const ESCAPES: &str = r#"nrbtf\""#;

/// Rewrites a schema, which is not too deep to be followed down.
pub(super) fn prepare(schema: &mut Value) -> Result<(), GrammarError> {
    each_schema(schema, &mut |fields| {
        for constants in ["const", "enum"].iter().filter_map(|key| fields.get(*key)) {
            can_be_said(constants)?;
        }
        keys_differ(fields)?;
        move_inwards(fields, "maximum", "exclusiveMaximum", 1)?;
        move_inwards(fields, "minimum", "exclusiveMinimum", -1)
    })
}

/// Visits a schema, and all that are in it.
fn each_schema(
    value: &mut Value,
    visit: &mut impl FnMut(&mut Map<String, Value>) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| each_schema(item, visit)),
        Value::Object(fields) => {
            visit(fields)?;
            fields.iter_mut().try_for_each(|(key, field)| match (key.as_str(), field) {
                // Not schemas, whatever they look like.
                ("const" | "enum" | "default" | "examples", _) => Ok(()),
                // By names that may look like keywords.
                ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                    named.values_mut().try_for_each(|schema| each_schema(schema, visit))
                }
                (_, field) => each_schema(field, visit),
            })
        }
        _ => Ok(()),
    }
}

/// Whether a constant can be written as it is.
fn can_be_said(constant: &Value) -> Result<(), GrammarError> {
    let cannot = || GrammarError::Constant { constant: constant.to_string() };
    match constant {
        Value::Array(items) => items.iter().try_for_each(can_be_said),
        Value::Object(fields) => fields.values().try_for_each(can_be_said),
        Value::Number(number) if !is_held(number) => Err(cannot()),
        Value::String(text) if text.chars().any(needs_u) => Err(cannot()),
        _ => Ok(()),
    }
}

fn is_held(number: &Number) -> bool {
    match number.as_i64() {
        Some(integer) => integer != i64::MIN && (integer as f64) as i128 == i128::from(integer),
        None => number.as_f64().is_some_and(|float| float.abs() < LARGEST as f64),
    }
}

/// Whether only `\u` writes it.
fn needs_u(c: char) -> bool {
    c.is_ascii_control() && !['\n', '\r', '\t', '\x08', '\x0C'].contains(&c)
}

/// Keys without a name are not compared with each other: one of them is not like those with a name, and the next may be
/// the same again.
fn keys_differ(fields: &Map<String, Value>) -> Result<(), GrammarError> {
    let Some(least) = fields.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let required = fields.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let named = required.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>().len();
    if least > named as u64 + 1 { Err(GrammarError::KeysMayRepeat { least, named }) } else { Ok(()) }
}

/// Moves bounds to where the compiler keeps them. `sign` is 1 for upper ones.
fn move_inwards(
    fields: &mut Map<String, Value>,
    bound: &str,
    exclusive: &str,
    sign: i8,
) -> Result<(), GrammarError> {
    // The oldest drafts mean the other bound by `true`.
    let strict = fields.get(exclusive) == Some(&Value::Bool(true));
    for (key, strict) in [(bound, strict), (exclusive, true)] {
        let Some(Value::Number(number)) = fields.get(key) else { continue };
        let beyond = || GrammarError::Bound { key: key.into(), number: number.to_string() };
        if let Some(moved) = moved(number, sign, strict).map_err(|_| beyond())? {
            fields.insert(key.into(), moved.into());
        }
    }
    Ok(())
}

struct Beyond;

/// Where a bound moves, if it does.
fn moved(number: &Number, sign: i8, strict: bool) -> Result<Option<f64>, Beyond> {
    let float = number.as_f64().ok_or(Beyond)? * f64::from(sign);
    let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    // Far beyond is as good as further.
    let exact = exact.map_or(float.clamp(-1e30, 1e30) as i128, |exact| exact * i128::from(sign));
    let moved = if exact.abs() > ALL_HELD {
        largest_within(exact - i128::from(strict))?
    } else if strict && float.fract() == 0.0 && float.next_down().fract() != 0.0 {
        // The compiler would let the integer itself through, if the other bound has the same digits before its point.
        if float == 0.0 { -1e-15 } else { float.next_down() }
    } else {
        return Ok(None);
    };
    Ok(Some(moved * f64::from(sign)))
}

/// The largest double that is neither more than `limit` nor written as more.
fn largest_within(limit: i128) -> Result<f64, Beyond> {
    if limit < -LARGEST {
        return Err(Beyond);
    }
    let limit = limit.min(LARGEST);
    let written = |float: f64| float.to_string().parse().unwrap_or(i128::MAX);
    let mut float = limit as f64;
    while float as i128 > limit || written(float) > limit {
        float = float.next_down();
    }
    Ok(float)
}
