//! The log says of every request how it ended, with its id.

mod support;

use octavo::{KvMemory, Options, Pages, Tokens};
use octavo_server::ServerOptions;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use support::{TestServer, engine_options};

const PATH: &str = "/v1/completions";

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn server(options: ServerOptions) -> TestServer {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| tracing_subscriber::fmt().with_writer(|| Log).init());
    let engine =
        Options { max_len: Some(Tokens(4096)), kv_memory: KvMemory::Pages(Pages(1024)), ..engine_options() };
    TestServer::with(options, engine)
}

/// The lines with this id, once one of them says `what`.
fn lines(id: &str, what: &str) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
        let own = text.lines().filter(|line| line.contains(&format!("{{id={id}}}")));
        let own: Vec<String> = own.map(str::to_owned).collect();
        if own.iter().any(|line| line.contains(what)) {
            return own;
        }
        assert!(Instant::now() < deadline, "no {what} in {own:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The one line that says how a generation ended.
fn ended(id: &str) -> String {
    let mut own = lines(id, "generation ended");
    own.retain(|line| line.contains("generation ended"));
    assert_eq!(own.len(), 1, "{own:?}");
    own.remove(0)
}

fn open(server: &TestServer, id: &str, body: &Value) -> TcpStream {
    let headers = [("Content-Type", "application/json"), ("X-Request-Id", id)];
    server.open("POST", PATH, &headers, body.to_string().as_bytes())
}

fn send(server: &TestServer, id: &str, body: &Value) {
    let _ = io::Read::read_to_end(&mut open(server, id, body), &mut Vec::new());
}

fn long(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 4000, "ignore_eos": true, "stream": stream})
}

#[test]
fn an_answer_that_is_whole_says_why_it_ended_and_how_long_it_was() {
    let server = server(ServerOptions::default());
    for (id, stream) in [("whole", false), ("whole-stream", true)] {
        let body = json!({"prompt": ["a", "b"], "max_tokens": 3, "ignore_eos": true, "stream": stream});
        send(&server, id, &body);
        let line = ended(id);
        assert!(line.contains("how=\"length\" tokens=6 ms="), "{line}");
    }
    // Those that are not the best count, too.
    send(&server, "best", &json!({"prompt": "a", "max_tokens": 3, "best_of": 4, "ignore_eos": true}));
    assert!(ended("best").contains("how=\"length\" tokens=12 ms="));
}

#[test]
fn an_answer_that_fails_says_why() {
    let server = server(ServerOptions::default());
    for (id, stream) in [("late", false), ("late-stream", true)] {
        let mut body = long(stream);
        body["time_limit_ms"] = 50.into();
        send(&server, id, &body);
        let line = ended(id);
        assert!(line.contains("how=\"time_limit\" why=\"not finished within its 50 ms\" tokens="), "{line}");
    }
}

#[test]
fn a_client_that_goes_away_is_said_to_be_gone() {
    let server = server(ServerOptions::default());
    for (id, stream) in [("gone", false), ("gone-stream", true)] {
        let client = open(&server, id, &long(stream));
        server.wait_for_cache("it runs", |cache| cache["sequences"][0]["tokens"].as_u64() > Some(20));
        drop(client);
        let line = ended(id);
        let (_, tokens) = line.split_once("how=\"client gone\" tokens=").expect(&line);
        let tokens: u64 = tokens.split(' ').next().unwrap().parse().unwrap();
        assert!((10..4000).contains(&tokens), "{line}");
        server.wait_for_cache("its pages are back", |cache| cache["pages"]["used"] == 0);
    }
    lines("gone", "the client left before its answer");
}

#[test]
fn what_a_shutdown_ends_is_said_to_be_ended_by_it() {
    let mut server = server(ServerOptions { drain: Duration::from_millis(50), ..ServerOptions::default() });
    // As many as may run, so that no machine is done before it is told to stop.
    let mut body = long(true);
    body["n"] = 8.into();
    let client = open(&server, "stopped", &body);
    server.wait_for_cache("it runs", |cache| cache["pages"]["used"] != 0);
    server.signal();
    let line = ended("stopped");
    assert!(line.contains("how=\"shutting_down\""), "{line}");
    drop(client);
    server.join();
}

#[test]
fn answers_are_told_but_for_those_to_probes() {
    let server = server(ServerOptions::default());
    for (path, id) in
        [("/health", "probe"), ("/metrics", "probe"), ("/ready", "probe"), ("/v1/models", "listed")]
    {
        server.send("GET", path, &[("X-Request-Id", id)], b"");
    }
    let line = lines("listed", "answered").remove(0);
    assert!(line.contains("method=GET path=\"/v1/models\" status=200 ms="), "{line}");
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    assert!(!log.contains("{id=probe}"), "{log}");
    send(&server, "probe", &json!({}));
    lines("probe", "code=\"invalid_value\"");
}

#[test]
fn what_is_refused_says_why_in_a_line_of_bounded_length() {
    let server = server(ServerOptions::default());
    send(&server, "refused", &json!({"prompt": "a", "n": 0}));
    let line = lines("refused", "answered").remove(0);
    assert!(
        line.contains(
            "status=400 code=\"invalid_value\" why=\"n: at least one choice must be asked for\" ms="
        ),
        "{line}"
    );
    send(&server, "endless", &json!({"prompt": "a", ("\n".repeat(100_000)): 0}));
    let own = lines("endless", "answered");
    assert!(own[0].contains("code=\"unknown_field\"") && own[0].len() < 2000, "{own:?}");
}
