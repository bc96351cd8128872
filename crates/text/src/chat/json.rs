//! `tojson` as Hugging Face defines it: Python's `json.dumps(ensure_ascii=False)`, without HTML escapes.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::print::python_float;

/// Arguments are Hugging Face's: `ascii` is its first.
pub(super) fn to_json(value: &Value, ascii: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let fail = |why: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"));
    if value.is_undefined() {
        return Err(fail("the value is undefined".into()));
    }
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.or(ascii).unwrap_or(false);
    let mut style = PythonStyle::new(indent(&options)?, ascii);
    if let Some((item, key)) = separators(&options)? {
        (style.item, style.key) = (item, key);
    }
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = serde_json::to_value(value).map_err(|error| fail(error.to_string()))?;
    if sorted {
        json.sort_all_objects();
    }
    Ok(Value::from(written(&json, style)))
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn dumps(value: &serde_json::Value) -> String {
    written(value, PythonStyle::new(None, false))
}

fn written(value: &serde_json::Value, style: PythonStyle) -> String {
    let mut out = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut out, style))
        .expect("a JSON value is written to memory");
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// What a level is indented by: a number of spaces, or the text itself.
fn indent(options: &Kwargs) -> Result<Option<String>, Error> {
    let Some(indent) = options.get::<Option<Value>>("indent")? else { return Ok(None) };
    match indent.as_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => Ok(Some(" ".repeat(u16::try_from(indent)?.into()))),
    }
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
    indent: Option<String>,
    ascii: bool,
    item: String,
    key: String,
    depth: usize,
    has_value: bool,
}

impl PythonStyle {
    fn new(indent: Option<String>, ascii: bool) -> Self {
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
        match &self.indent {
            Some(indent) => write!(out, "\n{}", indent.repeat(self.depth)),
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
