//! What a request may ask of its text, and what of that is refused at once.

use super::schema;
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;

/// The largest schema, in bytes of JSON.
const MAX_SCHEMA_BYTES: usize = 128 << 10;
/// The largest Lark grammar. Chains of rules are followed by recursion: this bounds the stack.
const MAX_LARK_BYTES: usize = 64 << 10;
/// The longest regular expression. Larger ones exhaust the compiler's limits anyway, only later.
const MAX_REGEX_BYTES: usize = 16 << 10;
/// The deepest nesting of a schema's JSON: it is compiled by recursion.
const MAX_DEPTH: usize = 100;
/// The most keys of one object in a schema: the compiler's time grows with their square, 0.3 s for a thousand.
const MAX_KEYS: usize = 1000;
/// The most `patternProperties` of a schema: each is compared with all others, 0.2 s for a hundred.
const MAX_PATTERNS: usize = 64;
/// What brings a schema into a Lark grammar, past these bounds.
const LARK_SCHEMA: &str = "%json";
const MAX_CHOICES: usize = 4096;
/// What may stand between the parts of a JSON text. A weak model that has nothing to say says spaces: not for ever.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";
/// The longest explanation handed on.
const MAX_REASON: usize = 400;

/// What a text must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes; `$ref` within the schema alone.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// A context-free grammar in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Why a grammar is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("the {kind} has {bytes} bytes: it can have at most {max}")]
    TooLarge { kind: &'static str, bytes: usize, max: usize },
    #[error("the JSON schema is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("an object in the JSON schema has {keys} keys: it can have at most {MAX_KEYS}")]
    TooWide { keys: usize },
    #[error("the JSON schema has {count} patternProperties: it can have at most {MAX_PATTERNS}")]
    TooManyPatterns { count: usize },
    #[error("a JSON schema within a Lark grammar ({LARK_SCHEMA}) is not taken: ask for the schema itself")]
    SchemaInLark,
    #[error("{count} choices: there must be between 1 and {MAX_CHOICES}")]
    Choices { count: usize },
    #[error("choice {index} is empty; leave it out")]
    EmptyChoice { index: usize },
    #[error("a JSON schema is an object or true")]
    NotASchema,
    #[error(
        "the JSON schema has the constant {constant}: integers beyond 2^53 and control characters cannot be written exactly"
    )]
    Constant { constant: String },
    #[error("the JSON schema has {key}: {number}, which leaves only numbers beyond 64 bits")]
    Bound { key: String, number: String },
    #[error(
        "the JSON schema has minProperties: {least} and requires {named} keys by name: the others could be one and the \
         same; require more by name"
    )]
    KeysMayRepeat { least: u64, named: usize },
    #[error("the {kind} cannot be followed: {reason}")]
    Invalid { kind: &'static str, reason: String },
}

impl Grammar {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Choice(_) => "list of choices",
        }
    }

    /// The same for the compiler, once it is known to be of reasonable size.
    pub(super) fn checked(&self) -> Result<TopLevelGrammar, GrammarError> {
        let kind = self.kind();
        let within = |bytes, max| {
            if bytes > max { Err(GrammarError::TooLarge { kind, bytes, max }) } else { Ok(()) }
        };
        match self {
            Self::JsonObject => json(&serde_json::json!({"type": "object"})),
            Self::JsonSchema(schema) => {
                let extent = Extent::of(schema);
                within(extent.bytes, MAX_SCHEMA_BYTES)?;
                if extent.depth > MAX_DEPTH {
                    return Err(GrammarError::TooDeep);
                }
                if extent.keys > MAX_KEYS {
                    return Err(GrammarError::TooWide { keys: extent.keys });
                }
                if extent.patterns > MAX_PATTERNS {
                    return Err(GrammarError::TooManyPatterns { count: extent.patterns });
                }
                json(schema)
            }
            Self::Regex(regex) => {
                within(regex.len(), MAX_REGEX_BYTES)?;
                Ok(TopLevelGrammar::from_regex(unanchored(regex)))
            }
            Self::Lark(lark) => {
                within(lark.len(), MAX_LARK_BYTES)?;
                if lark.contains(LARK_SCHEMA) {
                    return Err(GrammarError::SchemaInLark);
                }
                Ok(TopLevelGrammar::from_lark(lark.clone()))
            }
            Self::Choice(choices) => {
                within(choices.iter().map(String::len).sum(), MAX_REGEX_BYTES)?;
                choice(choices)
            }
        }
    }
}

fn json(schema: &Value) -> Result<TopLevelGrammar, GrammarError> {
    let mut schema = match schema {
        Value::Bool(true) => serde_json::json!({}),
        Value::Object(_) => schema.clone(),
        _ => return Err(GrammarError::NotASchema),
    };
    schema::prepare(&mut schema)?;
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITESPACE.into()),
        json_allowed_escapes: Some(schema::ESCAPES.into()),
        ..JsonCompileOptions::default()
    };
    // Replaces a client's own options too, which could turn strictness off.
    options.apply_to(&mut schema);
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// One terminal, so that choices which begin alike stay open until they differ.
fn choice(choices: &[String]) -> Result<TopLevelGrammar, GrammarError> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err(GrammarError::Choices { count: choices.len() });
    }
    if let Some(index) = choices.iter().position(String::is_empty) {
        return Err(GrammarError::EmptyChoice { index });
    }
    let quoted: Vec<String> = choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
    Ok(TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}\n", quoted.join(" | "))))
}

/// How large a JSON value is.
#[derive(Default)]
struct Extent {
    /// About how many bytes of text.
    bytes: usize,
    depth: usize,
    /// Of the object that has the most.
    keys: usize,
    /// Of all objects that are called `patternProperties`.
    patterns: usize,
}

impl Extent {
    /// Without recursion: the value may be too deep for that.
    fn of(value: &Value) -> Self {
        let mut extent = Self::default();
        let mut open = vec![(value, 1)];
        while let Some((value, depth)) = open.pop() {
            extent.depth = extent.depth.max(depth);
            extent.bytes += 1;
            match value {
                Value::String(text) => extent.bytes += text.len() + 2,
                Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(fields) => {
                    extent.keys = extent.keys.max(fields.len());
                    let patterns = fields.get("patternProperties").and_then(Value::as_object);
                    extent.patterns += patterns.map_or(0, serde_json::Map::len);
                    extent.bytes += fields.keys().map(|key| key.len() + 3).sum::<usize>();
                    open.extend(fields.values().map(|field| (field, depth + 1)));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        extent
    }
}

/// The expression without anchors at its ends: it has to match the whole text anyway.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An odd number of backslashes makes it a dollar sign.
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()).is_multiple_of(2) => rest,
        _ => regex,
    }
}

/// An explanation without the compiler's inner state.
pub(super) fn readable(error: &str) -> String {
    if error.starts_with("panic:") {
        return "the grammar compiler gave up on it".into();
    }
    if error.contains("oneOf constraints are not supported") {
        // The compiler's own words offer an option that nobody has here.
        return "oneOf needs options that exclude each other by type, by constants or by what they require; use anyOf"
            .into();
    }
    let end =
        ["\n<state>", "\n<non-verbose/>", "<backtrace>"].iter().filter_map(|mark| error.find(mark)).min();
    // Neither the source again, nor the arrows below it.
    let quotes = |line: &&str| line.contains(" | ") || line.trim().chars().all(|c| c == '^');
    let lines: Vec<&str> = error[..end.unwrap_or(error.len())].lines().filter(|line| !quotes(line)).collect();
    // The last line of a regular expression's error; those before it quote the expression.
    let reason = match lines.iter().find_map(|line| line.strip_prefix("error: ")) {
        Some(reason) => reason.into(),
        None => lines.join(" "),
    };
    match reason.char_indices().nth(MAX_REASON) {
        Some((at, _)) => format!("{}...", &reason[..at]),
        None => reason,
    }
}
