//! Models by name: from a cache laid out as the hub does, and from a hub that is a server on this machine.

mod hub_server;

use hub_server::{COMMIT, Fault, HubServer, OLD_NAME, empty_dir, fixture};
use octavo::{Files, Hub, HubError, HubName, LoadError, ModelConfig, Source};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const REPO: &str = "tiny/llama";

fn name() -> HubName {
    REPO.parse().unwrap()
}

/// A cache with files of one commit, and a revision that points to it.
fn lay_out(cache: &Path, revision: &str, files: &BTreeMap<String, Vec<u8>>) -> PathBuf {
    let repo = cache.join("models--tiny--llama");
    let snapshot = repo.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    for (name, contents) in files {
        std::fs::write(snapshot.join(name), contents).unwrap();
    }
    let reference = repo.join("refs").join(revision);
    std::fs::create_dir_all(reference.parent().unwrap()).unwrap();
    // Some programs end it as lines end.
    std::fs::write(reference, format!("{COMMIT}\n")).unwrap();
    snapshot
}

/// A hub with one model, and a cache with nothing.
fn served(test: &str, model: &str) -> (HubServer, Hub, PathBuf) {
    let (server, cache) = (HubServer::start(REPO, fixture(model)), empty_dir(test));
    let hub = Hub::new(cache.clone()).with_endpoint(&server.endpoint);
    (server, hub, cache)
}

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

fn fetch(hub: &Hub) -> Result<PathBuf, HubError> {
    hub.fetch(&name(), Files::All, &mut |_| GO_ON)
}

fn blobs(cache: &Path) -> PathBuf {
    let blobs = cache.join("models--tiny--llama/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    blobs
}

/// As an earlier download of the weights would.
fn leave_part(server: &HubServer, cache: &Path, part: &[u8]) {
    let path = blobs(cache).join(format!("{}.part", server.etag("model.safetensors")));
    std::fs::write(path, part).unwrap();
}

/// An error and what caused it, as a user reads it.
fn words(error: &dyn std::error::Error) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

#[test]
fn a_model_in_the_cache_is_found_by_name_revision_and_commit_without_a_network() {
    let cache = empty_dir("found");
    let snapshot = lay_out(&cache, "main", &fixture("llama-sharded"));
    lay_out(&cache, "refs/pr/1", &BTreeMap::new());
    let hub = Hub::new(cache).offline();
    for text in [REPO.into(), format!("{REPO}@refs/pr/1"), format!("{REPO}@{COMMIT}")] {
        let source = Source::named(Path::new(&text), &hub, Files::All, &mut |_| GO_ON).unwrap();
        assert_eq!(source, Source::Hub { name: text.parse().unwrap(), dir: snapshot.clone() });
        assert_eq!(source.name(), text);
        source.config().unwrap();
    }
    let error = hub.fetch(&format!("{REPO}@v2").parse().unwrap(), Files::All, &mut |_| GO_ON).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn a_model_that_is_only_partly_in_the_cache_is_not_taken_for_whole() {
    for missing in ["config.json", "tokenizer.json", "model-00003-of-00004.safetensors"] {
        let cache = empty_dir(&format!("partly-{missing}"));
        let mut files = fixture("llama-sharded");
        files.remove(missing);
        lay_out(&cache, "main", &files);
        let error = fetch(&Hub::new(cache).offline()).unwrap_err();
        assert!(error.to_string().contains("not all of it"), "{missing}: {error}");
    }
}

#[test]
fn a_path_that_exists_is_a_directory_and_what_is_no_name_is_no_model() {
    let hub = Hub::new(empty_dir("paths")).offline();
    let here = Path::new("src/hub");
    assert!(here.is_dir(), "tests run in the crate's directory");
    let named = |path: &Path| Source::named(path, &hub, Files::Config, &mut |_| GO_ON);
    assert_eq!(named(here).unwrap(), Source::Directory(here.into()));
    let error = named(Path::new("no/such/model")).unwrap().config().unwrap_err();
    assert!(matches!(error, LoadError::NoDirectory(_)), "{error}");
    assert!(matches!(named(Path::new("no/model")).unwrap_err(), LoadError::Hub(HubError::Offline { .. })));
}

#[test]
fn a_model_is_downloaded_with_what_loading_needs_and_nothing_else() {
    let (server, hub, _) = served("needed", "llama-sharded");
    let mut seen = BTreeMap::new();
    let dir = hub
        .fetch(&name(), Files::All, &mut |at| {
            seen.insert(at.file.to_owned(), (at.bytes_done, at.bytes_total));
            GO_ON
        })
        .unwrap();
    let shard = |i: usize| format!("model-0000{i}-of-00004.safetensors");
    let mut wanted: Vec<String> =
        ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json"]
            .map(String::from)
            .into();
    wanted.extend((1..=4).map(shard));
    assert_eq!(server.files_asked(), wanted, "the weights last, and neither README nor expected logits");
    for (file, contents) in fixture("llama-sharded").into_iter().filter(|(file, _)| wanted.contains(file)) {
        assert!(std::fs::read(dir.join(&file)).unwrap() == contents, "{file}");
        assert_eq!(seen[&file], (contents.len() as u64, contents.len() as u64), "{file}");
    }
    // From now on no network is needed.
    assert_eq!(fetch(&hub.clone().offline()).unwrap(), dir);
    assert_eq!(fetch(&hub).unwrap(), dir);
    assert!(server.asked().is_empty());
}

#[test]
fn for_its_geometry_only_the_configuration_is_downloaded() {
    let (server, hub, _) = served("geometry", "qwen3-gqa");
    let dir = hub.fetch(&name(), Files::Config, &mut |_| GO_ON).unwrap();
    assert_eq!(server.files_asked(), ["config.json"]);
    ModelConfig::from_dir(&dir).unwrap();
    assert_eq!(hub.find(&name(), Files::All), None, "that is not the whole model");
    assert_eq!(fetch(&hub).unwrap(), dir);
    assert!(dir.join("model.safetensors").is_file());
}

#[test]
fn one_file_of_weights_is_enough_where_there_are_copies_in_parts() {
    let (server, hub, _) = served("single", "qwen3-gqa");
    server.change("consolidated.safetensors", b"a copy in another format");
    fetch(&hub).unwrap();
    let asked = server.files_asked();
    assert!(
        asked.contains(&"model.safetensors".into()) && !asked.contains(&"consolidated.safetensors".into())
    );
}

#[test]
fn a_download_goes_on_where_its_connection_broke() {
    let (server, hub, _) = served("broke", "qwen3-gqa");
    server.fail(Fault::Cut(100_000));
    let dir = fetch(&hub).unwrap();
    let contents = &fixture("qwen3-gqa")["model.safetensors"];
    assert!(std::fs::read(dir.join("model.safetensors")).unwrap() == *contents);
    let stored = server.asked().into_iter().filter(|asked| asked.path.starts_with("/stored/"));
    let resumed: Vec<_> = stored.filter_map(|asked| asked.from).filter(|from| *from > 0).collect();
    assert_eq!(resumed, [100_000, 200_000, 300_000, 400_000, 500_000, 600_000]);
}

#[test]
fn a_download_that_stopped_is_no_model_and_goes_on_the_next_time() {
    let (server, hub, cache) = served("stopped", "qwen3-gqa");
    server.fail(Fault::CutForGood(250_000));
    let error = fetch(&hub).unwrap_err();
    assert!(matches!(&error, HubError::Interrupted { file, .. } if file == "model.safetensors"), "{error}");
    assert!(error.to_string().contains("run the same command again"), "{error}");
    assert_eq!(hub.find(&name(), Files::All), None);
    let snapshot = cache.join("models--tiny--llama/snapshots").join(COMMIT);
    assert!(snapshot.join("config.json").is_file() && !snapshot.join("model.safetensors").exists());
    assert!(!cache.join("models--tiny--llama/refs/main").exists(), "the revision is not there yet");
    server.fail(Fault::Nothing);
    server.asked();
    let dir = fetch(&hub).unwrap();
    let stored = server.asked().into_iter().filter(|asked| asked.path.starts_with("/stored/"));
    let from: Vec<_> = stored.filter_map(|asked| asked.from).collect();
    assert_eq!(from, [250_000], "the rest alone");
    assert!(
        std::fs::read(dir.join("model.safetensors")).unwrap() == fixture("qwen3-gqa")["model.safetensors"]
    );
}

#[test]
fn a_download_that_is_broken_off_ends_at_once_and_goes_on_the_next_time() {
    let (server, hub, _) = served("broken-off", "qwen3-gqa");
    let mut told = 0;
    let error = hub.fetch(&name(), Files::All, &mut |at| {
        let is_enough = at.file == "model.safetensors" && at.bytes_done > 200_000;
        told += usize::from(is_enough);
        if is_enough { ControlFlow::Break(()) } else { GO_ON }
    });
    let error = error.unwrap_err();
    assert!(matches!(&error, HubError::BrokenOff { file } if file == "model.safetensors"), "{error}");
    assert_eq!(told, 1);
    server.asked();
    let dir = fetch(&hub).unwrap();
    let stored = server.asked().into_iter().filter(|asked| asked.path.starts_with("/stored/"));
    assert!(stored.filter_map(|asked| asked.from).all(|from| from > 200_000), "the rest alone");
    assert!(
        std::fs::read(dir.join("model.safetensors")).unwrap() == fixture("qwen3-gqa")["model.safetensors"]
    );
}

#[test]
fn a_hub_that_does_not_answer_for_a_moment_is_asked_again() {
    let (server, hub, cache) = served("moment", "qwen3-gqa");
    for fault in [Fault::Silent(2), Fault::Busy(2)] {
        server.fail(fault);
        fetch(&hub).unwrap();
        std::fs::remove_dir_all(&cache).unwrap();
    }
}

#[test]
fn a_revision_with_parts_is_asked_for_as_one() {
    let (_server, hub, cache) = served("revision", "qwen3-gqa");
    let dir = hub.fetch(&format!("{REPO}@refs/pr/1").parse().unwrap(), Files::All, &mut |_| GO_ON).unwrap();
    assert!(dir.join("model.safetensors").is_file());
    let reference = cache.join("models--tiny--llama/refs/refs/pr/1");
    assert_eq!(std::fs::read_to_string(reference).unwrap(), COMMIT);
}

#[test]
fn a_model_that_was_renamed_is_followed_to_its_new_name() {
    let (_server, hub, _) = served("renamed", "qwen3-gqa");
    let dir = hub.fetch(&OLD_NAME.parse().unwrap(), Files::All, &mut |_| GO_ON).unwrap();
    assert!(dir.join("model.safetensors").is_file());
}

#[test]
fn a_file_may_be_empty() {
    let (server, hub, _) = served("empty", "qwen3-gqa");
    server.change("chat_template.jinja", b"");
    let dir = fetch(&hub).unwrap();
    assert_eq!(std::fs::read(dir.join("chat_template.jinja")).unwrap(), b"");
}

#[test]
fn weights_in_parts_without_an_index_are_all_downloaded() {
    let mut files = fixture("llama-sharded");
    files.remove("model.safetensors.index.json");
    let server = HubServer::start(REPO, files);
    let dir = fetch(&Hub::new(empty_dir("no-index")).with_endpoint(&server.endpoint)).unwrap();
    for i in 1..=4 {
        assert!(dir.join(format!("model-0000{i}-of-00004.safetensors")).is_file(), "part {i}");
    }
}

#[test]
fn a_file_starts_over_where_its_server_does_not_go_on() {
    for (test, fault) in [("ignored", Fault::IgnoresRange), ("other-range", Fault::OtherRange)] {
        let (server, hub, cache) = served(test, "qwen3-gqa");
        let contents = &fixture("qwen3-gqa")["model.safetensors"];
        leave_part(&server, &cache, &contents[..250_000]);
        server.fail(fault);
        let dir = fetch(&hub).unwrap();
        assert!(std::fs::read(dir.join("model.safetensors")).unwrap() == *contents, "{fault:?}");
    }
}

#[test]
fn a_part_that_is_too_long_is_thrown_away() {
    let (server, hub, cache) = served("long-part", "qwen3-gqa");
    leave_part(&server, &cache, &vec![1; 800_000]);
    let dir = fetch(&hub).unwrap();
    assert!(
        std::fs::read(dir.join("model.safetensors")).unwrap() == fixture("qwen3-gqa")["model.safetensors"]
    );
}

#[test]
fn a_part_that_is_whole_is_not_asked_for_again() {
    let (server, hub, cache) = served("whole-part", "qwen3-gqa");
    let contents = &fixture("qwen3-gqa")["model.safetensors"];
    leave_part(&server, &cache, contents);
    let dir = fetch(&hub).unwrap();
    assert!(std::fs::read(dir.join("model.safetensors")).unwrap() == *contents);
    assert!(server.asked().iter().all(|asked| !asked.path.starts_with("/stored/")));
}

#[test]
fn a_file_of_the_cache_that_is_too_short_is_fetched_again() {
    let (server, hub, cache) = served("short-blob", "qwen3-gqa");
    std::fs::write(blobs(&cache).join(server.etag("model.safetensors")), b"short").unwrap();
    let dir = fetch(&hub).unwrap();
    assert!(
        std::fs::read(dir.join("model.safetensors")).unwrap() == fixture("qwen3-gqa")["model.safetensors"]
    );
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_that_is_gone_is_replaced() {
    let (_server, hub, cache) = served("dangling", "qwen3-gqa");
    let snapshot = cache.join("models--tiny--llama/snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join("config.json")).unwrap();
    let dir = fetch(&hub).unwrap();
    assert!(std::fs::read(dir.join("config.json")).unwrap() == fixture("qwen3-gqa")["config.json"]);
}

#[test]
fn a_file_of_the_wrong_length_is_removed() {
    let (server, hub, _) = served("wrong", "qwen3-gqa");
    server.fail(Fault::Longer(5));
    let error = fetch(&hub).unwrap_err();
    assert!(matches!(error, HubError::Size { got: 696_725, want: 696_720, .. }), "{error}");
    server.fail(Fault::Nothing);
    let dir = fetch(&hub).unwrap();
    assert_eq!(std::fs::metadata(dir.join("model.safetensors")).unwrap().len(), 696_720);
}

#[test]
fn a_file_that_another_program_is_downloading_is_waited_for() {
    let (server, hub, cache) = served("locked", "qwen3-gqa");
    let contents = fixture("qwen3-gqa")["model.safetensors"].clone();
    let blob = blobs(&cache).join(server.etag("model.safetensors"));
    let lock = std::fs::File::create(blob.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        std::fs::write(blob.with_extension("other"), &contents).unwrap();
        std::fs::rename(blob.with_extension("other"), &blob).unwrap();
        drop(lock);
    });
    let dir = fetch(&hub).unwrap();
    other.join().unwrap();
    assert!(dir.join("model.safetensors").is_file());
    assert!(server.asked().iter().all(|asked| !asked.path.starts_with("/stored/")));
}

#[test]
fn files_lie_as_other_programs_of_the_hub_expect_them() {
    let (server, hub, cache) = served("layout", "qwen3-gqa");
    let dir = fetch(&hub).unwrap();
    let etag = server.etag("model.safetensors");
    assert_eq!(dir, cache.join("models--tiny--llama/snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(cache.join("models--tiny--llama/refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(dir.join("model.safetensors")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(&etag));
    assert!(!blobs(&cache).join(format!("{etag}.part")).exists());
}

#[test]
fn a_model_that_another_program_left_a_part_of_is_completed_if_the_hub_can_be_reached() {
    let mut files = fixture("qwen3-gqa");
    for template in ["tokenizer_config.json", "chat_template.jinja"] {
        files.insert(template.into(), b"{}".to_vec());
    }
    let server = HubServer::start(REPO, files.clone());
    files.retain(|name, _| !["tokenizer_config.json", "chat_template.jinja"].contains(&name.as_str()));
    let cache = empty_dir("left-out");
    let snapshot = lay_out(&cache, "main", &files);
    let hub = Hub::new(cache).with_endpoint(&server.endpoint);
    server.fail(Fault::Status(503));
    assert_eq!(fetch(&hub).unwrap(), snapshot, "as it is");
    assert_eq!(fetch(&hub.clone().offline()).unwrap(), snapshot, "as it is");
    server.fail(Fault::Nothing);
    assert_eq!(fetch(&hub).unwrap(), snapshot);
    assert_eq!(server.files_asked(), ["tokenizer_config.json", "chat_template.jinja"]);
    assert!(snapshot.join("chat_template.jinja").is_file());
    assert_eq!(fetch(&hub).unwrap(), snapshot);
    assert!(server.asked().is_empty(), "now it is whole");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (_server, hub, cache) = served("unwritable", "qwen3-gqa");
    std::fs::write(cache.join("models--tiny--llama"), "a file where a directory should be").unwrap();
    let error = fetch(&hub).unwrap_err().to_string();
    assert!(error.contains("the cache of the hub") && error.contains("models--tiny--llama"), "{error}");
}

#[test]
fn a_token_that_is_not_accepted_is_what_the_error_says() {
    let (server, hub, _) = served("bad-token", "qwen3-gqa");
    server.fail(Fault::Status(401));
    let error = fetch(&hub.with_token("hf_old")).unwrap_err().to_string();
    assert!(error.contains("does not accept the token") && !error.contains("hf_old"), "{error}");
}

#[test]
fn every_refusal_says_what_to_do() {
    let (server, hub, _) = served("refused", "qwen3-gqa");
    let cases = [
        (401, "set HF_TOKEN"),
        (403, "accept its terms"),
        (404, "neither a directory nor a model"),
        (503, "try again later"),
    ];
    for (status, help) in cases {
        server.fail(Fault::Status(status));
        let error = fetch(&hub).unwrap_err();
        assert!(error.to_string().contains(help) && error.to_string().contains(REPO), "{status}: {error}");
    }
    server.fail(Fault::Nothing);
    let error = hub.fetch(&"other/model".parse().unwrap(), Files::All, &mut |_| GO_ON).unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
    // A port that nobody listens on.
    let error = fetch(&hub.with_endpoint("http://127.0.0.1:9")).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(words(&error).contains("check the network"), "{error}");
}

#[test]
fn the_token_is_sent_if_there_is_one() {
    let (server, hub, _) = served("token", "qwen3-gqa");
    hub.fetch(&name(), Files::Config, &mut |_| GO_ON).unwrap();
    assert!(server.asked().iter().all(|asked| asked.authorization.is_none()));
    fetch(&hub.with_token("hf_mine")).unwrap();
    let asked = server.asked();
    assert!(
        asked.len() > 3 && asked.iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_mine"))
    );
    // Where a login has left it.
    let home = empty_dir("token-home");
    std::fs::write(home.join("token"), "hf_file\n").unwrap();
    let vars = [("HF_HOME", home.to_str().unwrap()), ("HF_ENDPOINT", server.endpoint.as_str())];
    let var = |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| value.into());
    Hub::from_vars(var).fetch(&name(), Files::Config, &mut |_| GO_ON).unwrap();
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_file")), "{asked:?}");
}

#[test]
fn what_is_no_model_for_this_engine_is_refused_before_it_is_downloaded() {
    let mut files = fixture("qwen3-gqa");
    files.remove("model.safetensors");
    files.insert("pytorch_model.bin".into(), vec![0; 10]);
    let server = HubServer::start(REPO, files);
    let hub = Hub::new(empty_dir("no-model")).with_endpoint(&server.endpoint);
    let error = fetch(&hub).unwrap_err();
    assert!(matches!(error, HubError::NotAModel { missing: "safetensors", .. }), "{error}");
    assert!(server.files_asked().is_empty());
    let mut files = fixture("qwen3-gqa");
    files.remove("config.json");
    let server = HubServer::start(REPO, files);
    for files in [Files::Config, Files::All] {
        let hub = Hub::new(empty_dir("no-config")).with_endpoint(&server.endpoint);
        let error = hub.fetch(&name(), files, &mut |_| GO_ON).unwrap_err();
        assert!(matches!(error, HubError::NotAModel { missing: "config.json", .. }), "{error}");
    }
}

#[test]
fn an_encrypted_endpoint_is_spoken_to_in_tls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let first = std::thread::spawn(move || {
        let mut byte = [0];
        std::io::Read::read_exact(&mut listener.accept().unwrap().0, &mut byte).unwrap();
        byte[0]
    });
    let error = fetch(&Hub::new(empty_dir("tls")).with_endpoint(&endpoint)).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{}", words(&error));
    assert_eq!(first.join().unwrap(), 0x16, "a handshake");
}
