//! A hub, or who pretends to be one, that wants a token or a file elsewhere: it gets an error.

mod hub_server;

use hub_server::{COMMIT, Fault, HubServer, empty_dir, fixture};
use octavo::{Files, Hub};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const REPO: &str = "tiny/llama";
const WEIGHTS: &str = "model.safetensors";

/// A hub with one model, and an empty cache in a folder of its own.
fn served(test: &str) -> (HubServer, Hub, PathBuf) {
    let (server, dir) = (HubServer::start(REPO, fixture("qwen3-gqa")), empty_dir(test));
    let hub = Hub::new(dir.join("home/cache")).with_endpoint(&server.endpoint);
    (server, hub, dir)
}

fn fetch(hub: &Hub) -> Result<PathBuf, String> {
    let fetched = hub.fetch(&REPO.parse().unwrap(), Files::All, &mut |_| ControlFlow::Continue(()));
    fetched.map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

fn sha256(contents: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, contents);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_token_is_not_sent_to_another_host() {
    let (server, hub, _) = served("other-host");
    let store = HubServer::start(REPO, fixture("qwen3-gqa"));
    server.store_at(&store.endpoint);
    let dir = fetch(&hub.with_token("hf_mine")).unwrap();
    assert!(dir.join(WEIGHTS).is_file());
    let asked = store.asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.authorization.is_none()), "{asked:?}");
    assert!(server.asked().iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_mine")));
}

/// It is not the model's hub that refuses, so no token helps.
#[test]
fn a_refusal_by_another_host_is_told_by_its_number() {
    let (server, hub, _) = served("other-refuses");
    let store = HubServer::start(REPO, fixture("qwen3-gqa"));
    server.store_at(&store.endpoint);
    for status in [401, 403, 404] {
        store.fail(Fault::Status(status));
        let error = fetch(&hub).unwrap_err();
        assert!(error.contains(&format!("answered with status {status}")), "{error}");
    }
}

#[test]
fn an_etag_that_is_a_path_leads_nowhere() {
    for file in ["config.json", WEIGHTS] {
        let (server, hub, dir) = served("etag");
        let precious = dir.join("precious");
        for etag in ["../../../../precious", precious.to_str().unwrap(), "..", ""] {
            std::fs::write(&precious, "mine").unwrap();
            server.set_etag(file, etag);
            let error = fetch(&hub).unwrap_err();
            assert!(error.contains("does not answer like a hub"), "{etag}: {error}");
            assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine", "{etag}");
            assert!(names(&dir).iter().all(|name| ["home", "precious"].contains(&name.as_str())), "{etag}");
        }
    }
}

#[test]
fn a_file_of_another_commit_is_refused() {
    let (server, hub, dir) = served("commit");
    for commit in ["../../../..", "/tmp", "fedcba9876543210fedcba9876543210fedcba98"] {
        server.fail(Fault::Commit(commit));
        let error = fetch(&hub).unwrap_err();
        assert!(error.contains("does not answer like a hub"), "{commit}: {error}");
        assert_eq!(names(&dir), Vec::<String>::new(), "nothing was written");
    }
}

#[test]
fn a_redirect_without_a_location_is_an_error() {
    let (server, hub, _) = served("no-location");
    server.fail(Fault::NoLocation);
    let error = fetch(&hub).unwrap_err();
    assert!(error.contains("without a location"), "{error}");
}

#[test]
fn redirects_have_an_end() {
    let (server, hub, _) = served("loop");
    server.fail(Fault::Loop);
    let error = fetch(&hub).unwrap_err();
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert!(server.asked().len() <= 12);
}

#[test]
fn contents_that_are_not_those_of_the_hash_are_removed() {
    let (server, hub, dir) = served("contents");
    let right = &fixture("qwen3-gqa")[WEIGHTS];
    let mut wrong = right.clone();
    wrong[1000] ^= 1;
    server.set_etag(WEIGHTS, &sha256(right));
    server.change(WEIGHTS, &wrong);
    let error = fetch(&hub).unwrap_err();
    assert!(error.contains("SHA-256") && error.contains(WEIGHTS), "{error}");
    let repo = dir.join("home/cache/models--tiny--llama");
    assert!(!names(&repo.join("blobs")).iter().any(|name| name.ends_with(".part")));
    assert!(!repo.join("snapshots").join(COMMIT).join(WEIGHTS).exists());
    assert!(!repo.join("refs/main").exists());

    server.change(WEIGHTS, right);
    let dir = fetch(&hub).unwrap();
    assert!(std::fs::read(dir.join(WEIGHTS)).unwrap() == *right);
}

#[test]
fn a_part_with_other_contents_is_found_out() {
    let (server, hub, dir) = served("other-part");
    let hash = sha256(&fixture("qwen3-gqa")[WEIGHTS]);
    server.set_etag(WEIGHTS, &hash);
    let blobs = dir.join("home/cache/models--tiny--llama/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{hash}.part")), vec![9; 5000]).unwrap();
    assert!(fetch(&hub).unwrap_err().contains("SHA-256"));
    fetch(&hub).unwrap();
}
