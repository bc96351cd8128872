//! Grammars from anyone: what cannot be followed is refused with a reason, in bounded time, and nothing dies.

mod demo;

use demo::compiler;
use octavo_engine::{ConstraintError, Grammar, GrammarError};
use serde_json::{Value, json};
use std::time::Duration;

/// Of processor time: far above what any of them takes, far below what a client would call hanging.
const PATIENCE: Duration = Duration::from_secs(5);

/// Processor time of this thread so far; what else the machine does is not in it.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Behind the name, which may contain anything: user and system time are the twelfth and the thirteenth, in hundredths.
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

fn refusal(grammar: Grammar) -> GrammarError {
    let before = spent();
    let result = compiler().compile(&grammar);
    assert!(spent() - before < PATIENCE, "took {:?}", spent() - before);
    result.expect_err("refused")
}

/// Either refused, or harmless: a text goes on or ends with an error, and no token of it takes long.
fn harmless(grammar: Grammar) {
    let before = spent();
    let compiled = compiler().compile(&grammar);
    assert!(spent() - before < PATIENCE, "took {:?}", spent() - before);
    let Ok(mut constraint) = compiled else { return };
    for step in 0..60 {
        let before = spent();
        let Ok(mask) = constraint.mask() else { return };
        let allowed: Vec<u32> = mask.iter().filter(|token| !demo::eos().contains(token)).collect();
        // Neither always the first nor always the last: those are often the dullest way on.
        let Some(token) = allowed.get(step * 7919 % allowed.len().max(1)) else { return };
        let Ok(()) = constraint.accept(*token) else { return };
        assert!(spent() - before < PATIENCE / 10, "a token took {:?}", spent() - before);
    }
}

fn reason(grammar: Grammar) -> String {
    match refusal(grammar) {
        GrammarError::Invalid { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn regex(regex: impl Into<String>) -> Grammar {
    Grammar::Regex(regex.into())
}

fn nested(levels: usize, inner: &dyn Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!({"type": "string"}), |schema, _| inner(schema))
}

#[test]
fn invalid_regular_expressions_are_refused_with_a_reason() {
    for source in ["(", "[z-a]", "a{2,1}", r"\p{Nonsense}", r"(?<=a)b", r"(a)\1", r"\bword\b"] {
        let reason = reason(regex(source));
        assert!(!reason.is_empty() && !reason.contains("backtrace"), "{source}: {reason}");
    }
    assert_eq!(reason(regex("(")), "unclosed group");
    let long = reason(Grammar::Lark(format!("start: {}", "x".repeat(5000))));
    assert!(long.len() == 403 && long.ends_with("..."), "{long}");
}

#[test]
fn explosive_regular_expressions_are_refused_or_harmless() {
    for source in [
        "a{1,1000000}{1,1000000}",
        "((a{0,100}){0,100}){0,100}",
        "(a|aa)+{1,1000}",
        "(.*a){500}",
        "([ab]*a[ab]{25})",
        "(x+x+)+y",
        "a{99999999}",
        ".{0,100000}",
    ] {
        harmless(regex(source));
    }
    harmless(regex("a?".repeat(5000) + &"a".repeat(5000)));
    harmless(regex("(".repeat(200) + "a" + &")".repeat(200)));
    harmless(regex("(".repeat(8000) + "a" + &")".repeat(8000)));
    harmless(regex("a|".repeat(7000) + "b"));
    harmless(regex("ab".repeat(8000)));
    harmless(regex("(a".repeat(120) + &")*".repeat(120)));
    harmless(regex("(?:a*".repeat(120) + &"b)*".repeat(120)));
}

#[test]
fn grammars_too_large_are_refused_by_size() {
    let size = |grammar| match refusal(grammar) {
        GrammarError::TooLarge { bytes, max, .. } => bytes > max,
        other => panic!("{other:?}"),
    };
    assert!(size(regex("a".repeat(20_000))));
    assert!(size(Grammar::Lark("x".repeat(300_000))));
    assert!(size(Grammar::JsonSchema(json!({"const": "x".repeat(300_000)}))));
    assert!(size(Grammar::JsonSchema(json!({"enum": (0..300_000).collect::<Vec<u32>>()}))));
    assert!(size(Grammar::JsonSchema(json!({"x".repeat(300_000): 1}))));
    let wide: serde_json::Map<String, Value> = (0..1001).map(|n| (n.to_string(), json!(true))).collect();
    let wide = Grammar::JsonSchema(json!({"properties": wide}));
    assert_eq!(refusal(wide), GrammarError::TooWide { keys: 1001 });
    let patterns = |n: u32, m: u32| -> Value {
        (n..m).map(|i| (format!("^a{i}"), json!({}))).collect::<serde_json::Map<_, _>>().into()
    };
    let many =
        json!({"allOf": [{"patternProperties": patterns(0, 40)}, {"patternProperties": patterns(40, 65)}]});
    assert_eq!(refusal(Grammar::JsonSchema(many)), GrammarError::TooManyPatterns { count: 65 });
    let most = json!({"type": "object", "patternProperties": patterns(0, 64)});
    let refused = compiler().compile(&Grammar::JsonSchema(most)).err();
    assert!(!matches!(refused, Some(GrammarError::TooManyPatterns { .. })), "{refused:?}");
    let schema_in_lark = Grammar::Lark("start: %json {\"type\": \"integer\"}".into());
    assert_eq!(refusal(schema_in_lark), GrammarError::SchemaInLark);
    assert!(size(Grammar::Choice(vec!["x".repeat(20_000)])));
    assert!(matches!(refusal(Grammar::Choice(vec![])), GrammarError::Choices { count: 0 }));
    assert!(matches!(
        refusal(Grammar::Choice(vec!["a".into(); 5000])),
        GrammarError::Choices { count: 5000 }
    ));
    assert_eq!(refusal(Grammar::Choice(vec!["a".into(), "".into()])), GrammarError::EmptyChoice { index: 1 });
}

#[test]
fn nesting_beyond_reason_is_refused_not_followed_down() {
    let objects = |inner: Value| json!({"type": "object", "properties": {"a": inner}});
    // By hand: the macro recurses.
    let items = |inner| Value::Object([("items".to_string(), inner)].into_iter().collect());
    let deep = Grammar::JsonSchema(nested(10_000, &items));
    assert_eq!(compiler().compile(&deep).unwrap_err(), GrammarError::TooDeep);
    // Dropping it would recurse as well, and that is not the subject.
    std::mem::forget(deep);
    // An array, its items, and so on, down to the type of the last.
    let arrays =
        |levels| compiler().compile(&Grammar::JsonSchema(nested(levels, &|items| json!({"items": items}))));
    assert_eq!(arrays(99).unwrap_err(), GrammarError::TooDeep);
    assert!(!matches!(arrays(98), Err(GrammarError::TooDeep)));
    harmless(Grammar::JsonSchema(nested(40, &objects)));
    for all in ["allOf", "anyOf", "oneOf"] {
        harmless(Grammar::JsonSchema(nested(45, &|inner| json!({all: [inner, {"minLength": 1}]}))));
    }
    harmless(Grammar::JsonSchema(nested(45, &|inner| json!({"items": inner, "type": "array"}))));
    for open in ["(", "(\")\" ", "(\"a\" | ", "["] {
        let close = if open == "[" { "]" } else { ")" };
        let source = format!("start: {}\"a\"{}", open.repeat(5000), close.repeat(5000));
        assert!(reason(Grammar::Lark(source)).contains("nested"), "{open}");
    }
    let chained = |n: usize| {
        let brackets = |bracket: &str| bracket.repeat(20);
        format!("r{n}:{}\"b\"? r{}{}\n", brackets("("), n + 1, brackets(")"))
    };
    let rules: String = (0..1000).map(chained).collect();
    harmless(Grammar::Lark(format!("start: r0\n{rules}r1000: \"a\"\n")));
}

#[test]
fn schemas_that_refer_to_themselves_are_refused_or_harmless() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        json!({"type": "array", "items": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}),
    ] {
        harmless(Grammar::JsonSchema(schema));
    }
    assert!(reason(Grammar::JsonSchema(json!({"$ref": "#/$defs/missing"}))).contains("missing"));
    let remote = Grammar::JsonSchema(json!({"$ref": "https://example.com/schema.json"}));
    assert!(reason(remote).contains("example.com"));
}

#[test]
fn keywords_that_are_not_supported_are_named() {
    let schema = |keyword: &str, value: Value| Grammar::JsonSchema(json!({"type": "object", keyword: value}));
    for (keyword, value) in [
        ("dependentSchemas", json!({"a": {"type": "object"}})),
        ("propertyNames", json!({"pattern": "^a"})),
        ("unevaluatedProperties", json!(false)),
        ("if", json!({"type": "object"})),
        ("not", json!({"type": "string"})),
    ] {
        let reason = reason(schema(keyword, value));
        assert!(reason.contains(keyword), "{keyword}: {reason}");
    }
    let overlap = json!({"oneOf": [{"type": "string"}, {"type": ["string", "null"]}]});
    assert!(reason(Grammar::JsonSchema(overlap)).contains("use anyOf"));
    // A client's own options cannot turn that off.
    let lenient = json!({"type": "object", "not": {}, "x-guidance": {"lenient": true}});
    assert!(reason(Grammar::JsonSchema(lenient)).contains("not"));
}

#[test]
fn what_could_not_be_kept_to_the_letter_is_refused() {
    let constant = |schema: Value| match refusal(Grammar::JsonSchema(schema)) {
        GrammarError::Constant { constant } => constant,
        other => panic!("{other:?}"),
    };
    assert_eq!(constant(json!({"const": (1i64 << 53) + 1})), "9007199254740993");
    assert_eq!(constant(json!({"enum": [1, {"minimum": [-9007199254740993i64]}]})), "-9007199254740993");
    assert_eq!(constant(json!({"properties": {"const": {"const": u64::MAX}}})), "18446744073709551615");
    assert_eq!(constant(json!({"items": {"anyOf": [{"enum": [i64::MIN]}]}})), "-9223372036854775808");
    assert_eq!(constant(json!({"type": "integer", "const": 1e25})), "1e+25");
    assert_eq!(constant(json!({"const": -1e25})), "-1e+25");
    assert_eq!(constant(json!({"const": "a\u{1}"})), "\"a\\u0001\"");
    for schema in [
        json!({"enum": [1i64 << 53, -(1i64 << 60), 10i64.pow(18), 0.1, 1e15, "\n\t\u{8}é"]}),
        json!({"default": u64::MAX, "examples": [u64::MAX], "properties": {"enum": {}, "minimum": {}}}),
    ] {
        assert!(compiler().compile(&Grammar::JsonSchema(schema.clone())).is_ok(), "{schema}");
    }
    for (key, bound) in [("minimum", 1e19), ("exclusiveMinimum", 1e300), ("maximum", -1e19)] {
        let schema = json!({"type": "integer", "minimum": -1e300, "maximum": 1e301, key: bound});
        assert!(
            matches!(refusal(Grammar::JsonSchema(schema)), GrammarError::Bound { key: k, .. } if k == key)
        );
    }
}

#[test]
fn keys_without_a_name_count_once() {
    let least = |least: u64, required: Value| {
        let schema = json!({"type": "object", "minProperties": least, "required": required});
        compiler().compile(&Grammar::JsonSchema(schema)).map(drop)
    };
    assert_eq!(least(2, json!([])), Err(GrammarError::KeysMayRepeat { least: 2, named: 0 }));
    assert_eq!(least(3, json!(["a", "a"])), Err(GrammarError::KeysMayRepeat { least: 3, named: 1 }));
    assert_eq!(least(1, json!([])), Ok(()));
    assert_eq!(least(3, json!(["a", "b"])), Ok(()));
}

#[test]
fn values_that_are_no_schema_are_refused() {
    for value in [json!(null), json!(false), json!([]), json!("string")] {
        assert_eq!(refusal(Grammar::JsonSchema(value)), GrammarError::NotASchema);
    }
    assert!(compiler().compile(&Grammar::JsonSchema(json!(true))).is_ok());
    reason(Grammar::JsonSchema(json!({"type": "nonsense"})));
    reason(Grammar::JsonSchema(json!({"minItems": 3, "maxItems": 2, "type": "array"})));
}

fn options(count: usize) -> Vec<Value> {
    (0..count).map(|n| json!({"type": "object", "properties": {n.to_string(): {}}})).collect()
}

#[test]
fn huge_counts_in_schemas_are_refused_or_harmless() {
    for schema in [
        json!({"type": "array", "minItems": 1_000_000_000u64}),
        json!({"type": "array", "maxItems": 1_000_000_000u64, "items": {"type": "array", "maxItems": 1_000_000_000u64}}),
        json!({"type": "string", "minLength": 1_000_000_000u64}),
        json!({"type": "string", "maxLength": 1_000_000u64}),
        json!({"type": "string", "pattern": "(a{1,10000}){1,10000}"}),
        json!({"type": "object", "minProperties": 1_000_000u64}),
        json!({"type": "integer", "minimum": -1e300, "maximum": 1e300}),
        json!({"type": "number", "multipleOf": 1e-300}),
        json!({"type": "integer", "multipleOf": 999_999_937u64}),
        json!({"enum": (0..15_000).map(|n| format!("{n:x}")).collect::<Vec<_>>()}),
        json!({"anyOf": (0..8000).map(|n| json!({"const": n})).collect::<Vec<_>>()}),
        json!({"oneOf": (0..3000).map(|n| json!({"type": "string", "maxLength": n})).collect::<Vec<_>>()}),
        json!({"allOf": (0..3000).map(|n| json!({"type": "string", "maxLength": n})).collect::<Vec<_>>()}),
        json!({"allOf": [{"anyOf": options(300)}, {"anyOf": options(300)}, {"anyOf": options(300)}]}),
    ] {
        harmless(Grammar::JsonSchema(schema));
    }
    let wide: serde_json::Map<String, Value> =
        (0..1000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    harmless(Grammar::JsonSchema(json!({"type": "object", "properties": wide, "required": []})));
}

#[test]
fn lark_grammars_that_run_away_are_refused_or_harmless() {
    assert!(!reason(Grammar::Lark("start: missing".into())).is_empty());
    reason(Grammar::Lark(String::new()));
    for source in [
        "start: start",
        "start: start start | \"a\"",
        "start: a\na: b\nb: a",
        "start: \"a\"*****",
        "start: A\nA: A",
    ] {
        harmless(Grammar::Lark(source.into()));
    }
    const RULES: usize = 4500;
    let chain = |upper: bool| {
        let name = |n: usize| if upper { format!("R{n}") } else { format!("r{n}") };
        let rules: String = (0..RULES).map(|n| format!("{}: {}\n", name(n), name(n + 1))).collect();
        format!("start: {}\n{rules}{}: \"a\"\n", name(0), name(RULES))
    };
    harmless(Grammar::Lark(chain(false)));
    harmless(Grammar::Lark(chain(true)));
    harmless(Grammar::Lark(format!("start: T\nT: {}/a/", "~".repeat(30_000))));
    harmless(Grammar::Lark(format!("start: T\nT: /a/{}", " & /a/".repeat(9_000))));
    harmless(Grammar::Lark(format!("start: \"a\"{}", "?".repeat(60_000))));
    harmless(Grammar::Lark(format!("start: {}", "\"a\" | ".repeat(9_000) + "\"b\"")));
}

/// Every new token can be read in more ways than the one before it: followed to the parser's own limits, the first takes a minute
/// in a build for tests.
#[test]
fn a_grammar_that_can_be_read_in_many_ways_is_given_up_before_it_takes_long() {
    for rule in ["start start | \"a\"", "start start start start | start start | \"a\""] {
        let mut constraint = compiler().compile(&Grammar::Lark(format!("start: {rule}"))).unwrap();
        let token = constraint.mask().unwrap().iter().find(|token| !demo::eos().contains(token)).unwrap();
        let before = spent();
        let error = (0..5000).find_map(|_| constraint.accept(token).err()).expect("given up");
        assert!(matches!(error, ConstraintError::TooComplex { .. }), "{error}");
        assert!(spent() - before < 3 * PATIENCE, "took {:?}", spent() - before);
    }
}
