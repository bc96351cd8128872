//! Turns that call tools, as different templates read them.

mod common;

use common::{messages, template};
use octavo_text::ChatInput;
use serde_json::{Value, json};

fn rendered(source: &str, arguments: Value) -> String {
    let turns = messages(json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": null,
        "tool_calls": [{"id": "123456789", "type": "function",
            "function": {"name": "look", "arguments": arguments}}]}]));
    template(source).render(&ChatInput::new(&turns)).unwrap()
}

/// As DeepSeek's distilled models have it: a call is what has no content, and its arguments are a string.
const NULL_AND_TEXT: &str = "{% for message in messages %}\
    {% if message['role'] == 'assistant' and message['content'] is none %}\
    {% for tool in message['tool_calls'] %}\
    {{ '<call>' + tool['function']['name'] + ' ' + tool['function']['arguments'] }}{% endfor %}{% endif %}\
    {% if message['content'] is not none %}<{{ message['role'] }}>{{ message['content'] }}{% endif %}{% endfor %}";

#[test]
fn a_template_that_knows_a_call_by_its_null_content_gets_null() {
    assert_eq!(rendered(NULL_AND_TEXT, json!("{\"a\":1}")), "<user>u<call>look {\"a\":1}");
}

#[test]
fn arguments_sent_as_an_object_become_text_for_a_template_that_reads_text() {
    assert_eq!(rendered(NULL_AND_TEXT, json!({"a": [1, "é"]})), "<user>u<call>look {\"a\": [1, \"é\"]}");
}

#[test]
fn a_template_that_would_print_none_gets_empty_content() {
    let source = "Answer None or call.{% for m in messages %}<{{ m.content }}>\
        {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{\"a\":1}")), "Answer None or call.<u><>look{\"a\": 1}");
}

#[test]
fn a_template_that_adds_to_content_gets_empty_content() {
    let source = "{% for m in messages %}{{ '<' + m.content + '>' }}\
        {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{\"a\":1}")), "<u><>look{\"a\": 1}");
}

#[test]
fn a_template_that_skips_null_content_gets_null_as_it_was_sent() {
    let source = "{% for m in messages %}{% if m.content is not none %}<{{ m.content }}>\n{% endif %}\
        {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{\"a\":1}")), "<u>\nlook{\"a\": 1}");
}

#[test]
fn arguments_printed_as_they_are_stay_json() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}\
        {{ c.function.name }} {{ c.function.arguments }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{\"a\":true}")), "look {\"a\":true}");
}

#[test]
fn numbers_too_large_keep_their_digits() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}\
        {{ c.function.name }} {{ a if a is string else a | tojson }}{% endfor %}{% endfor %}";
    let large = "{\"id\":[12345678901234567890123456789]}";
    assert_eq!(rendered(source, json!(large)), format!("look {large}"));
    let larger = "{\"id\":100000000000000000000}";
    assert_eq!(rendered(source, json!(larger)), format!("look {larger}"));
    let fits = "{\"id\":18446744073709551615,\"x\":1.5}";
    assert_eq!(rendered(source, json!(fits)), "look {\"id\": 18446744073709551615, \"x\": 1.5}");
}

#[test]
fn arguments_that_are_no_object_stay_as_they_were_said() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}\
        {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("[1]")), "look \"[1]\"");
}

#[test]
fn a_template_that_leaves_objects_out_gets_text() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}\
        {{ c.function.name }} {% if a is string %}{{ a }}{% endif %}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!({"a": 1})), "look {\"a\": 1}");
}

#[test]
fn a_template_that_says_none_by_itself_gets_null_as_it_was_sent() {
    let source = "Answer None or call.{% for m in messages %}<{% if m.content is none %}-{% else %}{{ m.content }}\
        {% endif %}>{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}\
        {% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{\"a\":1}")), "Answer None or call.<u><->look{\"a\": 1}");
}

#[test]
fn what_is_said_beside_a_call_is_kept() {
    let turns =
        messages(json!([{"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "123456789",
        "type": "function", "function": {"name": "look", "arguments": "{}"}}]}]));
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %} {{ c.function.name }}\
        {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(template(source).render(&ChatInput::new(&turns)).unwrap(), "Let me look. look{}");
}

#[test]
fn a_turn_without_calls_and_content_is_empty() {
    let turns = messages(json!([{"role": "assistant", "content": null, "tool_calls": []}, {"role": "x"}]));
    let source = "{% for m in messages %}<{{ m.content }}{{ m.content is none }}>{% endfor %}";
    assert_eq!(template(source).render(&ChatInput::new(&turns)).unwrap(), "<False><False>");
    // For a template that knows a call by its null content, too.
    let source = "{% for m in messages %}<{{ m.content is none }}>{% for c in m.tool_calls %}{{ c.function.name }}\
        {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(rendered(source, json!("{}")), "<False><True>look{}");
    assert_eq!(template(source).render(&ChatInput::new(&turns)).unwrap(), "<False><False>");
}
