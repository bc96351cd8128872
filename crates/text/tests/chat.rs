//! Conversations to text, against renderings by `transformers`.

mod common;

use common::{demo_dir, messages, template};
use octavo_text::{ChatInput, ChatTemplate, Message, MessageAt, RenderError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Case {
    template: String,
    name: String,
    messages: Vec<Message>,
    tools: Vec<Value>,
    add_generation_prompt: bool,
    extra: Map<String, Value>,
    expected: String,
}

fn source(name: &str) -> &'static str {
    match name {
        "llama3" => include_str!("fixtures/templates/llama3.jinja"),
        "qwen3" => include_str!("fixtures/templates/qwen3.jinja"),
        "gemma3" => include_str!("fixtures/templates/gemma3.jinja"),
        "constructs" => include_str!("fixtures/templates/constructs.jinja"),
        other => panic!("no template {other}"),
    }
}

fn check(templates: &[&str]) {
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures/renderings.json")).unwrap();
    let mut seen = 0;
    for case in cases.iter().filter(|case| templates.contains(&case.template.as_str())) {
        let template = match case.template.as_str() {
            "demo" => ChatTemplate::from_dir(&demo_dir()).unwrap(),
            name => template(source(name)),
        };
        let input = ChatInput {
            messages: &case.messages,
            tools: &case.tools,
            add_generation_prompt: case.add_generation_prompt,
            extra: Some(&case.extra),
        };
        let text = template
            .render(&input)
            .unwrap_or_else(|error| panic!("{} {}: {error}", case.template, case.name));
        for (line, (ours, theirs)) in text.lines().zip(case.expected.lines()).enumerate() {
            assert_eq!(ours, theirs, "{} {}, line {}", case.template, case.name, line + 1);
        }
        assert_eq!(text, case.expected, "{} {}", case.template, case.name);
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn the_demo_model_renders_as_transformers_renders_it() {
    check(&["demo"]);
}

#[test]
fn a_llama_3_template_renders_as_transformers_renders_it() {
    check(&["llama3"]);
}

#[test]
fn a_qwen_3_template_renders_as_transformers_renders_it() {
    check(&["qwen3"]);
}

#[test]
fn a_gemma_3_template_renders_as_transformers_renders_it() {
    check(&["gemma3"]);
}

#[test]
fn the_constructs_templates_use_render_as_in_jinja() {
    check(&["constructs"]);
}

#[test]
fn a_template_that_raises_says_why_and_at_which_message() {
    let gemma = template(source("gemma3"));
    let turns = messages(json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "same"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "same"},
        {"role": "user", "content": "same"},
    ]));
    let error = gemma.render(&ChatInput::new(&turns)).unwrap_err();
    let RenderError::Raised { reason, at } = &error else { panic!("{error}") };
    assert_eq!(reason, "Conversation roles must alternate user/assistant/user/assistant/...");
    // The loop skips the system message, and the message at fault has equals before it.
    assert_eq!(at.as_ref().unwrap().role, "user");
    assert!(error.to_string().contains("message 5 (role \"user\")"), "{error}");
}

#[test]
fn a_raise_outside_a_loop_blames_the_conversation() {
    let error = template("{{ raise_exception('no way') }}").render(&ChatInput::new(&[])).unwrap_err();
    assert!(matches!(&error, RenderError::Raised { reason, at: None } if reason == "no way"), "{error}");
    assert_eq!(error.to_string(), "the model's chat template refuses the conversation: no way");
}

#[test]
fn a_raise_inside_a_macro_keeps_its_reason() {
    let source = "{% macro deny(m) %}{{ raise_exception('not ' ~ m.role) }}{% endmacro %}\
                  {% for message in messages %}{{ deny(message) }}{% endfor %}";
    let turns = [Message::new("critic", "x")];
    let error = template(source).render(&ChatInput::new(&turns)).unwrap_err();
    assert!(matches!(&error, RenderError::Raised { reason, .. } if reason == "not critic"), "{error}");
}

#[test]
fn a_failing_template_says_the_line() {
    let error = template("a\nb\n{{ messages[0].nothing.more }}").render(&ChatInput::new(&[])).unwrap_err();
    assert!(matches!(error, RenderError::Failed { line: 3, .. }), "{error}");
}

#[test]
fn parts_are_joined_for_a_template_that_reads_strings_only() {
    let turns = messages(json!([{"role": "user", "content": [
        {"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]));
    let text = ChatTemplate::from_dir(&demo_dir()).unwrap().render(&ChatInput::new(&turns)).unwrap();
    assert_eq!(text, "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n");
    // Printing a list as such is not reading it.
    for (source, expected) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "one\ntwo"),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", "\"one\\ntwo\""),
    ] {
        assert_eq!(template(source).render(&ChatInput::new(&turns)).unwrap(), expected);
    }
}

#[test]
fn a_string_becomes_a_part_for_a_template_that_reads_parts_only() {
    let source = "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}[{{ part.text }}]\
                  {% endif %}{% endfor %}{% endfor %}";
    let turns = [Message::new("user", "one")];
    assert_eq!(template(source).render(&ChatInput::new(&turns)).unwrap(), "[one]");
}

#[test]
fn arguments_of_a_call_given_as_a_string_are_printed_as_an_object() {
    let turns = messages(json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null,
        "tool_calls": [{"function": {"name": "f", "arguments": "{\"z\":1,\"a\":[2]}"}}]}]));
    let extra = json!({"date_string": "today"});
    let input = ChatInput { extra: extra.as_object(), ..ChatInput::new(&turns) };
    let text = template(source("llama3")).render(&input).unwrap();
    assert!(text.contains(r#"{"name": "f", "parameters": {"z": 1, "a": [2]}}"#), "{text}");
}

#[test]
fn an_image_is_refused_where_the_request_is_parsed() {
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
    assert!(serde_json::from_value::<Message>(image).is_err());
}

#[test]
fn tools_choose_the_template_made_for_them() {
    let both = template(json!([
        {"name": "default", "template": "plain {{ tools is none }}"},
        {"name": "tool_use", "template": "tools {{ tools | length }}"},
    ]));
    let input = ChatInput::new(&[]);
    assert_eq!(both.render(&input).unwrap(), "plain True");
    let tools = [json!({"name": "f"})];
    assert_eq!(both.render(&ChatInput { tools: &tools, ..input }).unwrap(), "tools 1");
    let for_tools = template(json!([{"name": "tool_use", "template": "tools {{ tools is none }}"}]));
    assert_eq!(for_tools.render(&input).unwrap(), "tools True", "there is no other");
    let one = template("only {{ tools | length }}");
    assert_eq!(one.render(&ChatInput { tools: &tools, ..input }).unwrap(), "only 1");
}

#[test]
fn special_tokens_are_variables_and_extra_ones_can_be_given() {
    let template = template(
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ mood }}{{ messages | length }}{{ documents is none }}",
    );
    let extra = json!({"mood": "calm", "messages": "never these"});
    let input = ChatInput { extra: extra.as_object(), ..ChatInput::new(&[]) };
    assert_eq!(template.render(&input).unwrap(), "<s></s>Falsecalm0True");
}

#[test]
fn the_date_is_todays() {
    let text = template("{{ strftime_now('%Y-%m-%d') }}").render(&ChatInput::new(&[])).unwrap();
    let fields: Vec<u32> = text.split('-').map(|field| field.parse().unwrap()).collect();
    assert!(fields[0] >= 2024 && (1..=12).contains(&fields[1]) && (1..=31).contains(&fields[2]), "{text}");
    let wrong = template("{{ strftime_now('%Q!') }}").render(&ChatInput::new(&[])).unwrap_err();
    assert!(wrong.to_string().contains("not a time format"), "{wrong}");
}

#[test]
fn a_message_is_located_by_position_and_role() {
    let source = "{% for message in messages %}{% if message.role == 'bad' %}{{ raise_exception('x') }}{% endif %}{% endfor %}";
    let turns = [Message::new("user", "a"), Message::new("bad", "b")];
    let error = template(source).render(&ChatInput::new(&turns)).unwrap_err();
    let RenderError::Raised { at, .. } = error else { panic!("{error}") };
    assert_eq!(at, Some(MessageAt { index: 1, role: "bad".into() }));
    // The innermost loop may be another one.
    let source = "{% for message in messages %}{% for part in message.content %}{% if message.role == 'bad' %}\
                  {{ raise_exception('x') }}{% endif %}{{ part.text }}{% endfor %}{% endfor %}";
    let part = json!({"type": "text", "text": "a"});
    let turns =
        messages(json!([{"role": "bad", "content": [part, part]}, {"role": "user", "content": [part]},
        {"role": "user", "content": [part]}]));
    let error = template(source).render(&ChatInput::new(&turns)).unwrap_err();
    let RenderError::Raised { at, .. } = error else { panic!("{error}") };
    assert_eq!(at, Some(MessageAt { index: 0, role: "bad".into() }));
}
