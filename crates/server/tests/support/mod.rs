//! The real server over the real engine and the built-in model, and a client that sends whatever bytes it is told to.
#![allow(dead_code, reason = "each test binary uses a part")]

use octavo::{EngineHandle, Llm, Options, Pages, Source, Tokens};
use octavo_server::{ServeError, ServerOptions, serve};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: EngineHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Small enough to fill, large enough for every test.
pub(crate) fn engine_options() -> Options {
    Options {
        max_batch: 8,
        max_len: Some(Tokens(1024)),
        kv_memory: octavo::KvMemory::Pages(Pages(256)),
        ..Options::default()
    }
}

/// The built-in model in a folder of its own, its tokenizer set up otherwise; removed in the end.
pub(crate) struct Model(PathBuf);

impl Model {
    pub(crate) fn with(name: &str, change: impl FnOnce(&mut Value)) -> Self {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let folder = std::env::temp_dir().join(format!("octavo-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(demo.join(file), folder.join(file)).unwrap();
        }
        let config = std::fs::read(demo.join("tokenizer_config.json")).unwrap();
        let mut config = serde_json::from_slice(&config).unwrap();
        change(&mut config);
        std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
        Self(folder)
    }

    pub(crate) fn source(&self) -> Source {
        Source::Directory(self.0.clone())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::with(ServerOptions::default(), engine_options())
    }

    pub(crate) fn with(server: ServerOptions, engine: Options) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let serving = Llm::load(&engine, &mut |_| {}).unwrap().serve();
                tell.send((listener.local_addr().unwrap(), serving.handle.clone())).unwrap();
                let config = server.try_into().unwrap();
                let shutdown = async { drop(stopped.await) };
                serve(listener, serving, config, shutdown).await
            })
        });
        let (address, engine) = told.recv().unwrap();
        Self { address, engine, stop: Some(stop), thread: Some(thread) }
    }

    /// Tells the server to shut down, without waiting for it.
    pub(crate) fn signal(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended.
    pub(crate) fn join(mut self) {
        self.signal();
        self.end().expect("the server ended well");
    }

    /// The same for one that ends by itself.
    pub(crate) fn end(&mut self) -> Result<(), ServeError> {
        self.thread.take().expect("waited for once").join().expect("no panic")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }
    /// The JSON of an answer that must be good.
    pub(crate) fn ask(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.open(method, path, headers, body);
        let mut bytes = Vec::new();
        // A server that refuses a body may close before it has read all of it.
        let _ = stream.read_to_end(&mut bytes);
        Answer::parse(&bytes)
    }

    /// Sends a request and leaves the answer unread.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut stream = self.connect();
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        let _ = stream.write_all(body);
        stream
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The data of every server-sent event.
    pub(crate) fn stream(&self, path: &str, body: Value) -> Vec<String> {
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"));
        // Nobody in between keeps events back.
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        assert_eq!(answer.header("x-accel-buffering"), Some("no"));
        let text = answer.text();
        assert!(text.ends_with("\n\n"), "{text:?}");
        text.split("\n\n")
            .filter(|event| !event.is_empty() && !event.starts_with(':'))
            .map(|event| event.strip_prefix("data: ").expect(event).to_owned())
            .collect()
    }

    /// The chunks of a stream that ends well.
    pub(crate) fn chunks(&self, path: &str, body: Value) -> Vec<Value> {
        let mut events = self.stream(path, body);
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).expect(event)).collect()
    }

    /// Looks at `/v1/cache` until it is as it should be.
    pub(crate) fn wait_for_cache(&self, what: &str, right: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let cache = self.get("/v1/cache").json();
            if right(&cache) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {cache}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The metrics once they hold a line.
    pub(crate) fn wait_for_metrics(&self, line: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let text = self.get("/metrics").text().to_owned();
            if text.contains(line) {
                return text;
            }
            assert!(Instant::now() < deadline, "no {line} in {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            (name.to_ascii_lowercase(), value.to_owned())
        };
        let headers: Vec<(String, String)> = lines.map(header).collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = &bytes[end + 4..];
        let body = if chunked { unchunk(body) } else { body.to_vec() };
        Self { status, headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{:?}", self.text()))
    }

    /// Checks that this is an error in OpenAI's form; returns it.
    pub(crate) fn error(&self) -> Value {
        let json = self.json();
        let error = &json["error"];
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{json}");
        assert!(
            error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(),
            "{json}"
        );
        error.clone()
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        let start = end + 2;
        whole.extend_from_slice(&body[start..(start + len).min(body.len())]);
        if len == 0 || start + len + 2 > body.len() {
            break;
        }
        body = &body[start + len + 2..];
    }
    whole
}
