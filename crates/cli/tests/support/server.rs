//! `octavo serve` as a process of its own, and the little HTTP that a test needs.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far longer than a server with nothing to do takes to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the real binary that sees none of the test's own `OCTAVO_` variables.
pub fn octavo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OCTAVO_")) {
        command.env_remove(name);
    }
    command
}

/// What `octavo serve` says when it refuses to start; one that starts is ended.
pub fn refused(command: &mut Command) -> String {
    let mut process =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut first = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut first).unwrap();
    if !first.is_empty() {
        process.kill().unwrap();
    }
    let Output { status, stderr, .. } = process.wait_with_output().unwrap();
    assert!(!status.success() && first.is_empty(), "it started: {first}");
    String::from_utf8(stderr).unwrap()
}

/// A server that has greeted; it ends with the test.
pub struct Server {
    process: Child,
    pub greeting: String,
    /// `127.0.0.1:PORT`.
    pub address: String,
}

impl Server {
    /// Reads up to the end of the greeting.
    pub fn start(command: &mut Command) -> Self {
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut greeting = String::new();
        while !greeting.contains("in any OpenAI client") {
            match lines.next() {
                Some(line) => greeting = greeting + &line.unwrap() + "\n",
                None => {
                    let mut errors = String::new();
                    process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                    panic!("no greeting: {errors}");
                }
            }
        }
        let address = between(&greeting, " on http://", " (").to_owned();
        Self { process, greeting, address }
    }

    /// The status and the body of an answer.
    pub fn request(&self, head: &str, body: &str) -> (u16, String) {
        let (head, body) = self.answer(head, body);
        (between(&head, "HTTP/1.1 ", " ").parse().unwrap(), body)
    }

    /// The head and the body of an answer.
    pub fn answer(&self, head: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        let length = body.len();
        write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (head.to_owned(), body.to_owned())
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(sent.expect("there is a `kill`").success());
    }

    /// How it ended by itself, and what it wrote to standard error. One that goes on is killed.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let by = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < by, "the server has not ended in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }

    /// What it wrote to standard error, once it was ended.
    pub fn errors(mut self) -> String {
        self.process.kill().unwrap();
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What lies between two words.
pub fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}"));
    rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {rest}")).0
}

/// A file that is removed with this value.
pub struct TempFile(PathBuf);

impl Deref for TempFile {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file with this text, under a name of its own.
pub fn file(name: &str, text: &str) -> TempFile {
    let path = std::env::temp_dir().join(format!("octavo-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    TempFile(path)
}
