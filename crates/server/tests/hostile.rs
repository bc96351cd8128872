//! Bodies and requests that are wrong in every way: each gets a 4xx that says why, and the server lives on.

mod support;

use octavo_server::ServerOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::LazyLock;
use std::time::Duration;
use support::{Answer, TestServer, engine_options};

static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
    let quick = Duration::from_millis(500);
    let options = ServerOptions { header_timeout: quick, body_timeout: quick, ..ServerOptions::default() };
    TestServer::with(options, engine_options())
});
const BOTH: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];

fn good(server: &TestServer) {
    let answer = server.ask(BOTH[0], json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}

fn refused(path: &str, body: &[u8]) -> Answer {
    let answer = SERVER.send("POST", path, JSON, body);
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
    assert!((400..500).contains(&answer.status), "{path} {shown}: {} {}", answer.status, answer.text());
    answer.error();
    answer
}

#[test]
fn bodies_that_are_not_what_they_should_be_are_refused() {
    let nested = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "true",
        "3",
        "\"x\"",
        "{\"prompt\": \"a\"",
        "{\"prompt\": \"a",
        "{'prompt': 'a'}",
        "{\"prompt\": \"a\",}",
        "{\"prompt\": NaN}",
        "{\"prompt\": Infinity}",
        "{} {}",
        "{\"prompt\": \"\\ud800\"}",
        "{\"prompt\": \"a\", \"prompt\": \"b\"}",
        "{\"a\": 1}",
        "\u{feff}{}",
        "{\"prompt\": \"\u{1}\"}",
    ]
    .iter()
    .map(|body| body.as_bytes().to_vec())
    .chain([
        b"{\"prompt\": \"\xff\xfe\"}".to_vec(),
        b"\x00\x01\x02".to_vec(),
        nested("[", "]").into_bytes(),
        nested("{\"a\":", "}").into_bytes(),
        format!("{{\"prompt\": {}}}", nested("[", "]")).into_bytes(),
        format!("{{\"messages\": {}}}", nested("[", "]")).into_bytes(),
        format!("{{\"prompt\": \"a\", \"guided_json\": {}}}", nested("{\"a\":", "}")).into_bytes(),
        format!("{{\"prompt\": \"a\", \"x\": {}}}", "9".repeat(100_000)).into_bytes(),
    ])
    .collect();
    for body in &bodies {
        for path in BOTH {
            assert_eq!(refused(path, body).status, 400);
        }
    }
    good(&SERVER);
}

#[test]
fn every_field_of_a_wrong_type_is_refused_by_name() {
    let fields = [
        "model",
        "n",
        "best_of",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "seed",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop_token_ids",
        "ignore_eos",
        "priority",
        "time_limit_ms",
        "cache_salt",
        "stream",
        "stream_options",
        "response_format",
        "guided_regex",
        "guided_grammar",
        "guided_choice",
        "structured_outputs",
        "logprobs",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "user",
    ];
    let wrong = [json!({"a": [1]}), json!([{}]), json!([[]]), json!({"": {"": null}})];
    for field in fields {
        for value in &wrong {
            let mut completion = json!({"prompt": "a", "max_tokens": 1});
            completion[field] = value.clone();
            let mut chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
            chat[field] = value.clone();
            for (path, body) in [(BOTH[0], completion), (BOTH[1], chat)] {
                let answer = refused(path, body.to_string().as_bytes());
                let error = answer.error();
                let named = error["param"].as_str().unwrap_or("").starts_with(field);
                assert!(named, "{path} {field} {value}: {error}");
            }
        }
    }
    good(&SERVER);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for (body, param) in [
        (json!({"prompt": "a", "n": 1_000_000_000}), "n"),
        (json!({"prompt": "a", "n": -1}), "n"),
        (json!({"prompt": "a", "n": 0}), "n"),
        (json!({"prompt": "a", "n": 1.5}), "n"),
        (json!({"prompt": "a", "n": 9}), "n"),
        (json!({"prompt": "a", "best_of": 4_000_000_000u32}), "best_of"),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "a", "max_tokens": -5}), "max_tokens"),
        (json!({"prompt": "a", "max_tokens": 1e30}), "max_tokens"),
        (json!({"prompt": "a", "temperature": -1}), "temperature"),
        (json!({"prompt": "a", "temperature": 1e300}), "temperature"),
        (json!({"prompt": "a", "top_p": 0}), "top_p"),
        (json!({"prompt": "a", "top_p": 2}), "top_p"),
        (json!({"prompt": "a", "min_p": -0.1}), "min_p"),
        (json!({"prompt": "a", "presence_penalty": 3}), "presence_penalty"),
        (json!({"prompt": "a", "frequency_penalty": -3}), "frequency_penalty"),
        (json!({"prompt": "a", "repetition_penalty": 0}), "repetition_penalty"),
        (json!({"prompt": "a", "logit_bias": {"6144": 1}}), "logit_bias.6144"),
        (json!({"prompt": "a", "logit_bias": {"1": 101}}), "logit_bias.1"),
        (json!({"prompt": "a", "stop_token_ids": [4_000_000_000u32]}), "stop_token_ids"),
        (json!({"prompt": "a", "seed": u64::MAX}), "seed"),
        (json!({"prompt": [6144]}), "prompt"),
        (json!({"prompt": [4_294_967_295u32]}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": vec!["a"; 257]}), "prompt"),
        (json!({"prompt": vec![5; 1024]}), "prompt"),
        (json!({"prompt": [[5], vec![5; 1024]]}), "prompt[1]"),
        (json!({"prompt": ["a", ""]}), "prompt[1]"),
        (json!({"prompt": "word ".repeat(2000)}), "prompt"),
        (json!({"prompt": "a", "model": "gpt-4"}), "model"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "mystery": 1}), "mystery"),
    ] {
        let shown: String = body.to_string().chars().take(100).collect();
        let answer = refused(BOTH[0], body.to_string().as_bytes());
        assert_eq!(answer.error()["param"], param, "{shown}: {}", answer.text());
    }
    for (messages, param) in [
        (json!([]), "messages"),
        (json!([{"role": "user", "content": "word ".repeat(2000)}]), "messages"),
        (json!([{"content": "a"}]), "messages[0]"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
            "messages[0].content[0].type",
        ),
    ] {
        let answer = refused(BOTH[1], json!({"messages": messages}).to_string().as_bytes());
        assert_eq!(answer.error()["param"], param, "{}", answer.text());
    }
    good(&SERVER);
}

#[test]
fn an_unknown_model_is_not_found() {
    let answer = SERVER.post(BOTH[1], &json!({"model": "x", "messages": [{"role": "user", "content": "a"}]}));
    assert_eq!((answer.status, &answer.error()["code"]), (404, &json!("model_not_found")));
}

#[test]
fn a_body_that_is_too_large_is_not_read() {
    let large = vec![b' '; 10 << 20];
    let answer = SERVER.send("POST", BOTH[0], JSON, &large);
    assert_eq!((answer.status, &answer.error()["code"]), (413, &json!("body_too_large")));
    // The same without saying so beforehand.
    let mut stream = SERVER.connect();
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..160 {
        stream.write_all(b"10000\r\n").unwrap();
        stream.write_all(&large[..65536]).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).status, 413);
    // Whoever asks before sending it is told not to, if that is known by then.
    let mut stream = SERVER.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
    let mut stream = SERVER.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"a00000\r\n").unwrap();
    stream.write_all(&large).unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").unwrap();
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
    good(&SERVER);
}

/// What is answered to a body whose chunks are these.
fn chunked(server: &TestServer, chunks: &str) -> Answer {
    let mut stream = server.connect();
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}{chunks}").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn a_body_may_be_as_large_as_it_is_said() {
    let server =
        TestServer::with(ServerOptions { max_body: 1024, ..ServerOptions::default() }, engine_options());
    for (len, status) in [(1024, 200), (1025, 413)] {
        let body = format!("{:len$}", r#"{"prompt": "a", "max_tokens": 1}"#);
        assert_eq!(server.send("POST", BOTH[0], JSON, body.as_bytes()).status, status, "{len}");
        assert_eq!(chunked(&server, &format!("{len:x}\r\n{body}\r\n0\r\n\r\n")).status, status, "{len}");
    }
    // Whoever was told to go on is read to the end: more than the system keeps for either side.
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 25]).unwrap();
    stream.write_all(b"2000000\r\n").unwrap();
    stream.write_all(&vec![b' '; 32 << 20]).unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
}

#[test]
fn a_body_that_breaks_off_is_refused_however_much_of_it_has_come() {
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let answer = chunked(&SERVER, &format!("{:x}\r\n{body}\r\nno length\r\n", body.len()));
    assert_eq!((answer.status, &answer.error()["code"]), (400, &json!("broken_body")));
}

#[test]
fn wrong_paths_methods_and_types_are_told_in_the_same_form() {
    for (method, path, status, code) in [
        ("GET", "/v1/nothing", 404, "unknown_path"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/unknown/model", 404, "model_not_found"),
        ("DELETE", "/v1/cache/pins/99", 404, "no_such_pin"),
        ("DELETE", "/v1/cache/pins/x", 404, "no_such_pin"),
        ("GET", "/v1/models/%ff", 400, "invalid_path"),
        ("GET", "/v1/models/org/%c3%28", 400, "invalid_path"),
        ("DELETE", "/v1/cache/pins/%ff", 400, "invalid_path"),
        ("GET", "/%ff", 404, "unknown_path"),
        ("BREW", "/", 405, "method_not_allowed"),
    ] {
        let answer = SERVER.send(method, path, &[], b"");
        assert_eq!((answer.status, &answer.error()["code"]), (status, &json!(code)), "{method} {path}");
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer = SERVER.send("POST", BOTH[0], &form, br#"{"prompt": "a"}"#);
    assert_eq!(answer.status, 415);
    answer.error();
    let packed = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    let answer = SERVER.send("POST", BOTH[0], &packed, br#"{"prompt": "a"}"#);
    assert_eq!((answer.status, &answer.error()["code"]), (415, &json!("unsupported_media_type")));
}

#[test]
fn errors_reach_those_who_send_all_they_have_before_they_read() {
    // More than the system keeps for either side.
    let large = vec![b' '; 32 << 20];
    for (path, kind, status) in [
        ("/v1/nothing", "application/json", 404),
        ("/v1/models", "application/json", 405),
        (BOTH[0], "text/plain", 415),
        (BOTH[0], "application/json", 413),
    ] {
        let mut stream = SERVER.connect();
        let length = large.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&large).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(Answer::parse(&bytes).status, status, "{path}");
    }
}

#[test]
fn a_grammar_that_is_too_complex_is_said_to_be() {
    let body = json!({"prompt": "a", "guided_regex": "a{1000000}"});
    let error = refused(BOTH[0], body.to_string().as_bytes()).error();
    assert_eq!((&error["param"], &error["code"]), (&json!("guided_regex"), &json!("grammar_too_complex")));
    assert!(error["message"].as_str().unwrap().starts_with("its grammar is too complex"), "{error}");
}

#[test]
fn more_choices_than_a_batch_holds_are_refused_with_the_flag_that_sets_it() {
    for field in ["n", "best_of"] {
        let mut body = json!({"prompt": "a"});
        body[field] = 9.into();
        let error = refused(BOTH[0], body.to_string().as_bytes()).error();
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(field) && message.ends_with("(--max-batch-size)"), "{message}");
        assert_eq!(error["param"], field);
    }
}

#[test]
fn a_client_that_never_sends_its_body_is_given_up() {
    let mut stream = SERVER.open("POST", BOTH[0], &[("Content-Length", "100")], b"{\"prompt\"");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let answer = Answer::parse(&bytes);
    let error = answer.error();
    assert_eq!((answer.status, &error["code"]), (408, &json!("body_timeout")));
    assert!(error["message"].as_str().unwrap().ends_with("within 0.5 s"), "{error}");
    // Nor one that never ends its head.
    let mut stream = SERVER.connect();
    stream.write_all(b"POST /v1/completions HT").unwrap();
    stream.read_to_end(&mut Vec::new()).expect("the server hangs up before this client does");
    good(&SERVER);
}

#[test]
fn what_is_not_http_does_no_harm() {
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01"[..], b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", &[b'A'; 100_000]]
    {
        let mut stream = SERVER.connect();
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    good(&SERVER);
}

#[test]
fn random_changes_to_a_good_body_never_break_the_server() {
    let good_bodies = [
        json!({"prompt": ["a", "b"], "max_tokens": 1, "logprobs": 1, "stop": ["x"], "logit_bias": {"5": 1}, "n": 2}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 1,
            "response_format": {"type": "text"}, "stream": true, "stream_options": {"include_usage": true}}),
    ];
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..400 {
        let path = BOTH[round % 2];
        let mut body = good_bodies[round % 2].to_string().into_bytes();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..body.len());
            match random.u8(..3) {
                0 => body[at] = random.u8(..),
                1 => drop(body.remove(at)),
                _ => body.insert(at, b"{}[]\",:0-e.\\"[random.usize(..12)]),
            }
        }
        let answer = SERVER.send("POST", path, JSON, &body);
        let shown = String::from_utf8_lossy(&body).into_owned();
        assert!(answer.status == 200 || (400..500).contains(&answer.status), "{shown}: {}", answer.status);
        if answer.status != 200 {
            let _: Value = answer.error();
        }
    }
    good(&SERVER);
}
