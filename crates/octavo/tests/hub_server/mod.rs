//! A hub for tests: a small HTTP server on this machine that answers as the real one does, with one model.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// What the model was called before.
pub const OLD_NAME: &str = "tiny/renamed";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// Every answer is this status.
    Status(u16),
    /// A connection ends after so many bytes of a file.
    Cut(usize),
    /// It ends so, and the next ones bring nothing at all.
    CutForGood(usize),
    /// The whole file, whatever part was asked for.
    IgnoresRange,
    /// The same, and the answer is called a part.
    OtherRange,
    /// So many bytes more than the hub says.
    Longer(usize),
    /// Files are of this commit.
    Commit(&'static str),
    /// So many requests for files get no answer.
    Silent(usize),
    /// So many requests for files are one too many.
    Busy(usize),
    /// A redirect to nowhere.
    NoLocation,
    /// A redirect to the same place.
    Loop,
}

#[derive(Debug)]
pub struct Asked {
    pub path: String,
    /// First byte that was asked for.
    pub from: Option<usize>,
    pub authorization: Option<String>,
}

#[derive(Debug)]
struct State {
    endpoint: String,
    repo: String,
    files: BTreeMap<String, Vec<u8>>,
    fault: Fault,
    /// ETags that are not made of the contents.
    etags: BTreeMap<String, String>,
    /// Who has the large files.
    store: String,
    asked: Vec<Asked>,
}

/// Runs until the test ends.
#[derive(Clone, Debug)]
pub struct HubServer {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl HubServer {
    pub fn start(repo: &str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            endpoint: endpoint.clone(),
            repo: repo.into(),
            files,
            fault: Fault::Nothing,
            etags: BTreeMap::new(),
            store: endpoint.clone(),
            asked: Vec::new(),
        };
        let server = Self { endpoint, state: Arc::new(Mutex::new(state)) };
        let running = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                running.answer(stream);
            }
        });
        server
    }

    pub fn fail(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    pub fn change(&self, file: &str, contents: &[u8]) {
        self.state.lock().unwrap().files.insert(file.into(), contents.into());
    }

    pub fn set_etag(&self, file: &str, etag: &str) {
        self.state.lock().unwrap().etags.insert(file.into(), etag.into());
    }

    /// Large files come from there.
    pub fn store_at(&self, endpoint: &str) {
        self.state.lock().unwrap().store = endpoint.into();
    }

    /// The file's ETag, as far as it is made of its contents.
    pub fn etag(&self, file: &str) -> String {
        etag(&self.state.lock().unwrap().files[file])
    }

    /// Everything that was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// Names of the files whose contents were asked for, each once.
    pub fn files_asked(&self) -> Vec<String> {
        let asked = self.asked();
        let mut files: Vec<String> = asked
            .iter()
            .filter_map(|a| Some(a.path.split_once("/resolve/")?.1.split_once('/')?.1.into()))
            .collect();
        files.dedup();
        files
    }

    /// One request a connection: nobody's socket is closed while it waits.
    fn answer(&self, mut stream: TcpStream) {
        let Some(asked) = read_request(&stream) else { return };
        let mut state = self.state.lock().unwrap();
        if let Fault::Silent(left @ 1..) = state.fault
            && asked.path.contains("/resolve/")
        {
            state.fault = Fault::Silent(left - 1);
            return;
        }
        if let Fault::Busy(left @ 1..) = state.fault
            && asked.path.contains("/resolve/")
        {
            state.fault = Fault::Busy(left - 1);
            drop(state);
            let _ = stream.write_all(head(429, 0, "").0.as_bytes());
            return;
        }
        let (head, body) = state.respond(&asked);
        state.asked.push(asked);
        drop(state);
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    }
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut asked = Asked { path, from: None, authorization: None };
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        match name.to_lowercase().as_str() {
            "range" => asked.from = value.trim_start_matches("bytes=").split('-').next()?.parse().ok(),
            "authorization" => asked.authorization = Some(value.into()),
            _ => {}
        }
    }
    Some(asked)
}

impl State {
    fn respond(&mut self, asked: &Asked) -> (String, Vec<u8>) {
        if let Fault::Status(status) = self.fault {
            return head(status, 0, "");
        }
        if asked.path.contains(OLD_NAME) {
            let location = asked.path.replace(OLD_NAME, &self.repo);
            return head(307, 0, &format!("Location: {location}\r\n"));
        }
        let revision = asked.path.strip_prefix(&format!("/api/models/{}/revision/", self.repo));
        if revision.is_some_and(|revision| ["main", "refs%2Fpr%2F1", COMMIT].contains(&revision)) {
            let files: Vec<_> =
                self.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
            let info = serde_json::json!({ "sha": COMMIT, "siblings": files }).to_string().into_bytes();
            return (head(200, info.len(), "").0, info);
        }
        let file = |prefix: &str| asked.path.strip_prefix(&format!("/{prefix}{COMMIT}/"));
        let stored = file("stored/");
        let file = stored.or(file(&format!("{}/resolve/", self.repo)));
        let Some((name, contents)) = file.and_then(|file| Some((file, self.files.get(file)?.clone()))) else {
            return head(404, 0, "");
        };
        let etag = self.etags.get(name).cloned().unwrap_or_else(|| etag(&contents));
        let commit = if let Fault::Commit(commit) = self.fault { commit } else { COMMIT };
        let about = format!("X-Repo-Commit: {commit}\r\n");
        match self.fault {
            Fault::NoLocation => {
                return head(302, 0, &format!("X-Linked-Size: 9\r\nX-Linked-ETag: \"{etag}\"\r\n{about}"));
            }
            Fault::Loop => return head(302, 0, &format!("Location: {}\r\n{about}", asked.path)),
            _ => {}
        }
        if stored.is_none() && name.ends_with(".safetensors") {
            // Large files lie elsewhere.
            let place = format!("Location: {}/stored/{COMMIT}/{name}\r\n", self.store);
            let linked = format!("X-Linked-Size: {}\r\nX-Linked-ETag: \"{etag}\"\r\n", contents.len());
            return head(302, 0, &format!("{place}{linked}{about}"));
        }
        self.send(contents, asked.from, &format!("ETag: \"{etag}\"\r\n{about}"))
    }

    fn send(&mut self, mut contents: Vec<u8>, from: Option<usize>, about: &str) -> (String, Vec<u8>) {
        if let Fault::Longer(bytes) = self.fault {
            contents.resize(contents.len() + bytes, 0);
        }
        let length = contents.len();
        if from.is_some_and(|from| from >= length) {
            return head(416, 0, &format!("Content-Range: bytes */{length}\r\n{about}"));
        }
        let (status, from) = match (self.fault, from) {
            (Fault::IgnoresRange, _) | (_, None) => (200, 0),
            (Fault::OtherRange, Some(_)) => (206, 0),
            (_, Some(from)) => (206, from),
        };
        let range = format!("Content-Range: bytes {from}-{}/{length}\r\n", length - 1);
        let range = if status == 206 { range.as_str() } else { "" };
        let (head, _) = head(status, length - from, &format!("{about}{range}"));
        let rest = &contents[from..];
        let sent = match self.fault {
            Fault::Cut(bytes) => rest.len().min(bytes),
            Fault::CutForGood(bytes) if from == 0 => rest.len().min(bytes),
            Fault::CutForGood(_) => 0,
            _ => rest.len(),
        };
        (head, rest[..sent].to_vec())
    }
}

fn etag(contents: &[u8]) -> String {
    let sum = contents.iter().fold(7u64, |sum, byte| sum * 31 % 99_991 + u64::from(*byte));
    format!("{:x}-{sum:x}", contents.len())
}

fn head(status: u16, length: usize, more: &str) -> (String, Vec<u8>) {
    let head =
        format!("HTTP/1.1 {status} Answer\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n");
    (head, Vec::new())
}

/// The files of a directory, without folders.
pub fn files_of(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().into(), std::fs::read(&path).unwrap()))
        .collect()
}

/// A tiny model that is one of the fixtures, with a tokenizer that nobody reads.
pub fn fixture(name: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let mut files = files_of(&dir);
    files.insert("tokenizer.json".into(), b"{}".to_vec());
    files.insert("README.md".into(), b"not needed".to_vec());
    files
}

/// An empty directory that is the test's alone.
pub fn empty_dir(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub").join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
