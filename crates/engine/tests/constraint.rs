//! Structured output with the built-in model's tokenizer: whatever is allowed and chosen by chance, the text follows
//! its grammar.

mod demo;

use demo::{compiler, speak, tokenizer};
use octavo_engine::{
    CompilerError, ConstraintError, Grammar, GrammarCompiler, Progress, Sampler, SamplingParams, TokenMask,
};
use octavo_text::Markup;
use serde_json::{Value, json};

#[test]
fn any_json_object_is_an_object() {
    let mut constraint = compiler().compile(&Grammar::JsonObject).unwrap();
    for seed in 0..20 {
        let text = speak(&mut constraint.clone(), seed);
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
    assert!(!constraint.is_complete(), "nothing has been said yet");
}

#[test]
fn a_model_that_says_spaces_has_to_say_something_else_soon() {
    let mut constraint = compiler().compile(&Grammar::JsonObject).unwrap();
    let token = |text| tokenizer().encode(text, Markup::Literal).unwrap()[0];
    constraint.accept(token("{")).unwrap();
    let spaces = (0..100).take_while(|_| constraint.accept(token(" ")).is_ok()).count();
    assert!((2..=32).contains(&spaces), "{spaces}");
    assert!(speak(&mut constraint, 1).ends_with(['}', ' ', '\n', '\t', '\r']));
}

fn order_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["buy", "sell", "über"]},
            "price": {"type": "number", "minimum": 0, "maximum": 500},
            "count": {"type": "integer", "minimum": -3, "maximum": 12},
            "gift": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string", "maxLength": 12}, {"type": "null"}]},
            "grid": {
                "type": "array", "minItems": 1, "maxItems": 3,
                "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}}
            },
            "tree": {"$ref": "#/$defs/node"}
        },
        "required": ["kind", "price", "count", "note", "grid", "tree"],
        "additionalProperties": false,
        "$defs": {"node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z]{1,4}$"},
                "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}}
            },
            "required": ["name"], "additionalProperties": false
        }}
    })
}

fn check_node(node: &Value) {
    let fields = node.as_object().unwrap();
    assert!(fields.keys().all(|key| ["name", "children"].contains(&key.as_str())));
    let name = fields["name"].as_str().unwrap();
    assert!((1..=4).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase()), "{name}");
    let children = fields.get("children").map_or(&[][..], |children| children.as_array().unwrap());
    assert!(children.len() <= 2);
    children.iter().for_each(check_node);
}

fn check_order(order: &Value) {
    let fields = order.as_object().unwrap();
    let known = ["kind", "price", "count", "gift", "note", "grid", "tree"];
    assert!(fields.keys().all(|key| known.contains(&key.as_str())));
    assert!(["buy", "sell", "über"].contains(&fields["kind"].as_str().unwrap()));
    assert!((0.0..=500.0).contains(&fields["price"].as_f64().unwrap()));
    // "-0" is an integer too, though not one of i64.
    let count = fields["count"].as_f64().unwrap();
    assert!((-3.0..=12.0).contains(&count) && count.fract() == 0.0);
    assert!(fields.get("gift").is_none_or(Value::is_boolean));
    assert!(fields["note"].is_null() || fields["note"].as_str().unwrap().chars().count() <= 12);
    let grid = fields["grid"].as_array().unwrap();
    assert!((1..=3).contains(&grid.len()));
    for row in grid {
        let row = row.as_array().unwrap();
        // Integers of any length: they need not fit 64 bits.
        assert!(row.len() == 2 && row.iter().all(Value::is_number));
    }
    check_node(&fields["tree"]);
}

#[test]
fn json_by_chance_follows_its_schema() {
    let constraint = compiler().compile(&Grammar::JsonSchema(order_schema())).unwrap();
    for seed in 0..40 {
        let text = speak(&mut constraint.clone(), seed);
        check_order(&serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
    }
}

/// Whether a schema takes a text, in one way of cutting it into tokens.
fn takes(schema: &Value, text: &str) -> bool {
    let mut constraint = compiler().compile(&Grammar::JsonSchema(schema.clone())).unwrap();
    let tokens = tokenizer().encode(text, Markup::Literal).unwrap();
    tokens.iter().all(|token| constraint.accept(*token).is_ok()) && constraint.is_complete()
}

#[test]
fn a_key_that_a_schema_names_is_written_in_one_way() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b\n\"": {}}, "required": ["a"]});
    assert!(takes(&schema, r#"{"a": 1, "b\n\"": 2, "c": "d"}"#));
    // The last of two equal keys counts for most readers of JSON.
    assert!(!takes(&schema, r#"{"a": 1, "a": "d"}"#));
    assert!(!takes(&schema, r#"{"a": 1, "\u0061": "d"}"#));
    let patterns = json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}});
    assert!(takes(&patterns, r#"{"ab": 1, "b": "d"}"#));
    assert!(!takes(&patterns, r#"{"\u0061b": "d"}"#));
}

#[test]
fn bounds_hold_where_doubles_do_not() {
    let integer = |key: &str, bound: Value| json!({"type": "integer", key: bound});
    for (schema, within, beyond) in [
        (integer("maximum", json!(i64::MAX)), "9223372036854774784", "9223372036854775808"),
        (integer("maximum", json!(u64::MAX)), "9223372036854774784", "18446744073709551616"),
        (integer("maximum", json!(1e300)), "9223372036854774784", "1".repeat(302).as_str()),
        (integer("minimum", json!(i64::MIN)), "-9223372036854774784", "-9223372036854775809"),
        (integer("maximum", json!((1i64 << 53) + 1)), "9007199254740992", "9007199254740994"),
        (integer("minimum", json!(-(1i64 << 53) - 1)), "-9007199254740992", "-9007199254740994"),
        (integer("exclusiveMaximum", json!(1i64 << 60)), "1152921504606846848", "1152921504606846976"),
        (integer("exclusiveMinimum", json!(-(1i64 << 60))), "-1152921504606846848", "-1152921504606846976"),
        (integer("exclusiveMaximum", json!(1e17)), "99999999999999984", "100000000000000000"),
        (integer("minimum", json!(1i64 << 54)), "18014398509481984", "18014398509481983"),
        (integer("exclusiveMaximum", json!(10)), "9", "10"),
        (integer("exclusiveMinimum", json!(0)), "1", "0"),
        (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}), "0.25", "0"),
        (json!({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}), "1.25", "1"),
        (json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}), "-0.25", "-0"),
        (json!({"type": "number", "minimum": -3.5, "exclusiveMaximum": -3}), "-3.25", "-3"),
        (json!({"allOf": [{"type": "number", "exclusiveMinimum": 2}, {"maximum": 2.5}]}), "2.5", "2"),
        (json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 0.5}), "0.25", "0"),
        (
            json!({"type": "number", "exclusiveMaximum": i64::MAX}),
            "9223372036854774000",
            "9223372036854775807",
        ),
    ] {
        assert!(takes(&schema, within), "{schema} {within}");
        assert!(!takes(&schema, beyond), "{schema} {beyond}");
    }
}

#[test]
fn a_regular_expression_matches_the_whole_text() {
    let grammar = Grammar::Regex(r"[A-Z]{2}-\d{3}(\.[a-z]+)?".into());
    let constraint = compiler().compile(&grammar).unwrap();
    for seed in 0..40 {
        let text = speak(&mut constraint.clone(), seed);
        let (head, tail) = text.split_once('.').map_or((&text[..], None), |(head, tail)| (head, Some(tail)));
        let (letters, digits) = head.split_once('-').unwrap();
        assert!(letters.len() == 2 && letters.bytes().all(|b| b.is_ascii_uppercase()), "{text}");
        assert!(digits.chars().count() == 3 && digits.chars().all(char::is_numeric), "{text}");
        assert!(tail.is_none_or(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_lowercase())), "{text}");
    }
}

#[test]
fn anchors_at_the_ends_of_a_regular_expression_are_taken_for_granted() {
    for (source, text) in [("^ab$", "ab"), (r"^a\$", "a$"), (r"^a\\$", "a\\"), ("^(a|a)$", "a")] {
        let mut constraint = compiler().compile(&Grammar::Regex(source.into())).unwrap();
        assert_eq!(speak(&mut constraint, 3), text, "{source}");
    }
}

#[test]
fn a_lark_grammar_is_followed() {
    let sums = "start: term (\" \" OP \" \" term)*\nterm: NUMBER | \"(\" start \")\"\nOP: \"+\" | \"-\"\nNUMBER: /[0-9]{1,3}/\n";
    let constraint = compiler().compile(&Grammar::Lark(sums.into())).unwrap();
    for seed in 0..40 {
        let text = speak(&mut constraint.clone(), seed);
        let mut open = 0i32;
        for c in text.chars() {
            assert!("0123456789+- ()".contains(c), "{text}");
            open += i32::from(c == '(') - i32::from(c == ')');
            assert!(open >= 0, "{text}");
        }
        assert_eq!(open, 0, "{text}");
    }
}

#[test]
fn one_of_the_choices_is_said_and_each_can_be() {
    let choices: Vec<String> =
        ["yes", "yes, but", "no", "\"quoted\\\"", "größer\n", "a / b"].map(String::from).into();
    let constraint = compiler().compile(&Grammar::Choice(choices.clone())).unwrap();
    let said: Vec<String> = (0..200).map(|seed| speak(&mut constraint.clone(), seed)).collect();
    assert!(said.iter().all(|text| choices.contains(text)), "{said:?}");
    for choice in &choices {
        assert!(said.contains(choice), "{choice:?} was never said");
    }
}

#[test]
fn a_constraint_says_whether_its_text_may_or_must_end() {
    let tokens = |text| tokenizer().encode(text, Markup::Literal).unwrap();
    let mut constraint = compiler().compile(&Grammar::Regex("a+b?".into())).unwrap();
    assert_eq!(constraint.progress(), Progress::Unfinished);
    tokens("a").iter().for_each(|token| constraint.accept(*token).unwrap());
    assert_eq!(constraint.progress(), Progress::MayEnd);
    assert!(demo::eos().iter().all(|eos| constraint.mask().unwrap().allows(*eos)));
    tokens("b").iter().for_each(|token| constraint.accept(*token).unwrap());
    assert_eq!(constraint.progress(), Progress::MustEnd);
    let ends: TokenMask = demo::eos().iter().copied().collect();
    assert!(constraint.mask().unwrap().iter().eq(ends.iter()));
    constraint.accept(demo::eos()[0]).unwrap();
    assert_eq!(constraint.progress(), Progress::MustEnd);
}

#[test]
fn a_token_that_is_not_allowed_changes_nothing() {
    let mut constraint = compiler().compile(&Grammar::Choice(vec!["left".into(), "right".into()])).unwrap();
    let before = constraint.mask().unwrap().clone();
    let wrong = (0..).find(|token| !before.allows(*token)).unwrap();
    assert_eq!(constraint.accept(wrong), Err(ConstraintError::NotAllowed { token: wrong }));
    assert_eq!(constraint.accept(u32::MAX), Err(ConstraintError::NotAllowed { token: u32::MAX }));
    assert_eq!(constraint.mask().unwrap(), &before);
    assert!(["left", "right"].contains(&&speak(&mut constraint, 1)[..]));
}

#[test]
fn a_clone_goes_its_own_way() {
    let grammar = Grammar::JsonSchema(order_schema());
    let mut whole = compiler().compile(&grammar).unwrap();
    let mut tokens = Vec::new();
    let mut clones = Vec::new();
    demo::speak_with(&mut whole, 5, |constraint, token| {
        clones.push(constraint.clone());
        tokens.push(token);
    });
    assert!(tokens.len() > 10);
    for (at, mut clone) in clones.into_iter().enumerate().step_by(3) {
        // The same tokens, told to a fresh constraint, lead to the same mask.
        let mut fresh = compiler().compile(&grammar).unwrap();
        tokens[..at].iter().for_each(|token| fresh.accept(*token).unwrap());
        assert_eq!(fresh.mask().unwrap(), clone.mask().unwrap(), "after {at} tokens");
        let said = tokenizer().decode(&tokens[..at], octavo_text::SpecialTokens::Skip).unwrap();
        let text = said + &speak(&mut clone, 100 + at as u64);
        check_order(&serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
    }
}

#[test]
fn forced_tokens_are_allowed_and_lead_where_the_text_must_go() {
    let schema = json!({"const": {"temperature_celsius": 20}});
    let mut constraint = compiler().compile(&Grammar::JsonSchema(schema)).unwrap();
    let mut forced_any = false;
    for position in 0..200 {
        if constraint.progress() == Progress::MustEnd {
            break;
        }
        for token in constraint.forced() {
            forced_any = true;
            constraint.accept(token).unwrap();
        }
        if constraint.progress() != Progress::MustEnd {
            let mut logits = vec![0.0; tokenizer().vocab_size()];
            let mut sampler = Sampler::new(SamplingParams::default(), &[]).unwrap();
            let token =
                sampler.sample(&mut logits, position, Some(constraint.mask().unwrap())).unwrap().token;
            constraint.accept(token).unwrap();
        }
    }
    assert!(forced_any && constraint.progress() == Progress::MustEnd);
}

#[test]
fn special_tokens_are_never_part_of_a_text() {
    let mut constraint = compiler().compile(&Grammar::Regex("(?s:.)*".into())).unwrap();
    let mask = constraint.mask().unwrap();
    let special = mask.iter().filter(|token| tokenizer().is_special(*token));
    assert!(special.eq(demo::eos().iter().copied()), "only what ends it");
    assert!(mask.count() as usize > tokenizer().vocab_size() / 2);
    let name = "<|im_end|>".to_string();
    let mut spelled = compiler().compile(&Grammar::Choice(vec![name.clone()])).unwrap();
    assert!(spelled.forced().iter().all(|token| !tokenizer().is_special(*token)));
    assert_eq!(speak(&mut spelled, 1), name, "its characters, which end nothing");
}

#[test]
fn a_compiler_wants_end_tokens_that_exist() {
    let refused = |eos: &[u32]| GrammarCompiler::new(tokenizer(), eos).unwrap_err();
    assert_eq!(refused(&[]), CompilerError::NoEndToken);
    let vocab = tokenizer().vocab_size();
    let beyond = CompilerError::UnknownEndToken { token: vocab as u32, vocab };
    assert_eq!(refused(&[0, vocab as u32]), beyond);
}

#[test]
fn constraints_and_compilers_can_move_between_threads() {
    fn moves<T: Send + Clone>() {}
    fn shared<T: Send + Sync + Clone>() {}
    moves::<octavo_engine::Constraint>();
    shared::<GrammarCompiler>();
}
