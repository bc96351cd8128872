//! `tojson` as Hugging Face defines it: Python's `json.dumps(ensure_ascii=False)`, without HTML escapes.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let fail = |why: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"));
    if value.is_undefined() {
        return Err(fail("the value is undefined".into()));
    }
    let mut style = PythonStyle::new(
        options.get("indent")?,
        options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    );
    if let Some((item, key)) = separators(&options)? {
        (style.item, style.key) = (item, key);
    }
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = serde_json::to_value(value).map_err(|error| fail(error.to_string()))?;
    if sorted {
        json.sort_all_objects();
    }
    let mut out = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut out, style))
        .map_err(|error| fail(error.to_string()))?;
    Ok(Value::from(String::from_utf8(out).expect("JSON is UTF-8")))
}

fn separators(options: &Kwargs) -> Result<Option<(String, String)>, Error> {
    let Some(pair) = options.get::<Option<Vec<String>>>("separators")? else { return Ok(None) };
    match <[String; 2]>::try_from(pair) {
        Ok([item, key]) => Ok(Some((item, key))),
        Err(_) => Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")),
    }
}

/// Python's spacing and number formats.
struct PythonStyle {
    indent: Option<usize>,
    ascii: bool,
    item: String,
    key: String,
    depth: usize,
    has_value: bool,
}

impl PythonStyle {
    fn new(indent: Option<usize>, ascii: bool) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        Self { indent, ascii, item: item.into(), key: ": ".into(), depth: 0, has_value: false }
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.new_line(out)?;
        }
        out.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.new_line(out)
    }

    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(out, "\n{:1$}", "", indent * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonStyle {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if c.is_ascii() {
                write!(out, "{c}")?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

/// `repr` of a Python float: an exponent outside 1e-4..1e16, at least two digits of it, and its sign.
fn python_float(value: f64) -> String {
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
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
