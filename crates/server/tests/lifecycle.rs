//! Clients that go away, servers that are full, and the end of both.

mod support;

use octavo::{KvMemory, Options, Pages, Tokens};
use octavo_server::{ServeError, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::{Answer, TestServer, engine_options};

const PATH: &str = "/v1/completions";
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];

/// Takes a while: the longest answer there is.
fn long(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 4000, "ignore_eos": true, "temperature": 1.0, "stream": stream})
}

fn slow_engine() -> Options {
    Options { max_len: Some(Tokens(4096)), kv_memory: KvMemory::Pages(Pages(1024)), ..engine_options() }
}

fn start_long(server: &TestServer, stream: bool) -> TcpStream {
    server.open("POST", PATH, JSON, long(stream).to_string().as_bytes())
}

fn used(cache: &Value) -> u64 {
    cache["pages"]["used"].as_u64().unwrap()
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn a_client_that_goes_away_gives_its_pages_back() {
    let server = TestServer::with(ServerOptions::default(), slow_engine());
    for stream in [true, false] {
        let client = start_long(&server, stream);
        server.wait_for_cache("it runs", |cache| used(cache) > 0);
        drop(client);
        server.wait_for_cache("its pages are back", |cache| used(cache) == 0);
        let cache = server.get("/v1/cache").json();
        assert_eq!(cache["sequences"], json!([]));
    }
    let metrics = server.get("/metrics");
    let aborted =
        metrics.text().lines().find(|line| line.contains("finished_reason=\"abort\"")).unwrap().to_owned();
    assert!(aborted.ends_with(" 2"), "{aborted}");
    // Had they run to their end, they would have made 8000 tokens.
    let made =
        metrics.text().lines().find(|line| line.starts_with("octavo_generation_tokens_total")).unwrap();
    let made: f64 = made.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(made < 7000.0, "{made}");
}

#[test]
fn a_client_that_goes_away_while_it_waits_is_forgotten() {
    let server = TestServer::with(ServerOptions::default(), Options { max_batch: 1, ..slow_engine() });
    let running = start_long(&server, true);
    server.wait_for_cache("one runs", |cache| used(cache) > 0);
    let first = server.get("/v1/cache").json()["sequences"][0]["request"].clone();
    let waiting = start_long(&server, false);
    server.wait_for_cache("one waits", |cache| cache["waiting"] == 1);
    drop(waiting);
    // While the first still runs: it did not simply get its turn.
    server.wait_for_cache("nobody waits", |cache| {
        cache["waiting"] == 0 && cache["sequences"][0]["request"] == first
    });
    drop(running);
}

#[test]
fn a_client_that_goes_away_leaves_no_pin() {
    let server = TestServer::start();
    let prompt: Vec<u32> = (100..200).collect();
    server.ask(PATH, json!({"prompt": prompt, "max_tokens": 1}));
    let body = json!({"tokens": prompt}).to_string();
    for micros in (0..6000).step_by(30) {
        let client = server.open("POST", "/v1/cache/pins", JSON, body.as_bytes());
        std::thread::sleep(Duration::from_micros(micros));
        drop(client);
    }
    server.wait_for_metrics("octavo_http_connections 1\n");
    let metrics = server.wait_for_metrics("octavo_http_requests_in_flight 0\n");
    let pinned = "octavo_http_requests_total{path=\"/v1/cache/pins\",method=\"POST\",code=\"201\"} ";
    let told =
        metrics.lines().find_map(|line| line.strip_prefix(pinned)).map_or(0, |count| count.parse().unwrap());
    let kept = (0..200).filter(|id| server.delete(&format!("/v1/cache/pins/{id}")).status == 200).count();
    assert_eq!(kept, told, "pins are those that were told");
}

#[test]
fn a_stream_that_waits_shows_that_it_is_alive() {
    let keep_alive = Duration::from_millis(5);
    let options = ServerOptions { keep_alive, ..ServerOptions::default() };
    let server = TestServer::with(options, Options { max_batch: 1, ..slow_engine() });
    let running = start_long(&server, true);
    server.wait_for_cache("one runs", |cache| used(cache) > 0);
    let begun = Instant::now();
    let mut waiting = start_long(&server, true);
    let mut text = String::new();
    while text.matches(": still here\n\n").count() < 10 {
        let mut bytes = [0; 100];
        let read = waiting.read(&mut bytes).unwrap();
        text += std::str::from_utf8(&bytes[..read]).unwrap();
        assert!(read > 0 && !text.contains("data:"), "{text}");
    }
    assert!(begun.elapsed() >= 10 * keep_alive, "each of them has waited its time");
    drop((running, waiting));
}

#[test]
fn no_more_connections_are_open_than_may() {
    let options = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let server = TestServer::with(options, engine_options());
    let (mut first, mut second) = (server.connect(), server.connect());
    second.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n").unwrap();
    // Many requests, so that there is time to let the second in.
    let many = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50);
    let last = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    first.write_all((many + last).as_bytes()).unwrap();
    let mut answers = String::new();
    first.read_to_string(&mut answers).unwrap();
    assert!(answers.contains("octavo_http_connections 1\n"), "{answers}");
    drop(first);
    second.write_all(b"Connection: close\r\n\r\n").unwrap();
    // Its turn comes when the first has gone.
    assert_eq!(answer(second).status, 200);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let server =
        TestServer::with(ServerOptions::default(), Options { max_batch: 1, max_waiting: 1, ..slow_engine() });
    let running = start_long(&server, true);
    server.wait_for_cache("one runs", |cache| used(cache) > 0);
    let waiting = start_long(&server, true);
    server.wait_for_cache("one waits", |cache| cache["waiting"] == 1);
    let refused = server.post(PATH, &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("queue_full")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    drop((running, waiting));
    server.wait_for_cache("all is free", |cache| used(cache) == 0 && cache["waiting"] == 0);
    server.ask(PATH, json!({"prompt": "a", "max_tokens": 1}));
}

#[test]
fn a_list_of_prompts_that_does_not_fit_the_queue_leaves_nothing_behind() {
    let server =
        TestServer::with(ServerOptions::default(), Options { max_batch: 1, max_waiting: 8, ..slow_engine() });
    let running = start_long(&server, true);
    server.wait_for_cache("one runs", |cache| used(cache) > 0);
    let waiting = start_long(&server, true);
    server.wait_for_cache("one waits", |cache| cache["waiting"] == 1);
    let refused = server.post(PATH, &json!({"prompt": vec!["a"; 8], "max_tokens": 1000, "ignore_eos": true}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    server.wait_for_cache("the list is gone", |cache| cache["waiting"] == 1);
    drop((running, waiting));
    server.wait_for_cache("all is free", |cache| used(cache) == 0 && cache["waiting"] == 0);
}

#[test]
fn no_more_requests_are_under_way_than_may() {
    let options = ServerOptions { max_requests: 1, ..ServerOptions::default() };
    let server = TestServer::with(options, slow_engine());
    let running = start_long(&server, true);
    server.wait_for_cache("one runs", |cache| used(cache) > 0);
    let refused = server.post(PATH, &json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("too_many_requests")));
    assert!(refused.header("retry-after").is_some());
    drop(running);
    server.wait_for_cache("all is free", |cache| used(cache) == 0);
    server.ask(PATH, json!({"prompt": "a", "max_tokens": 1}));
}

#[test]
fn what_takes_too_long_is_ended_and_said_so() {
    let server = TestServer::with(ServerOptions::default(), slow_engine());
    let mut body = long(false);
    body["time_limit_ms"] = 50.into();
    let late = server.post(PATH, &body);
    assert_eq!((late.status, &late.error()["code"]), (504, &json!("time_limit")));
    assert_eq!(late.header("x-should-retry"), Some("false"));
    body["stream"] = true.into();
    let events = server.stream(PATH, body);
    let [.., error, done] = &events[..] else { panic!("{events:?}") };
    assert_eq!(done, "[DONE]");
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["code"], "time_limit");
    server.wait_for_cache("all is free", |cache| used(cache) == 0);
}

#[test]
fn a_server_told_to_stop_finishes_what_it_began() {
    let mut server = TestServer::with(ServerOptions::default(), slow_engine());
    let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let client = server.open("POST", PATH, JSON, body.to_string().as_bytes());
    server.wait_for_cache("it runs", |cache| used(cache) > 0);
    server.signal();
    // Whoever asks meanwhile is told; the server may also be gone by then.
    let text = answer(client).text().to_owned();
    assert!(text.contains("\"finish_reason\":\"length\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    server.join();
}

#[test]
fn a_server_told_to_stop_takes_nothing_new_and_cancels_at_the_deadline() {
    let options = ServerOptions { drain: Duration::from_millis(700), ..ServerOptions::default() };
    let mut server = TestServer::with(options, slow_engine());
    // Long enough for any machine: as many as may run, each as long as may be.
    let mut body = long(false);
    body["n"] = 8.into();
    let client = server.open("POST", PATH, JSON, body.to_string().as_bytes());
    server.wait_for_cache("it runs", |cache| used(cache) > 0);
    assert_eq!(server.get("/ready").status, 200);
    let begun = Instant::now();
    server.signal();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.get("/ready").status, 503);
    let refused = server.post(PATH, &json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("shutting_down")));
    let cancelled = answer(client);
    assert_eq!((cancelled.status, &cancelled.error()["code"]), (503, &json!("shutting_down")));
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn a_server_told_to_stop_waits_for_no_body() {
    let mut server = TestServer::start();
    let client =
        server.open("POST", PATH, &[("Content-Type", "application/json"), ("Content-Length", "99")], b"{");
    server.wait_for_metrics("octavo_http_requests_in_flight 1\n");
    let begun = Instant::now();
    server.signal();
    let refused = answer(client);
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("shutting_down")));
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(20), "as long as requests may take to end");
}

#[test]
fn streams_are_under_way_to_their_end() {
    let server = TestServer::with(ServerOptions::default(), slow_engine());
    let clients: Vec<TcpStream> = [true, true, false].map(|stream| start_long(&server, stream)).into();
    server.wait_for_metrics("octavo_http_requests_in_flight 3\n");
    drop(clients);
    server.wait_for_metrics("octavo_http_requests_in_flight 0\n");
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let options = ServerOptions { stall_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let server = TestServer::with(options, slow_engine());
    // More than the buffers of both ends hold.
    let mut body = long(true);
    body["n"] = 8.into();
    body["max_tokens"] = 1000.into();
    body["logprobs"] = 20.into();
    let client = server.open("POST", PATH, JSON, body.to_string().as_bytes());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = server.get("/metrics");
        let text = metrics.text();
        let count = |wanted: &str| {
            let line =
                text.lines().find(|line| !line.starts_with('#') && line.contains(wanted)).expect(wanted);
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let ended = count("finished_reason=\"abort\"") + count("finished_reason=\"length\"");
        let connections = count("octavo_http_connections ");
        // This probe's own connection is one.
        if ended >= 1.0 && connections <= 1.0 {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(client);
}

/// Whoever looks after it starts another; one that stayed would refuse every request.
#[test]
fn a_server_whose_engine_is_gone_ends_and_says_so() {
    let mut server = TestServer::start();
    let waiting = start_long(&server, false);
    server.wait_for_cache("it runs", |cache| used(cache) > 0);
    server.engine.stop(Duration::ZERO);
    let ended = server.end().expect_err("nobody told it to stop");
    assert!(matches!(ended, ServeError::EngineStopped), "{ended}");
    let answer = answer(waiting);
    assert_eq!(answer.status, 503, "{}", answer.text());
}
