//! `/v1/completions` of the real server.

mod support;

use octavo::{KvBackend, KvMemory, Options};
use octavo_server::ServerOptions;
use serde_json::{Value, json};
use std::sync::LazyLock;
use support::{TestServer, engine_options};

static SERVER: LazyLock<TestServer> = LazyLock::new(TestServer::start);
const PATH: &str = "/v1/completions";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn streamed(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[test]
fn a_prompt_is_continued_in_the_form_of_openai() {
    let answer = SERVER.ask(PATH, json!({"prompt": "The Vec type", "max_tokens": 8, "temperature": 0}));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "octavo-demo");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert!(!text(&answer).is_empty());
    assert!(choice["logprobs"].is_null() && choice["stop_reason"].is_null());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let total = usage["prompt_tokens"].as_u64().unwrap() + 8;
    assert_eq!(usage["total_tokens"], total);
}

#[test]
fn sixteen_tokens_are_generated_if_none_are_asked_for() {
    let answer = SERVER.ask(PATH, json!({"prompt": "The Vec type", "temperature": 0, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    for sampling in [json!({"temperature": 0}), json!({"temperature": 0.9, "seed": 7, "n": 2})] {
        let mut body = json!({"prompt": "A slice is", "max_tokens": 40});
        body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        let whole = SERVER.ask(PATH, body.clone());
        body["stream"] = true.into();
        let chunks = SERVER.chunks(PATH, body);
        for choice in whole["choices"].as_array().unwrap() {
            assert_eq!(
                streamed(&chunks, choice["index"].as_u64().unwrap()),
                choice["text"].as_str().unwrap()
            );
        }
        let last = chunks.last().unwrap();
        assert!(last["choices"][0]["finish_reason"].is_string(), "{last}");
        assert!(last.get("usage").is_none(), "{last}");
    }
}

#[test]
fn a_stream_ends_with_usage_if_asked() {
    let body = json!({"prompt": "A slice is", "max_tokens": 5, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    let chunks = SERVER.chunks(PATH, body);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
}

#[test]
fn a_stream_shows_how_much_of_the_prompt_was_read_if_asked() {
    let prompt: Vec<u32> = (100..700).collect();
    let body = json!({"prompt": prompt, "max_tokens": 2, "stream": true, "cache_salt": "progress",
        "stream_options": {"include_progress": true}});
    let chunks = SERVER.chunks(PATH, body);
    let progress: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk.get("progress")).collect();
    let last = progress.last().expect("progress came");
    assert_eq!((&last["processed_tokens"], &last["prompt_tokens"]), (&json!(600), &json!(600)));
    assert_eq!(last["cached_tokens"], 0);
    let with_progress = chunks.iter().filter(|chunk| chunk.get("progress").is_some());
    assert!(with_progress.into_iter().all(|chunk| chunk["choices"] == json!([])));
    // Of two prompts, the first in the cache.
    let mut body =
        json!({"prompt": [prompt, [5, 6, 7]], "max_tokens": 2, "stream": true, "cache_salt": "progress"});
    let plain = SERVER.chunks(PATH, body.clone());
    assert!(plain.iter().all(|chunk| chunk.get("progress").is_none()));
    body["stream_options"] = json!({"include_progress": true});
    let chunks = SERVER.chunks(PATH, body);
    let last = |index: u32| {
        let mut progress = chunks.iter().rev().filter_map(|chunk| chunk.get("progress"));
        progress.find(|progress| progress["index"] == index).cloned()
    };
    let (first, second) = (last(0).expect("of the first"), last(1).expect("of the second"));
    assert!(first["cached_tokens"].as_u64().unwrap() >= 592, "{first}");
    assert_eq!((&second["prompt_tokens"], &second["cached_tokens"]), (&json!(3), &json!(0)));
}

#[test]
fn prompts_come_as_text_or_tokens_one_or_many() {
    let tokens = |text: &str| SERVER.ask("/tokenize", json!({"prompt": text}))["tokens"].clone();
    let (a, b) = ("The String type", "An iterator");
    let one = |prompt: Value| {
        let answer = SERVER.ask(PATH, json!({"prompt": prompt, "max_tokens": 6, "temperature": 0}));
        let texts = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone());
        texts.collect::<Vec<Value>>()
    };
    let (of_a, of_b) = (one(json!(a)), one(json!(b)));
    assert_eq!(one(tokens(a)), of_a);
    let both = [of_a.clone(), of_b.clone()].concat();
    assert_eq!(one(json!([a, b])), both);
    assert_eq!(one(json!([tokens(a), tokens(b)])), both);
    assert_eq!(one(json!([b, a, b])), [of_b.clone(), of_a, of_b].concat());
}

/// What a stream says of one choice: its text, and the lists of its logprobs.
fn joined(chunks: &[Value], index: u64) -> Value {
    let own = |chunk: &&Value| chunk["choices"][0]["index"] == index;
    let list = |name: &str| -> Vec<Value> {
        let lists =
            chunks.iter().filter(own).filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    let names = ["text_offset", "token_logprobs", "tokens", "top_logprobs"];
    let logprobs: serde_json::Map<String, Value> =
        names.map(|name| (name.to_owned(), list(name).into())).into_iter().collect();
    json!({"text": streamed(chunks, index), "logprobs": logprobs})
}

#[test]
fn choices_of_several_prompts_come_prompt_by_prompt() {
    let ask = |prompt: Value, n: u32| json!({"prompt": prompt, "n": n, "max_tokens": 4, "temperature": 0, "echo": true, "logprobs": 1});
    let prompts = ["The String type", "An iterator"];
    let alone = prompts.map(|prompt| SERVER.ask(PATH, ask(json!(prompt), 1))["choices"][0].clone());
    let mut together = ask(json!(prompts), 2);
    let whole = SERVER.ask(PATH, together.clone());
    together["stream"] = true.into();
    let chunks = SERVER.chunks(PATH, together);
    for (index, expected) in [&alone[0], &alone[0], &alone[1], &alone[1]].into_iter().enumerate() {
        let mut expected = expected.clone();
        expected["index"] = index.into();
        assert_eq!(whole["choices"][index], expected);
        let streamed = joined(&chunks, index as u64);
        assert_eq!((&streamed["text"], &streamed["logprobs"]), (&expected["text"], &expected["logprobs"]));
    }
}

#[test]
fn what_might_have_been_a_stop_string_is_said_at_the_end() {
    let mut body = json!({"prompt": "The Vec type", "max_tokens": 10, "temperature": 0});
    let whole = text(&SERVER.ask(PATH, body.clone())).to_owned();
    body["stop"] = format!("{}\u{1}", &whole[whole.len() - 2..]).into();
    let answer = SERVER.ask(PATH, body.clone());
    assert_eq!((text(&answer), &answer["choices"][0]["finish_reason"]), (&whole[..], &json!("length")));
    body["stream"] = true.into();
    let chunks = SERVER.chunks(PATH, body);
    assert_eq!(streamed(&chunks, 0), whole);
    assert!(chunks.last().unwrap()["choices"][0]["stop_reason"].is_null());
}

#[test]
fn several_choices_are_numbered_and_differ() {
    let body =
        json!({"prompt": "Once upon", "n": 3, "max_tokens": 12, "temperature": 1.5, "seed": 1, "top_k": 0});
    let answer = SERVER.ask(PATH, body);
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<u64> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    assert_eq!(answer["usage"]["completion_tokens"], 36);
}

#[test]
fn the_best_of_several_is_returned() {
    let body =
        json!({"prompt": "Once upon", "best_of": 4, "max_tokens": 8, "temperature": 1.0, "ignore_eos": true});
    let answer = SERVER.ask(PATH, body);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    assert_eq!(answer["usage"]["completion_tokens"], 32);
}

#[test]
fn a_stop_string_ends_the_text_and_is_left_out() {
    let body = json!({"prompt": "The Vec type", "max_tokens": 30, "temperature": 0});
    let whole = text(&SERVER.ask(PATH, body.clone())).to_owned();
    let stop: String = whole.chars().skip(4).take(3).collect();
    let before = whole.split(&stop).next().unwrap();
    for (stop, stream) in [(json!(stop), false), (json!(["never said", stop]), true)] {
        let mut body = body.clone();
        body["stop"] = stop.clone();
        if stream {
            body["stream"] = true.into();
            let chunks = SERVER.chunks(PATH, body);
            assert_eq!(streamed(&chunks, 0), before);
            let last = &chunks.last().unwrap()["choices"][0];
            assert_eq!((&last["finish_reason"], &last["stop_reason"]), (&json!("stop"), &stop[1]));
        } else {
            let answer = SERVER.ask(PATH, body);
            assert_eq!(text(&answer), before);
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            assert_eq!(answer["choices"][0]["stop_reason"], stop);
        }
    }
    let mut kept = body;
    kept["stop"] = stop.clone().into();
    kept["include_stop_str_in_output"] = true.into();
    assert_eq!(text(&SERVER.ask(PATH, kept)), format!("{before}{stop}"));
}

#[test]
fn a_stop_string_ends_no_text_before_the_least_number_of_tokens() {
    let body =
        json!({"prompt": "fn main", "max_tokens": 8, "temperature": 0, "stop": "{", "ignore_eos": true});
    let early = SERVER.ask(PATH, body.clone());
    assert_eq!(early["choices"][0]["finish_reason"], "stop");
    let early = early["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(early < 8, "the string comes too late to show anything: {early}");
    let mut unstopped = body.clone();
    unstopped["stop"] = Value::Null;
    let whole = text(&SERVER.ask(PATH, unstopped)).to_owned();
    for stream in [false, true] {
        let mut body = body.clone();
        body["min_tokens"] = 8.into();
        body["stream"] = stream.into();
        if stream {
            assert_eq!(streamed(&SERVER.chunks(PATH, body), 0), whole);
        } else {
            let answer = SERVER.ask(PATH, body);
            assert_eq!(
                (text(&answer), &answer["choices"][0]["finish_reason"]),
                (&whole[..], &json!("length"))
            );
            assert_eq!(answer["usage"]["completion_tokens"], 8);
        }
    }
    // One token fewer than it took, and it ends the text as before.
    let mut body = body;
    body["min_tokens"] = (early - 1).into();
    assert_eq!(SERVER.ask(PATH, body)["usage"]["completion_tokens"], early);
}

#[test]
fn a_stop_token_ends_the_text() {
    let body = json!({"prompt": "The Vec type", "max_tokens": 10, "temperature": 0, "logprobs": 0});
    let whole = SERVER.ask(PATH, body.clone());
    let tokens = whole["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    let third = SERVER.ask("/tokenize", json!({"prompt": tokens[2], "add_special_tokens": false}));
    let mut body = body;
    body["stop_token_ids"] = third["tokens"].clone();
    let answer = SERVER.ask(PATH, body);
    let first_two: String = tokens[..2].iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!((text(&answer), &answer["choices"][0]["finish_reason"]), (first_two.as_str(), &json!("stop")));
}

#[test]
fn logprobs_are_lists_side_by_side() {
    let body = json!({"prompt": "The Vec type", "max_tokens": 6, "temperature": 0, "logprobs": 3});
    let answer = SERVER.ask(PATH, body.clone());
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), 6, "{name}");
    }
    let joined: String = list("tokens").iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, text(&answer));
    for (at, top) in list("top_logprobs").iter().enumerate() {
        let top = top.as_object().unwrap();
        let chosen = list("tokens")[at].as_str().unwrap().to_owned();
        // Greedy: the chosen token is the likeliest, hence one of the three.
        assert_eq!(top.len(), 3);
        let best = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert_eq!(top[&chosen].as_f64(), Some(best));
        assert!(best <= 0.0);
    }
    let offsets: Vec<u64> = list("text_offset").iter().map(|at| at.as_u64().unwrap()).collect();
    assert_eq!(offsets[0], 0);
    assert_eq!(offsets[1], list("tokens")[0].as_str().unwrap().chars().count() as u64);
    let mut body = body;
    body["stream"] = true.into();
    let chunks = SERVER.chunks(PATH, body);
    let streamed = |name: &str| -> Vec<Value> {
        let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    for name in ["tokens", "token_logprobs", "text_offset"] {
        assert_eq!(streamed(name), list(name), "{name}");
    }
}

#[test]
fn echo_repeats_the_prompt_with_its_logprobs() {
    let body =
        json!({"prompt": "The Vec type", "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 1});
    let answer = SERVER.ask(PATH, body.clone());
    assert!(text(&answer).starts_with("The Vec type"));
    let logprobs = &answer["choices"][0]["logprobs"];
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let values = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(values.len(), prompt_tokens + 3);
    assert!(values[0].is_null() && values[1..].iter().all(Value::is_number));
    let mut stream = body.clone();
    stream["stream"] = true.into();
    assert_eq!(streamed(&SERVER.chunks(PATH, stream), 0), text(&answer));
    let mut only = body;
    only["max_tokens"] = 0.into();
    let echoed = SERVER.ask(PATH, only);
    assert_eq!(text(&echoed), "The Vec type");
    assert_eq!(
        echoed["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[..],
        values[..prompt_tokens]
    );
    assert_eq!(echoed["usage"]["completion_tokens"], 0);
}

#[test]
fn a_bias_forces_a_token_and_a_seed_repeats_itself() {
    let forced = json!({"prompt": "The", "max_tokens": 4, "temperature": 0, "logit_bias": {"500": 100}, "ignore_eos": true});
    let answer = SERVER.ask(PATH, forced);
    let token = SERVER.ask("/detokenize", json!({"tokens": [500, 500, 500, 500]}));
    assert_eq!(text(&answer), token["prompt"].as_str().unwrap());
    let drawn = |seed: u64| {
        let body = json!({"prompt": "The", "max_tokens": 20, "temperature": 1.5, "top_k": -1, "seed": seed});
        text(&SERVER.ask(PATH, body)).to_owned()
    };
    assert_eq!(drawn(3), drawn(3));
    assert_ne!(drawn(3), drawn(4));
}

#[test]
fn a_second_identical_request_finds_its_prompt_cached() {
    let prompt: Vec<u32> = (1000..1100).collect();
    let body = |salt: &str| json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
    let cached =
        |salt: &str| SERVER.ask(PATH, body(salt))["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached("one"), 0);
    assert_eq!(cached("one"), 96);
    // How likely its tokens are need not be computed for one that only wants those of the answer.
    let mut likely = body("one");
    likely["logprobs"] = 1.into();
    assert_eq!(SERVER.ask(PATH, likely)["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
    // Another tenant must not even see that it is there.
    assert_eq!(cached("two"), 0);
}

#[test]
fn a_stream_is_the_same_for_both_back_ends() {
    let contiguous =
        Options { kv_backend: KvBackend::Contiguous, kv_memory: KvMemory::Automatic, ..engine_options() };
    let contiguous = TestServer::with(ServerOptions::default(), contiguous);
    for sampling in [json!({"temperature": 0}), json!({"temperature": 1.2, "seed": 9, "n": 3})] {
        let mut body =
            json!({"prompt": "The String type", "max_tokens": 50, "stream": true, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        let (paged, contiguous) = (SERVER.chunks(PATH, body.clone()), contiguous.chunks(PATH, body.clone()));
        for index in 0..body["n"].as_u64().unwrap_or(1) {
            let text = streamed(&paged, index);
            assert!(text.len() > 50, "{text}");
            assert_eq!(text, streamed(&contiguous, index));
        }
    }
}

#[test]
fn prompts_that_are_too_long_together_are_refused_before_they_are_tokenised() {
    SERVER.ask(PATH, json!({"prompt": vec!["word ".repeat(500); 2], "max_tokens": 1}));
    let prompt = "word ".repeat(1000);
    let refused = SERVER.post(PATH, &json!({"prompt": vec![&prompt; 256], "max_tokens": 1}));
    let error = refused.error();
    assert_eq!((refused.status, &error["param"]), (400, &json!("prompt")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("1280000 bytes together"), "{error}");
}

/// Trying again would not help.
#[test]
fn more_prompts_than_may_wait_are_no_matter_of_time() {
    let engine = Options { max_waiting: 4, ..engine_options() };
    let server = TestServer::with(ServerOptions::default(), engine);
    server.ask(PATH, json!({"prompt": vec!["a"; 4], "max_tokens": 1}));
    let refused = server.post(PATH, &json!({"prompt": vec!["a"; 5], "max_tokens": 1}));
    let error = refused.error();
    assert_eq!((refused.status, &error["param"]), (400, &json!("prompt")), "{error}");
    assert!(
        error["message"].as_str().unwrap().contains("5 prompts, and at most 4 requests may wait"),
        "{error}"
    );
    server.join();
}

/// Bytes that are no UTF-8 are in the text as what replaces them.
#[test]
fn offsets_count_what_is_in_the_text() {
    let body = json!({"prompt": [225, 102], "echo": true, "logprobs": 1, "max_tokens": 3, "temperature": 0});
    let choice = SERVER.ask(PATH, body)["choices"][0].clone();
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    for (token, at) in
        logprobs["tokens"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap())
    {
        let (token, at) = (token.as_str().unwrap(), at.as_u64().unwrap() as usize);
        if !token.starts_with("bytes:") {
            assert_eq!(text[at..].iter().take(token.chars().count()).collect::<String>(), token, "{choice}");
        }
    }
    // An answer completes no character of its prompt.
    let body = json!({"prompt": [72, 130], "echo": true, "logprobs": 1, "max_tokens": 2, "temperature": 0,
        "logit_bias": {"105": 100}, "ignore_eos": true});
    let choice = SERVER.ask(PATH, body.clone())["choices"][0].clone();
    assert_eq!(choice["text"], "f\u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
    // Nor is a token left out of a stream that has no text yet, such as the first byte of a character.
    let mut body = body;
    body["logit_bias"] = json!({"130": 100});
    let choice = SERVER.ask(PATH, body.clone())["choices"][0].clone();
    body["stream"] = true.into();
    let streamed = joined(&SERVER.chunks(PATH, body), 0);
    assert_eq!((&streamed["text"], &streamed["logprobs"]), (&choice["text"], &choice["logprobs"]));
}
