//! `/v1/chat/completions` of the real server.

mod support;

use octavo::{Options, Tokens};
use octavo_server::ServerOptions;
use serde_json::{Value, json};
use std::sync::LazyLock;
use support::{Model, TestServer, engine_options};

static SERVER: LazyLock<TestServer> = LazyLock::new(TestServer::start);
const PATH: &str = "/v1/chat/completions";

fn question() -> Value {
    json!([{"role": "user", "content": "What does Vec::push do?"}])
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_conversation_is_answered_in_the_form_of_openai() {
    let answer = SERVER.ask(PATH, json!({"model": "octavo-demo", "messages": question(), "temperature": 0}));
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "stop");
    assert!(content(&answer).contains("element"), "{answer}");
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let mut body = json!({"messages": question(), "temperature": 0.8, "seed": 5, "n": 2, "max_tokens": 60});
    let whole = SERVER.ask(PATH, body.clone());
    body["stream"] = true.into();
    let chunks = SERVER.chunks(PATH, body);
    for index in [0, 1] {
        let choices: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(choices[0]["delta"]["role"], "assistant");
        let text: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, whole["choices"][index]["message"]["content"].as_str().unwrap());
        let (last, others) = choices.split_last().unwrap();
        assert_eq!(last["finish_reason"], whole["choices"][index]["finish_reason"]);
        assert!(others.iter().all(|choice| choice["finish_reason"].is_null()));
    }
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
}

#[test]
fn a_stop_string_is_named_and_its_beginning_alone_ends_nothing() {
    let ask = |stop: Value| {
        let mut body = json!({"messages": question(), "temperature": 0, "max_tokens": 10, "stop": stop});
        let whole = SERVER.ask(PATH, body.clone());
        body["stream"] = true.into();
        let chunks = SERVER.chunks(PATH, body);
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let streamed: String = choices.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(streamed, content(&whole));
        let (whole, last) = (&whole["choices"][0], &chunks.last().unwrap()["choices"][0]);
        assert_eq!(last["finish_reason"], whole["finish_reason"]);
        assert_eq!(last["stop_reason"], whole["stop_reason"]);
        (streamed, whole["finish_reason"].clone(), whole["stop_reason"].clone())
    };
    let (text, ..) = ask(Value::Null);
    let stop = &text[text.len() - 3..];
    let begun = format!("{stop}\u{1}");
    assert_eq!(ask(json!(begun)), (text.clone(), json!("length"), Value::Null));
    let before = text.split(stop).next().unwrap().to_owned();
    assert_eq!(ask(json!([begun, stop])), (before, json!("stop"), json!(stop)));
}

#[test]
fn choices_of_a_stream_begin_in_order() {
    let chunks =
        SERVER.chunks(PATH, json!({"messages": question(), "n": 4, "max_tokens": 2, "stream": true}));
    for (index, chunk) in chunks[..4].iter().enumerate() {
        let choice = &chunk["choices"][0];
        assert_eq!((&choice["index"], &choice["delta"]["role"]), (&json!(index), &json!("assistant")));
    }
}

#[test]
fn parts_of_text_are_as_good_as_a_string() {
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "What does "}, {"type": "text", "text": "Vec::push do?"}]}]);
    let of =
        |messages: Value| SERVER.ask(PATH, json!({"messages": messages, "temperature": 0, "max_tokens": 10}));
    let parts = of(parts);
    assert!(!content(&parts).is_empty());
    // How parts are joined is the template's business; the question must have reached it.
    let difference = parts["usage"]["prompt_tokens"].as_i64().unwrap()
        - of(question())["usage"]["prompt_tokens"].as_i64().unwrap();
    assert!(difference.abs() <= 2, "{difference}");
}

#[test]
fn either_name_of_the_limit_is_kept() {
    for name in ["max_tokens", "max_completion_tokens"] {
        let mut body = json!({"messages": question(), "temperature": 0});
        body[name] = 3.into();
        let answer = SERVER.ask(PATH, body);
        assert_eq!(answer["usage"]["completion_tokens"], 3, "{name}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{name}");
    }
}

#[test]
fn without_a_limit_an_answer_may_fill_the_context_and_needs_room_in_it() {
    let engine = Options { max_len: Some(Tokens(64)), ..engine_options() };
    let server = TestServer::with(ServerOptions::default(), engine);
    let of = |words: usize| json!([{"role": "user", "content": " a".repeat(words)}]);
    let count = |words| server.ask("/tokenize", json!({"messages": of(words)}))["count"].as_u64().unwrap();
    let full = (1..64).find(|words| count(*words) == 64).expect("a conversation of 64 tokens");
    for words in [1, full - 1] {
        let answer = server.ask(PATH, json!({"messages": of(words), "ignore_eos": true}));
        assert_eq!(answer["usage"]["total_tokens"], 64);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let refused = server.post(PATH, &json!({"messages": of(full)}));
    let error = refused.error();
    assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    assert_eq!(error["param"], "messages");
}

#[test]
fn logprobs_are_one_object_a_token() {
    let mut body = json!({"messages": question(), "temperature": 0, "max_tokens": 5, "logprobs": true,
        "top_logprobs": 2});
    let answer = SERVER.ask(PATH, body.clone());
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 5);
    let bytes = |token: &Value| -> Vec<u8> {
        token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
    };
    let joined: Vec<u8> = tokens.iter().flat_map(bytes).collect();
    assert_eq!(String::from_utf8(joined).unwrap(), content(&answer));
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        assert!(top[1]["logprob"].as_f64() <= top[0]["logprob"].as_f64());
    }
    body["stream"] = true.into();
    let chunks = SERVER.chunks(PATH, body);
    let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(lists.flatten().cloned().collect::<Vec<Value>>(), tokens);
}

#[test]
fn without_logprobs_there_are_none() {
    let answer = SERVER.ask(PATH, json!({"messages": question(), "max_tokens": 2}));
    assert!(answer["choices"][0]["logprobs"].is_null());
}

#[test]
fn what_a_schema_asks_for_is_what_comes() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "count"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for (field, value) in [("response_format", format), ("guided_json", schema)] {
        let mut body = json!({"messages": question(), "temperature": 1.0, "seed": 3, "max_tokens": 200});
        body[field] = value;
        let answer = SERVER.ask(PATH, body);
        let object: Value = serde_json::from_str(content(&answer)).unwrap_or_else(|_| panic!("{answer}"));
        assert!(object["name"].is_string() && object["count"].is_u64(), "{object}");
        assert_eq!(object.as_object().unwrap().len(), 2);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn every_kind_of_grammar_is_kept_to() {
    let ask = |field: &str, value: Value| {
        let mut body = json!({"messages": question(), "temperature": 1.0, "seed": 1, "max_tokens": 100});
        body[field] = value;
        content(&SERVER.ask(PATH, body)).to_owned()
    };
    let digits = ask("guided_regex", json!("[0-9]{4}"));
    assert!(digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{digits}");
    let chosen = ask("guided_choice", json!(["red", "green"]));
    assert!(["red", "green"].contains(&chosen.as_str()), "{chosen}");
    let lark = ask("guided_grammar", json!("start: \"ab\" \"cd\""));
    assert_eq!(lark, "abcd");
    let chosen = ask("structured_outputs", json!({"choice": ["yes", "no"]}));
    assert!(["yes", "no"].contains(&chosen.as_str()), "{chosen}");
}

#[test]
fn a_text_that_ignores_end_tokens_goes_on_as_long_as_its_grammar_lets_it() {
    let ask = |regex: &str| {
        let ends = json!({"0": 100, "2": 100});
        let body = json!({"messages": question(), "temperature": 0, "max_tokens": 12, "guided_regex": regex,
            "logit_bias": ends, "logprobs": true, "ignore_eos": true});
        let answer = SERVER.ask(PATH, body);
        let choice = &answer["choices"][0];
        assert_eq!(
            choice["logprobs"]["content"].as_array().unwrap().len() as u64,
            answer["usage"]["completion_tokens"]
        );
        (
            choice["finish_reason"].clone(),
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
            content(&answer).to_owned(),
        )
    };
    let (reason, tokens, _) = ask("[a-z ]+");
    assert_eq!((reason, tokens), (json!("length"), 12));
    let (reason, tokens, text) = ask("[a-z]{2,5}");
    assert_eq!((reason, text.len()), (json!("stop"), 5), "{text}");
    assert!(tokens <= 5, "{tokens}");
}

#[test]
fn a_grammar_that_makes_no_sense_is_refused_by_name() {
    for (field, value, param) in [
        ("guided_regex", json!("[0-9"), "guided_regex"),
        ("guided_grammar", json!("start: undefined_rule"), "guided_grammar"),
        ("guided_json", json!({"type": "nonsense"}), "guided_json"),
        ("guided_json", json!({"enum": [9_007_199_254_740_993u64]}), "guided_json"),
    ] {
        let mut body = json!({"messages": question(), "max_tokens": 5});
        body[field] = value;
        let answer = SERVER.post(PATH, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.error();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("invalid_grammar")));
    }
}

#[test]
fn a_second_identical_conversation_finds_its_prompt_cached() {
    let long = "Explain ownership. ".repeat(20);
    let body =
        json!({"messages": [{"role": "user", "content": long}], "max_tokens": 2, "cache_salt": "chat"});
    let cached = || {
        SERVER.ask(PATH, body.clone())["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(), 0);
    assert!(cached() >= 16);
}

/// A template adds to every message, however short.
#[test]
fn what_the_template_makes_of_many_messages_is_measured_before_it_is_tokenised() {
    let refused =
        SERVER.post(PATH, &json!({"messages": vec![json!({"role": "user", "content": "a"}); 20_000]}));
    let error = refused.error();
    assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("are the most that is tokenised"), "{error}");
}

/// The tokens of a prompt in a conversation with these fields, as text.
fn prompt(server: &TestServer, fields: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "hi", "name": "me"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let tokens = server.ask("/tokenize", body)["tokens"].clone();
    server.ask("/detokenize", json!({"tokens": tokens}))["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn a_template_is_given_all_that_it_may_ask_for_and_may_refuse() {
    let template = "{% if refuse %}{{ raise_exception('not like this') }}{% endif %}\
        {% for tool in tools or [] %}{{ tool.function.name }}+{% endfor %}\
        {% for message in messages %}{{ message.name }}:{{ message.content }}{% endfor %}\
        {% if add_generation_prompt %}>{% endif %}{{ mood or '' }}";
    let model = Model::with("template", |config| config["chat_template"] = template.into());
    let server =
        TestServer::with(ServerOptions::default(), Options { source: model.source(), ..engine_options() });
    let tools = json!([{"type": "function", "function": {"name": "look"}}]);
    let fields =
        json!({"tools": tools, "add_generation_prompt": false, "chat_template_kwargs": {"mood": "!"}});
    assert_eq!(prompt(&server, fields), "look+me:hi!");
    assert_eq!(prompt(&server, json!({})), "me:hi>");
    let refused =
        server.post(PATH, &json!({"messages": question(), "chat_template_kwargs": {"refuse": true}}));
    let error = refused.error();
    assert_eq!((refused.status, &error["param"]), (400, &json!("messages")));
    assert!(error["message"].as_str().unwrap().contains("not like this"), "{error}");
    // What a template may make long text of is measured before it gets to it.
    let tool = json!({"type": "function", "function": {"name": "f", "description": "a".repeat(100_000)}});
    let message = json!({"role": "user", "content": "a", "note": "a".repeat(100_000)});
    for body in [json!({"messages": question(), "tools": [tool]}), json!({"messages": [message]})] {
        let refused = server.post(PATH, &body);
        assert_eq!((refused.status, &refused.error()["code"]), (400, &json!("context_length_exceeded")));
    }
}

#[test]
fn a_model_without_a_template_holds_no_conversation() {
    let model = Model::with("no-template", |config| config["chat_template"] = Value::Null);
    let server =
        TestServer::with(ServerOptions::default(), Options { source: model.source(), ..engine_options() });
    let refused = server.post(PATH, &json!({"messages": question()}));
    assert_eq!((refused.status, &refused.error()["code"]), (400, &json!("no_chat_template")));
    server.ask("/v1/completions", json!({"prompt": "a", "max_tokens": 1}));
}
