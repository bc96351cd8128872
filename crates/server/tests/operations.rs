//! What those who run a server look at: models, health, cache, pins, keys, ids.

mod support;

use octavo::Options;
use octavo_server::{Cors, ServerOptions};
use serde_json::{Value, json};
use std::sync::LazyLock;
use support::{Model, TestServer, engine_options};

static SERVER: LazyLock<TestServer> = LazyLock::new(TestServer::start);
const PATH: &str = "/v1/completions";

#[test]
fn the_model_is_listed_and_found_by_name() {
    let list = SERVER.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!("octavo-demo"), &json!("model")));
    assert_eq!((&model["max_model_len"], &model["owned_by"]), (&json!(1024), &json!("octavo")));
    assert!(model["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(SERVER.get("/v1/models/octavo-demo").json(), *model);
    let unknown = SERVER.get("/v1/models/other");
    assert_eq!((unknown.status, &unknown.error()["code"]), (404, &json!("model_not_found")));
}

#[test]
fn a_model_answers_to_every_name_it_was_given() {
    let model_names = vec!["org/big".to_owned(), "small".to_owned()];
    let server =
        TestServer::with(ServerOptions { model_names, ..ServerOptions::default() }, engine_options());
    for name in ["org/big", "small"] {
        let answer = server.ask(PATH, json!({"model": name, "prompt": "a", "max_tokens": 1}));
        assert_eq!(answer["model"], "org/big");
        let model = server.get(&format!("/v1/models/{name}")).json();
        assert_eq!((&model["id"], &model["root"]), (&json!(name), &json!("octavo-demo")));
    }
    let list = server.get("/v1/models").json();
    assert_eq!((&list["data"][0]["id"], &list["data"][1]["id"]), (&json!("org/big"), &json!("small")));
    for (path, mut body) in [
        (PATH, json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [5]})),
        ("/v1/cache/pins", json!({"prompt": "a"})),
    ] {
        body["model"] = "octavo-demo".into();
        let unknown = server.post(path, &body);
        let error = unknown.error();
        assert_eq!((unknown.status, &error["code"]), (404, &json!("model_not_found")), "{path}");
        assert!(error["message"].as_str().unwrap().ends_with("only \"org/big\", \"small\""), "{error}");
    }
}

#[test]
fn a_name_is_text_on_the_page_that_says_what_this_is() {
    let model_names = vec!["<b>&\"".to_owned()];
    let server =
        TestServer::with(ServerOptions { model_names, ..ServerOptions::default() }, engine_options());
    let home = server.get("/").text().to_owned();
    assert!(home.contains("<b>&lt;b>&amp;&quot;</b>"), "{home}");
    assert!(home.contains(server.get("/version").json()["device"].as_str().unwrap()), "{home}");
}

#[test]
fn a_healthy_server_says_so_with_its_last_audit() {
    let health = SERVER.get("/health");
    assert_eq!(health.status, 200);
    let body = health.json();
    assert_eq!((&body["status"], &body["last_audit"]["ok"]), (&json!("ok"), &json!(true)));
    assert_eq!(SERVER.get("/ready").json()["ready"], true);
    let version = SERVER.get("/version").json();
    assert_eq!(
        (&version["version"], &version["device"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!(SERVER.engine.device()))
    );
    let home = SERVER.get("/");
    assert!(home.header("content-type").unwrap().starts_with("text/html"));
    assert!(home.text().contains("octavo-demo"));
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let text = "fn main() { println!(\"grüß dich\"); }";
    let tokenized = SERVER.ask("/tokenize", json!({"prompt": text, "return_token_strs": true}));
    let tokens = tokenized["tokens"].as_array().unwrap();
    assert_eq!(tokenized["count"], tokens.len());
    let strings = tokenized["token_strs"].as_array().unwrap();
    assert_eq!((strings.len(), &strings[0]), (tokens.len(), &json!("fn")));
    assert_eq!(tokenized["max_model_len"], 1024);
    assert_eq!(SERVER.ask("/detokenize", json!({"tokens": tokens}))["prompt"], text);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = SERVER.ask("/tokenize", json!({"messages": messages}));
    assert!(chat["token_strs"].is_null());
    let rendered = SERVER.ask("/detokenize", json!({"tokens": chat["tokens"]}));
    assert_eq!(rendered["prompt"], "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    // A text need not fit the model to be counted.
    let refused = SERVER.post("/tokenize", &json!({"prompt": "word ".repeat(250_000)}));
    assert_eq!((refused.status, &refused.error()["code"]), (400, &json!("context_length_exceeded")));
    let long = SERVER.ask("/tokenize", json!({"prompt": "word ".repeat(50_000)}));
    assert!(long["count"].as_u64().unwrap() >= 50_000, "{}", long["count"]);
    let vocabulary = 6144;
    SERVER.ask("/detokenize", json!({"tokens": [vocabulary - 1]}));
    let unknown = SERVER.post("/detokenize", &json!({"tokens": [1, vocabulary]}));
    assert_eq!((unknown.status, &unknown.error()["param"]), (400, &json!("tokens[1]")));
    let unfinished = SERVER.ask("/tokenize", json!({"messages": messages, "add_generation_prompt": false}));
    assert!(unfinished["count"].as_u64() < chat["count"].as_u64(), "{unfinished}");
}

#[test]
fn a_prompt_begins_as_the_model_wants_it_unless_told_otherwise() {
    let model = Model::with("begin", |config| {
        config["add_bos_token"] = true.into();
        config["bos_token"] = "<|im_start|>".into();
    });
    let engine = Options { source: model.source(), ..engine_options() };
    let server = TestServer::with(ServerOptions::default(), engine);
    for (said, tokens) in
        [(json!({}), 2), (json!({"add_special_tokens": true}), 2), (json!({"add_special_tokens": false}), 1)]
    {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        assert_eq!(server.ask("/tokenize", body.clone())["count"], tokens, "{said}");
        assert_eq!(server.ask(PATH, body)["usage"]["prompt_tokens"], tokens, "{said}");
    }
}

fn run(server: &TestServer, prompt: &[u32], salt: &str) -> u64 {
    let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
    server.ask(PATH, body)["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn the_caches_pages_add_up_and_match_its_map() {
    let server = TestServer::start();
    let check = |cache: &Value| {
        let count = |name: &str| cache["pages"][name].as_u64().unwrap();
        assert_eq!(count("used") + count("cached") + count("reserved") + count("free"), count("total"));
        let runs = cache["map"]["runs"].as_str().unwrap();
        let mut pages = 0;
        let mut cached = 0;
        for run in runs.split_inclusive(|letter: char| !letter.is_ascii_digit()) {
            let (len, letter) = run.split_at(run.len() - 1);
            let len: u64 = len.parse().unwrap();
            pages += len;
            cached += if letter == "c" { len } else { 0 };
        }
        assert_eq!((pages, cached), (count("total"), count("cached")), "{cache}");
        let counted = |name: &str| cache["counters"][name].as_u64().unwrap();
        assert_eq!(counted("pages_allocated") - counted("pages_freed"), count("used") + count("cached"));
    };
    check(&server.get("/v1/cache").json());
    run(&server, &(100..180).collect::<Vec<u32>>(), "x");
    server.wait_for_cache("pages are cached", |cache| cache["pages"]["cached"] == 5);
    let cache = server.get("/v1/cache").json();
    check(&cache);
    assert_eq!(cache["counters"]["lookups"], 1);
    assert_eq!(cache["bytes"]["total"], cache["page_bytes"].as_u64().unwrap() * 256);
}

#[test]
fn running_sequences_are_shown_by_tenant() {
    let server = TestServer::start();
    let body = json!({"prompt": "Once", "max_tokens": 900, "ignore_eos": true, "cache_salt": "secret", "stream": true});
    let client =
        server.open("POST", PATH, &[("Content-Type", "application/json")], body.to_string().as_bytes());
    server.wait_for_cache("it is shown", |cache| {
        assert!(!cache.to_string().contains("secret"), "a salt is not shown");
        let (sequences, tenant) = (&cache["sequences"], &cache["tenants"][0]);
        sequences[0]["pages"] == tenant["pages"] && tenant["sequences"] == 1 && tenant["tenant"] != ""
    });
    drop(client);
}

#[test]
fn cached_pages_are_shown_by_tenant_when_nothing_runs() {
    let server = TestServer::start();
    let prompt: Vec<u32> = (100..180).collect();
    run(&server, &prompt, "one");
    run(&server, &prompt[..48], "two");
    run(&server, &prompt[..64], "two");
    server.wait_for_cache("pages are cached", |cache| cache["pages"]["cached"] == 9);
    let cache = server.get("/v1/cache").json();
    let tenants = cache["tenants"].as_array().unwrap();
    let mut cached: Vec<u64> = tenants.iter().map(|one| one["cached_pages"].as_u64().unwrap()).collect();
    cached.sort_unstable();
    assert_eq!(cached, [4, 5], "{cache}");
    assert!(tenants.iter().all(|one| one["sequences"] == 0 && one["pages"] == 0 && one["tenant"] != ""));
    server.delete("/v1/cache/prefixes");
    assert_eq!(server.get("/v1/cache").json()["tenants"], json!([]));
}

#[test]
fn prefixes_can_be_dropped_and_pinned() {
    let server = TestServer::start();
    let (kept, dropped): (Vec<u32>, Vec<u32>) = ((100..200).collect(), (300..400).collect());
    let not_yet = server.post("/v1/cache/pins", &json!({"tokens": kept, "cache_salt": "a"}));
    assert_eq!((not_yet.status, &not_yet.error()["code"]), (409, &json!("not_cached")));
    assert_eq!((run(&server, &kept, "a"), run(&server, &dropped, "a")), (0, 0));
    let pin = server.post("/v1/cache/pins", &json!({"tokens": kept, "cache_salt": "a"}));
    assert_eq!(pin.status, 201, "{}", pin.text());
    let id = pin.json()["id"].clone();
    let pinned = json!({"id": id, "object": "cache.pin", "pinned_tokens": 96, "prompt_tokens": 100});
    assert_eq!(pin.json(), pinned);
    server.wait_for_cache("nobody uses a page", |cache| cache["pages"]["used"] == 0);
    let pages = server.get("/v1/cache").json()["pages"].clone();
    let freed = server.delete("/v1/cache/prefixes").json();
    assert_eq!(freed["freed_pages"], pages["cached"].as_u64().unwrap() - 6, "{pages}");
    assert_eq!((run(&server, &kept, "a"), run(&server, &dropped, "a")), (96, 0));
    let unpin = format!("/v1/cache/pins/{id}");
    let unpinned = json!({"id": id, "object": "cache.pin", "deleted": true});
    assert_eq!(server.delete(&unpin).json(), unpinned);
    let again = server.delete(&unpin);
    assert_eq!((again.status, &again.error()["code"]), (404, &json!("no_such_pin")));
    server.wait_for_cache("nobody uses a page", |cache| cache["pages"]["used"] == 0);
    server.delete("/v1/cache/prefixes");
    assert_eq!(run(&server, &kept, "a"), 0);
}

#[test]
fn pins_are_listed_until_they_are_given_up() {
    let server = TestServer::start();
    let pins = || server.get("/v1/cache/pins").json();
    assert_eq!(pins(), json!({"object": "list", "data": []}));
    let (mine, all): (Vec<u32>, Vec<u32>) = ((100..200).collect(), (300..340).collect());
    run(&server, &mine, "a");
    server.ask(PATH, json!({"prompt": all, "max_tokens": 1}));
    let first = server.post("/v1/cache/pins", &json!({"tokens": mine, "cache_salt": "a"})).json();
    let second = server.post("/v1/cache/pins", &json!({"tokens": all})).json();
    let tenants = server.get("/v1/cache").json()["tenants"].clone();
    let mine = tenants.as_array().unwrap().iter().find(|one| one["tenant"] != "").unwrap();
    let kept = |pin: &Value, tokens: u32, tenant: &Value| json!({"id": pin["id"], "object": "cache.pin", "pinned_tokens": tokens, "pages": tokens / 16, "tenant": tenant});
    let (first_kept, second_kept) = (kept(&first, 96, &mine["tenant"]), kept(&second, 32, &json!("")));
    assert_eq!(pins()["data"], json!([first_kept, second_kept]));
    server.delete(&format!("/v1/cache/pins/{}", first["id"]));
    assert_eq!(pins()["data"], json!([second_kept]));
}

#[test]
fn a_pin_can_be_a_text_or_a_conversation() {
    let server = TestServer::start();
    let long = "Ownership moves. ".repeat(20);
    let messages = json!([{"role": "user", "content": long}]);
    server.ask(PATH, json!({"prompt": long, "max_tokens": 1}));
    server.ask("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1}));
    for body in [json!({"prompt": long}), json!({"messages": messages})] {
        let pin = server.post("/v1/cache/pins", &body);
        assert_eq!(pin.status, 201, "{}", pin.text());
    }
}

#[test]
fn without_a_prefix_cache_nothing_can_be_pinned_and_it_is_said_why() {
    let engine = Options { prefix_cache: false, ..engine_options() };
    let server = TestServer::with(ServerOptions::default(), engine);
    let refused = server.post("/v1/cache/pins", &json!({"tokens": [1, 2, 3]}));
    assert_eq!((refused.status, &refused.error()["code"]), (409, &json!("prefix_cache_off")));
}

#[test]
fn only_known_keys_are_let_in() {
    let api_keys = vec!["alpha".to_owned(), "beta".to_owned()];
    let server = TestServer::with(ServerOptions { api_keys, ..ServerOptions::default() }, engine_options());
    let models = |key: Option<&str>| {
        let header = key.map(|key| format!("Bearer {key}"));
        let headers: Vec<(&str, &str)> =
            header.iter().map(|value| ("Authorization", value.as_str())).collect();
        server.send("GET", "/v1/models", &headers, b"")
    };
    assert_eq!((models(Some("alpha")).status, models(Some("beta")).status), (200, 200));
    for (key, code) in
        [(None, "missing_api_key"), (Some("gamma"), "invalid_api_key"), (Some(""), "missing_api_key")]
    {
        let refused = models(key);
        assert_eq!(refused.status, 401, "{key:?}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        let error = refused.error();
        assert_eq!((&error["code"], &error["type"]), (&json!(code), &json!("authentication_error")));
    }
    assert_eq!(server.get("/v1/cache").status, 401);
    assert_eq!(server.get("/v1/nothing").status, 401);
    for path in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn pages_of_other_origins_read_answers_only_if_allowed() {
    let origin = "https://example.org";
    let ask = |server: &TestServer, from: &str| {
        let answer = server.send("GET", "/v1/models", &[("Origin", from)], b"");
        let allowed = answer.header("access-control-allow-origin").map(str::to_owned);
        if allowed.is_some() {
            let shown = answer.header("access-control-expose-headers");
            assert_eq!(shown, Some("x-request-id,retry-after"));
        }
        allowed
    };
    assert_eq!(ask(&SERVER, origin), None);
    let cors = Cors::Origins(vec![origin.into()]);
    let api_keys = vec!["key".to_owned()];
    let server =
        TestServer::with(ServerOptions { cors, api_keys, ..ServerOptions::default() }, engine_options());
    assert_eq!(ask(&server, origin).as_deref(), Some(origin));
    assert_eq!(ask(&server, "https://other.org"), None);
    // A browser asks first, and without the key.
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type"),
    ];
    let preflight = server.send("OPTIONS", "/v1/chat/completions", &headers, b"");
    assert_eq!(preflight.status, 200);
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("authorization"));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("GET,POST,DELETE"));
    assert_eq!(preflight.header("access-control-max-age"), Some("600"));
    let all =
        TestServer::with(ServerOptions { cors: Cors::Any, ..ServerOptions::default() }, engine_options());
    assert_eq!(ask(&all, origin).as_deref(), Some("*"));
}

#[test]
fn a_request_keeps_its_id() {
    let mine = SERVER.send("GET", "/v1/models", &[("X-Request-Id", "trace-17")], b"");
    assert_eq!(mine.header("x-request-id"), Some("trace-17"));
    let made = SERVER.get("/v1/nothing");
    assert_eq!(made.header("x-request-id").unwrap().len(), 32);
    let headers = [("X-Request-Id", "trace-18"), ("Content-Type", "application/json")];
    let answer = SERVER.send("POST", PATH, &headers, br#"{"prompt": "a", "max_tokens": 1}"#);
    assert_eq!(answer.json()["id"], "cmpl-trace-18");
}

#[test]
fn a_prompt_longer_than_this_server_takes_is_refused() {
    let options = ServerOptions { max_prompt_tokens: Some(10), ..ServerOptions::default() };
    let server = TestServer::with(options, engine_options());
    server.ask(PATH, json!({"prompt": vec![5; 10], "max_tokens": 1}));
    let refused = |path: &str, body: Value| {
        let refused = server.post(path, &body);
        let error = refused.error();
        assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        error
    };
    refused(PATH, json!({"prompt": vec![5; 11], "max_tokens": 1}));
    let chat = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        refused("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1}))
    };
    let few = chat("one two three four five six seven");
    assert_eq!(few["param"], "messages");
    assert!(few["message"].as_str().unwrap().ends_with("this server takes at most 10"), "{few}");
    // What cannot have so few tokens is not tokenised at all.
    let long = "word ".repeat(1000);
    for error in [refused(PATH, json!({"prompt": long, "max_tokens": 1})), chat(&long)] {
        assert!(error["message"].as_str().unwrap().contains("tokenised: 10 tokens of"), "{error}");
    }
    // As many prompts as the model could take, each as long as may be here.
    server.ask(PATH, json!({"prompt": vec!["a"; 256], "max_tokens": 1}));
    server.ask("/tokenize", json!({"prompt": long}));
}
