//! `--model org/name`, the real binary against a hub that is a server on this machine.

#[path = "../../octavo/tests/hub_server/mod.rs"]
mod hub_server;

use hub_server::{HubServer, empty_dir, files_of};
use std::path::Path;
use std::process::{Command, Output};

/// The built-in model's files, as a model of the hub.
fn demo() -> HubServer {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    HubServer::start("octavo/demo", files_of(&dir))
}

/// Runs the binary with these variables and no others of the hub's.
fn octavo(args: &[&str], vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"] {
        command.env_remove(name);
    }
    command.args(args).envs(vars.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const ASK: [&str; 7] =
    ["generate", "--chat", "What does Vec::push do?", "--temperature", "0", "--model", "octavo/demo"];
const ANSWER: &str = "`Vec::push` appends an element to the back of a collection.\n";

#[test]
fn a_model_is_downloaded_by_name_once_and_then_runs_offline() {
    let (server, home) = (demo(), empty_dir("by-name"));
    let home = home.to_str().unwrap();
    let online = [("HF_HOME", home), ("HF_ENDPOINT", server.endpoint.as_str()), ("HF_TOKEN", "hf_mine")];
    let first = octavo(&ASK, &online);
    assert_eq!(text(&first.stdout), ANSWER, "{}", text(&first.stderr));
    assert!(
        text(&first.stderr).contains("downloading model.safetensors (15.02 MiB)"),
        "{}",
        text(&first.stderr)
    );
    assert!(server.asked().iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_mine")));

    let cache = format!("{home}/hub");
    let offline = [("HF_HUB_CACHE", cache.as_str()), ("HF_HUB_OFFLINE", "1")];
    assert_eq!(text(&octavo(&ASK, &offline).stdout), ANSWER);
    assert!(server.asked().is_empty());
}

#[test]
fn a_plan_downloads_the_configuration_alone_and_has_the_models_name() {
    let (server, home) = (demo(), empty_dir("plan"));
    let vars = [("HF_HOME", home.to_str().unwrap()), ("HF_ENDPOINT", server.endpoint.as_str())];
    let plan = octavo(&["plan", "--model", "octavo/demo", "--json", "-"], &vars);
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan["model"], "octavo/demo");
    assert_eq!(server.files_asked(), ["config.json"]);
}

/// A download takes minutes.
#[test]
fn what_is_wrong_without_the_model_is_told_before_anything_is_downloaded() {
    let (server, home) = (demo(), empty_dir("refused"));
    let vars = [("HF_HOME", home.to_str().unwrap()), ("HF_ENDPOINT", server.endpoint.as_str())];
    let folder = home.join("no/such/file");
    let missing = folder.to_str().unwrap();
    for (args, part) in [
        (&["generate", "x", "--page-size", "0"][..], "--page-size"),
        (&["generate", "x", "--num-pages", "0"], "--num-pages"),
        (&["generate", "x", "--kv-memory", "0"], "--kv-memory"),
        (&["generate", "x", "--kv-window", "0"], "--kv-window"),
        (&["generate", "x", "--chunk", "0"], "--chunk"),
        (&["generate", "x", "--max-model-len", "1"], "--max-model-len"),
        (&["generate", "x", "--temperature", "-1"], "--temperature"),
        (&["generate", "x", "--min-p", "2"], "--min-p"),
        (&["generate", "x", "--device", "cuda:99"], "--device cpu"),
        (&["generate", "x", "--json", missing], "cannot write"),
        (&["generate", "--prompt-file", missing], "cannot read"),
        (&["chat", "--prompt-share", "0"], "--prompt-share"),
        (&["chat", "--max-queue", "0"], "--max-queue"),
        (&["chat", "--frequency-penalty", "3"], "--frequency-penalty"),
        (&["plan", "--json", missing], "cannot write"),
        (&["quality", "--text", missing], "cannot read"),
        (&["quality", "--recall", missing], "cannot read"),
        (&["quality", "--threads", "9999"], "choose 1 to 1024"),
    ] {
        let output = octavo(&[args, &["--model", "octavo/demo"]].concat(), &vars);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{args:?}: {error}");
        assert!(server.asked().is_empty(), "{args:?}");
    }
}

#[test]
fn offline_a_model_that_is_not_there_is_refused_with_a_way_out() {
    let home = empty_dir("offline");
    let vars = [("HF_HOME", home.to_str().unwrap()), ("HF_HUB_OFFLINE", "1")];
    for command in ["generate", "quality", "plan"] {
        let args: &[&str] = if command == "generate" { &[command, "x"] } else { &[command] };
        let output = octavo(&[args, &["--model", "octavo/nothing"]].concat(), &vars);
        let error = text(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{command}");
        assert!(error.starts_with("octavo: octavo/nothing is no directory, it is not in"), "{error}");
        assert!(error.contains("HF_HUB_OFFLINE is set: unset it"), "{error}");
    }
}
