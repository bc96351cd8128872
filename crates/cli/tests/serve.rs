//! How `octavo serve` starts, or why it does not: the real binary with the built-in model.

#[path = "support/server.rs"]
mod server;

use server::{Server, between, file, octavo, refused};
use std::net::TcpListener;

/// A server on a port of its own.
fn serve(args: &[&str]) -> Server {
    Server::start(&mut octavo(&[&["serve", "--port", "0"], args].concat()))
}

fn why_not(args: &[&str]) -> String {
    refused(octavo(&[&["serve"], args].concat()).env("OCTAVO_PORT", "0"))
}

#[test]
fn the_greeting_says_what_runs_and_how_to_call_it() {
    let server = serve(&[]);
    let greeting = &server.greeting;
    for part in
        ["serves octavo-demo", "4096 pages of 16 tokens", "f16 with prefix cache", "batch 16", "4 096 tokens"]
    {
        assert!(greeting.contains(part), "{part} in {greeting}");
    }
    assert!(greeting.contains(&format!("base_url to http://{}/v1", server.address)), "{greeting}");
}

#[test]
fn the_command_in_the_greeting_works_as_it_is_printed() {
    let server = serve(&[]);
    let call = between(&server.greeting, "curl http://", "\n");
    let (address, rest) = call.split_once('/').unwrap();
    assert_eq!(address, server.address);
    let path = rest.split(' ').next().unwrap();
    let (header, body) = (between(rest, "-H '", "'"), between(rest, "-d '", "'"));
    let (status, answer) = server.request(&format!("POST /{path} HTTP/1.1\r\n{header}"), body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("chat.completion") && answer.contains("assistant"), "{answer}");
}

#[test]
fn a_key_is_asked_for_in_the_greeting_and_never_shown() {
    let server = serve(&["--api-key", "s3cret", "--served-model-name", "mine"]);
    assert!(server.greeting.contains("Authorization: Bearer KEY") && server.greeting.contains("serves mine"));
    assert_eq!(server.request("GET /v1/models HTTP/1.1", "").0, 401);
    assert_eq!(server.request("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer s3cret", "").0, 200);
    let greeting = server.greeting.clone();
    assert!(!(greeting + &server.errors()).contains("s3cret"));
    let mut help = octavo(&["serve", "--help"]);
    let help = help.env("OCTAVO_API_KEY", "s3cret").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("s3cret"));
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let path = file("layers.toml", "max-batch-size = 5\nport = 0\n");
    let path = path.to_str().unwrap();
    let batch = |args: &[&str], variable: Option<&str>| {
        let mut command = octavo(&[&["serve"], args].concat());
        command.envs(variable.map(|value| ("OCTAVO_MAX_BATCH_SIZE", value)));
        between(&Server::start(&mut command).greeting, "; batch ", ",").parse::<u32>().unwrap()
    };
    assert_eq!(batch(&["--port", "0"], None), 16);
    assert_eq!(batch(&["--config", path], None), 5);
    assert_eq!(batch(&["--config", path], Some("6")), 6);
    assert_eq!(batch(&["--config", path, "--max-batch-size", "7"], Some("6")), 7);
    assert_eq!(batch(&["--port", "0", "--max-batch-size", "7"], Some("6")), 7);
}

#[test]
fn the_file_itself_may_be_named_by_the_environment() {
    let path = file("named.toml", "port = 0\nmax_batch_size = 3\nserved-model-name = [\"a\", \"b\"]\n");
    let server = Server::start(octavo(&["serve"]).env("OCTAVO_CONFIG", &*path));
    assert!(
        server.greeting.contains("batch 3") && server.greeting.contains("serves a "),
        "{}",
        server.greeting
    );
    assert!(server.request("GET /v1/models/b HTTP/1.1", "").0 == 200);
}

#[test]
fn a_stronger_option_also_wins_over_those_it_excludes() {
    let path = file("excluded.toml", "kv-memory = \"100MB\"\n");
    let config = ["--config", path.to_str().unwrap()];
    assert!(serve(&config).greeting.contains("1525 pages of 16"));
    assert!(serve(&[&config[..], &["--num-pages", "300"]].concat()).greeting.contains("300 pages of 16"));
    let mut command = octavo(&["serve", "--port", "0", "--kv-memory", "100MB"]);
    let server = Server::start(command.env("OCTAVO_NUM_PAGES", "300"));
    assert!(server.greeting.contains("1525 pages of 16"), "{}", server.greeting);
    let both = file("both.toml", "kv-memory = \"100MB\"\nnum-pages = 300\n");
    assert!(why_not(&["--config", both.to_str().unwrap()]).contains("cannot be used with"));
}

#[test]
fn a_switch_in_the_environment_is_on_or_off() {
    for (value, expected) in [("1", "without"), ("true", "without"), ("0", "with"), ("no", "with")] {
        let mut command = octavo(&["serve", "--port", "0"]);
        let server = Server::start(command.env("OCTAVO_NO_PREFIX_CACHE", value));
        assert!(server.greeting.contains(&format!("f16 {expected} prefix cache")), "{value}");
    }
    // One that is off excludes nothing, and no file turns it on.
    let path = file("on.toml", "no-prefix-cache = true\n");
    let mut command = octavo(&["serve", "--port", "0", "--config", path.to_str().unwrap()]);
    let command = command.env("OCTAVO_NO_PREFIX_CACHE", "off").env("OCTAVO_EVICTION", "adaptive");
    assert!(Server::start(command).greeting.contains("f16 with prefix cache"));
    let error = refused(octavo(&["serve", "--port", "0"]).env("OCTAVO_NO_PREFIX_CACHE", "perhaps"));
    assert!(error.contains("--no-prefix-cache"), "{error}");
}

#[test]
fn a_switch_on_the_command_line_wins_over_the_environment_and_the_file() {
    let path = file("switched.toml", "no-prefix-cache = true\n");
    let config = ["--config", path.to_str().unwrap()];
    for (args, variable, expected) in [
        (&[][..], None, "without"),
        (&["--no-prefix-cache=false"], None, "with"),
        (&["--no-prefix-cache=false"], Some("true"), "with"),
        (&["--no-prefix-cache=No"], Some("true"), "with"),
        (&["--no-prefix-cache"], Some("false"), "without"),
        (&["--no-prefix-cache=true"], Some("false"), "without"),
    ] {
        let mut command = octavo(&[&["serve", "--port", "0"], &config[..], args].concat());
        command.envs(variable.map(|value| ("OCTAVO_NO_PREFIX_CACHE", value)));
        let server = Server::start(&mut command);
        let said = format!("f16 {expected} prefix cache");
        assert!(server.greeting.contains(&said), "{args:?} {variable:?}: {}", server.greeting);
    }
    let mut command = octavo(&["serve", "--port", "0", "--no-prefix-cache=false"]);
    let server = Server::start(command.env("OCTAVO_NO_PREFIX_CACHE", "true"));
    assert!(server.greeting.contains("f16 with prefix cache"), "{}", server.greeting);
}

/// That an eviction policy was taken shows where it is of no use.
#[test]
fn a_switch_that_is_turned_off_on_the_command_line_excludes_nothing() {
    let note = "keeps no prefixes: --eviction does nothing";
    let off = ["serve", "--port", "0", "--kv-backend", "contiguous", "--no-prefix-cache=false"];
    let start = |args: &[&str], variable: Option<&str>| {
        let mut command = octavo(&[&off[..], args].concat());
        command.env("OCTAVO_NO_PREFIX_CACHE", "true");
        command.envs(variable.map(|value| ("OCTAVO_EVICTION", value)));
        Server::start(&mut command).errors()
    };
    let path = file("rival.toml", "eviction = \"adaptive\"\nno-prefix-cache = true\n");
    let config = ["--config", path.to_str().unwrap()];
    for (args, variable) in
        [(&["--eviction", "adaptive"][..], None), (&[], Some("adaptive")), (&config[..], None)]
    {
        let said = start(args, variable);
        assert!(said.contains(note), "{args:?} {variable:?}: {said}");
    }
    assert!(!start(&[], None).contains("does nothing"));
    let error = why_not(&["--no-prefix-cache=true", "--eviction", "adaptive"]);
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn every_switch_is_true_or_false_and_nothing_else() {
    let shared = ["deterministic", "no-prefix-cache", "zero-freed", "commit-kv"];
    let shared = ["serve", "chat"].into_iter().flat_map(|command| shared.map(|switch| (command, switch)));
    for (command, switch) in shared.chain([("serve", "protect-all")]) {
        for value in ["perhaps", "2"] {
            let error = refused(&mut octavo(&[command, &format!("--{switch}={value}")]));
            let told =
                format!("invalid value '{value}' for '--{switch}[=<true|false>]': choose true or false");
            assert!(error.contains(&told), "{error}");
        }
        let error = refused(&mut octavo(&[command, &format!("--{switch}=")]));
        assert!(error.contains(&format!("--{switch}")), "{error}");
    }
}

/// But for the key: a server must not be open to all because a secret was not filled in.
#[test]
fn a_variable_that_is_empty_is_as_none() {
    let path = file("empty.toml", "max-batch-size = 5\n");
    let mut command = octavo(&["serve", "--port", "0", "--config", path.to_str().unwrap()]);
    for name in ["MODEL", "MAX_BATCH_SIZE", "NO_PREFIX_CACHE", "KV_MEMORY", "LOG", "SERVED_MODEL_NAME"] {
        command.env(format!("OCTAVO_{name}"), "");
    }
    assert!(Server::start(&mut command).greeting.contains("f16 with prefix cache; batch 5"));
    let error = refused(octavo(&["serve", "--port", "0"]).env("OCTAVO_API_KEY", ""));
    assert!(error.contains("API key 1 is empty"), "{error}");
}

#[test]
fn a_wrong_value_is_told_with_where_it_was_set() {
    let path = file("wrong.toml", "max-queue = \"many\"\n");
    let config = ["--config", path.to_str().unwrap()];
    let error = why_not(&config);
    assert!(error.contains(&format!("max-queue is set in {}", path.display())), "{error}");
    let environment = |args: &[&str]| refused(octavo(args).env("OCTAVO_MAX_QUEUE", "many"));
    let error = environment(&["serve", "--port", "0"]);
    assert!(error.contains("OCTAVO_MAX_QUEUE is set in the environment"), "{error}");
    let error = environment(&["serve", "--port", "0", "--max-queue", "few"]);
    assert!(error.contains("'few'") && !error.contains("is set in"), "{error}");
    let error = why_not(&[&config[..], &["--max-queue", "few"]].concat());
    assert!(error.contains("'few'") && !error.contains("is set in"), "{error}");
}

#[test]
fn a_file_may_have_options_of_other_commands() {
    let path = file("shared.toml", "port = 0\nmax-batch-size = 3\nsystem = \"Be brief.\"\nmax-tokens = 5\n");
    let server = Server::start(&mut octavo(&["serve", "--config", path.to_str().unwrap()]));
    assert!(server.greeting.contains("batch 3"), "{}", server.greeting);
}

#[test]
fn a_file_that_cannot_be_used_is_refused_by_what_is_wrong_in_it() {
    for (name, text, parts) in [
        (
            "unknown.toml",
            "max_bach-size = 5\n",
            ["no option `max_bach-size`", "do you mean `max-batch-size`?"],
        ),
        ("strange.toml", "qqqqqq = 5\n", ["no option `qqqqqq`", "octavo serve --help"]),
        ("nested.toml", "[serve]\nport = 1\n", ["`serve`", "no option"]),
        ("called.toml", "[system]\nport = 1\n", ["`system`", "no option"]),
        // Of commands that read no file.
        ("other.toml", "prompt-file = \"x\"\n", ["`prompt-file`", "no option"]),
        ("itself.toml", "config = \"x\"\n", ["`config`", "no option"]),
        ("value.toml", "max-queue = \"many\"\n", ["--max-queue", "many"]),
        ("range.toml", "max-batch-size = 0\n", ["--max-batch-size", "1..=65536"]),
        ("switch.toml", "protect-all = 3\n", ["`protect-all`", "true or false"]),
        ("table.toml", "kv-memory = { gb = 3 }\n", ["`kv-memory`", "text, a number"]),
        ("broken.toml", "port = \n", ["broken.toml", "not a configuration file"]),
    ] {
        let path = file(name, text);
        let error = why_not(&["--config", path.to_str().unwrap()]);
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {error}");
    }
    assert!(why_not(&["--config", "/no/such/file"]).contains("cannot read /no/such/file"));
}

#[test]
fn every_option_of_the_server_does_what_it_says() {
    let key = ["--api-key", "s3cret"];
    for (args, status) in [(&[][..], 200), (&["--protect-all=false"], 200), (&["--protect-all"], 401)] {
        let server = serve(&[&key[..], args].concat());
        for path in ["/health", "/ready", "/version", "/metrics"] {
            assert_eq!(server.request(&format!("GET {path} HTTP/1.1"), "").0, status, "{args:?} {path}");
        }
    }
    for (origin, allowed) in [("*", true), ("https://a.example", true), ("https://b.example", false)] {
        let server = serve(&["--cors-origin", origin]);
        let (head, _) = server.answer("GET /v1/models HTTP/1.1\r\nOrigin: https://a.example", "");
        let head = head.to_ascii_lowercase();
        let (any, own) = ("allow-origin: *", "allow-origin: https://a.example");
        assert_eq!(head.contains(any) || head.contains(own), allowed, "{origin}: {head}");
    }
    for (args, theirs) in [(&[][..], true), (&["--metrics-compat", "none"], false)] {
        let (_, metrics) = serve(args).request("GET /metrics HTTP/1.1", "");
        assert_eq!(metrics.contains("vllm:"), theirs, "{args:?}: {metrics}");
        assert!(metrics.contains("octavo_"), "{metrics}");
    }
    let server = serve(&["--max-prompt-tokens", "3"]);
    let post = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
    let ask = |prompt: &str| server.request(post, &format!("{{\"prompt\": {prompt}, \"max_tokens\": 1}}"));
    assert_eq!((ask("[5, 6, 7]").0, ask("[5, 6, 7, 8]").0), (200, 400));
}

#[test]
fn a_log_has_what_is_important_enough() {
    for (level, lines) in [("error", [false, false]), ("info", [true, false]), ("debug", [true, true])] {
        let server = serve(&["--log", level]);
        server.request("GET /v1/models HTTP/1.1", "");
        server.request("GET /health HTTP/1.1", "");
        let log = server.errors();
        assert_eq!([" INFO ", " DEBUG "].map(|kind| log.contains(kind)), lines, "{level}: {log}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_server() {
    for signal in ["INT", "TERM"] {
        let server = serve(&[]);
        server.signal(signal);
        let (code, said) = server.ended();
        assert_eq!(code, Some(0), "{signal}: {said}");
        assert!(said.contains("letting requests end; once more to end at once"), "{signal}: {said}");
    }
}

#[test]
fn the_command_in_the_greeting_suits_a_model_without_a_template() {
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let model = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-no-template");
    std::fs::create_dir_all(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(demo.join(name), model.join(name)).unwrap();
    }
    let server = serve(&["--model", model.to_str().unwrap()]);
    let greeting = &server.greeting;
    assert!(greeting.contains("serves serve-no-template on ") && greeting.contains("/v1/completions -H"));
    let body = between(greeting, "-d '", "'");
    let post = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
    let (status, answer) = server.request(post, body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_port_that_is_taken_is_told_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = refused(&mut octavo(&["serve", "--port", &port, "--model", "/no/such/model"]));
    assert!(error.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{error}");
    assert!(error.contains("--port") && !error.contains("/no/such/model"), "{error}");
}

#[test]
fn values_that_cannot_work_are_refused_with_what_to_do() {
    for (args, part) in [
        (["--port", "99999"], "0..=65535"),
        (["--host", "nowhere.invalid"], "choose another --host"),
        (["--model", "/no/such/model"], "config.json"),
        (["--max-batch-size", "0"], "1..=65536"),
        (["--max-queue", "0"], "0 is not in 1.."),
        (["--prompt-share", "0"], "above 0 and at most 1"),
        (["--prompt-share", "NaN"], "above 0 and at most 1"),
        (["--max-itl-ms", "0"], "1..=60000"),
        (["--aging", "0"], "1..=86400"),
        (["--time-limit", "0"], "1..=86400"),
        (["--chunk", "0"], "0 is not in 1.."),
        (["--max-model-len", "1"], "1 is not in 2.."),
        (["--max-model-len", "5000"], "choose 2 to 4096"),
        (["--threads", "0"], "--threads"),
        (["--max-body", "10"], "at least 1 KiB"),
        (["--max-requests", "0"], "at least 1"),
        (["--drain", "100000"], "at most a day"),
        (["--api-key", ""], "API key 1 is empty"),
        (["--cors-origin", "example.org"], "https://example.org"),
        (["--eviction", "random"], "lru, priority, adaptive"),
        (["--log", "loud"], "error, warn, info, debug"),
    ] {
        let error = why_not(&args);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

#[test]
fn a_cache_that_cannot_work_is_refused_with_what_to_change() {
    for (args, part) in [
        (&["--page-size", "0"][..], "0 is not in 1.."),
        (&["--kv-backend", "contiguous", "--page-size", "0"], "0 is not in 1.."),
        (&["--kv-backend", "ring"], "paged, contiguous"),
        (&["--batching", "sometimes"], "continuous, static"),
        (&["--num-pages", "0"], "0 is not in 1.."),
        (&["--kv-memory", "1KB"], "at least one page (65536 bytes)"),
        (&["--kv-memory", "lots"], "use KB, MB, GB"),
        (&["--kv-memory", "1GB", "--num-pages", "3"], "cannot be used with"),
        (&["--num-pages", "5", "--max-model-len", "4096"], "lower the maximum length to 80 tokens"),
        (&["--kv-backend", "contiguous", "--kv-memory", "1MB"], "at least one page (16777216 bytes)"),
        (&["--kv-window", "0"], "0 is not in 1.."),
        (&["--no-prefix-cache", "--cached-memory", "1GB"], "cannot be used with"),
        (&["--no-prefix-cache", "--eviction", "priority"], "cannot be used with"),
    ] {
        let error = why_not(args);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

#[test]
fn every_cache_that_can_work_starts_and_says_how_large_it_is() {
    for (args, expected) in [
        (&["--page-size", "1"][..], "65536 pages of 1 tokens, 268.4 MB at most"),
        (&["--page-size", "48"], "pages of 48 tokens"),
        (&["--num-pages", "256"], "256 pages of 16 tokens, 16.8 MB at most"),
        (&["--num-pages", "20000"], "20000 pages of 16 tokens, 1.31 GB at most"),
        (&["--batching", "static", "--max-batch-size", "4"], "1024 pages of 16 tokens"),
        (&["--kv-backend", "contiguous", "--batching", "static"], "16 pages of 4096 tokens"),
        (&["--kv-backend", "contiguous", "--max-batch-size", "3"], "3 pages of 4096 tokens"),
        (&["--kv-backend", "contiguous", "--max-model-len", "100"], "16 pages of 100 tokens"),
        (&["--kv-backend", "contiguous", "--kv-window", "64"], "16 pages of 4096 tokens"),
        (&["--max-batch-size", "2", "--kv-window", "4000"], "512 pages of 16 tokens"),
        (&["--max-batch-size", "2", "--kv-window", "64"], "266 pages of 16 tokens"),
        (&["--max-batch-size", "2", "--max-model-len", "100"], "14 pages of 16 tokens"),
    ] {
        let greeting = serve(args).greeting.clone();
        assert!(greeting.contains(expected), "{args:?}: {greeting}");
    }
}

#[test]
fn a_pool_smaller_than_the_longest_sequence_shortens_it_and_says_so() {
    let server = serve(&["--num-pages", "5"]);
    assert!(server.greeting.contains("sequences of up to 80 tokens"), "{}", server.greeting);
    assert!(server.errors().contains("the KV cache holds 80 tokens of one sequence"));
}

#[test]
fn the_contiguous_back_end_ignores_the_size_and_the_number_of_pages() {
    let server = serve(&["--kv-backend", "contiguous", "--page-size", "7", "--num-pages", "999"]);
    assert!(server.greeting.contains("16 pages of 4096 tokens"), "{}", server.greeting);
    assert!(server.greeting.contains("without prefix cache"), "{}", server.greeting);
    let note = server.errors();
    assert!(note.contains("ignores the number of pages"), "{note}");
}

#[test]
fn options_of_a_cache_that_keeps_no_prefixes_are_said_to_do_nothing() {
    for (args, expected) in [
        (&["--cached-memory", "1GB"][..], "keeps no prefixes: --cached-memory does nothing"),
        (&["--eviction", "adaptive"], "keeps no prefixes: --eviction does nothing"),
    ] {
        let note = serve(&[&["--kv-backend", "contiguous"], args].concat()).errors();
        assert!(note.contains(expected), "{args:?}: {note}");
        let note = serve(args).errors();
        assert!(!note.contains("does nothing"), "{args:?}: {note}");
    }
}

#[test]
fn help_lists_every_option_with_its_default_and_its_variable() {
    let help = String::from_utf8(octavo(&["serve", "--help"]).output().unwrap().stdout).unwrap();
    for (option, default) in [
        ("host", "[default: 127.0.0.1]"),
        ("port", "[default: 8000]"),
        ("model", "[default: the built-in model]"),
        ("kv-backend", "[default: paged]"),
        ("page-size", "[default: 16]"),
        ("kv-memory", "[default: enough for a full batch of full length,"),
        ("num-pages", ""),
        ("max-model-len", "[default: what the model was made for]"),
        ("max-batch-size", "[default: 16]"),
        ("batching", "[default: continuous]"),
        ("threads", "[default: one a core]"),
        ("max-queue", "[default: 1024]"),
        ("prompt-share", "[default: 0.8]"),
        ("max-itl-ms", "[default: no limit]"),
        ("eviction", "[default: lru]"),
        ("drain", "[default: 30]"),
    ] {
        let entry = between(&help, &format!("      --{option} <"), "\n\n      --").replace('\n', " ");
        let entry = entry.split_whitespace().collect::<Vec<_>>().join(" ");
        let variable = format!("[env: OCTAVO_{}]", option.replace('-', "_").to_uppercase());
        assert!(entry.contains(default) && entry.contains(&variable), "{option}: {entry}");
    }
}
