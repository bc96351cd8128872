//! Values as Python prints them. This engine does so but for floats.

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value, escape_formatter};

/// Prints what stands between `{{` and `}}`.
pub(super) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match has_float(value) {
        true => Ok(out.write_str(&repr(value))?),
        false => escape_formatter(out, state, value),
    }
}

/// The filter `string`.
pub(super) fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        _ if has_float(value) => repr(value).into(),
        _ => value.to_string().into(),
    }
}

fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}

/// The elements of a list, or of what is printed as one.
fn elements(value: &Value) -> Option<impl Iterator<Item = Value>> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && value.len().is_some();
    if is_list { value.try_iter().ok() } else { None }
}

fn entries(value: &Value) -> Option<impl Iterator<Item = (Value, Value)>> {
    let object = value.as_object().filter(|_| value.kind() == ValueKind::Map)?;
    object.try_iter_pairs()
}

fn has_float(value: &Value) -> bool {
    as_float(value).is_some()
        || elements(value).is_some_and(|mut elements| elements.any(|element| has_float(&element)))
        || entries(value).is_some_and(|mut all| all.any(|(key, value)| has_float(&key) || has_float(&value)))
}

fn repr(value: &Value) -> String {
    if let Some(float) = as_float(value) {
        return python_float(float);
    }
    if let Some(elements) = elements(value) {
        let elements: Vec<String> = elements.map(|element| repr(&element)).collect();
        return match (value.is_tuple(), elements.as_slice()) {
            (true, [only]) => format!("({only},)"),
            (true, _) => format!("({})", elements.join(", ")),
            (false, _) => format!("[{}]", elements.join(", ")),
        };
    }
    if let Some(entries) = entries(value) {
        let entries = entries.map(|(key, value)| format!("{}: {}", repr(&key), repr(&value)));
        return format!("{{{}}}", entries.collect::<Vec<_>>().join(", "));
    }
    format!("{value:?}")
}

/// `repr` of a Python float: an exponent outside 1e-4..1e16, at least two digits of it, and its sign.
pub(super) fn python_float(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123456789.25, "123456789.25"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
