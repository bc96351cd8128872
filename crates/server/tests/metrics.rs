//! Every metric that dashboards read is there, in a form they can read.

mod support;

use octavo::{Options, PolicyKind};
use octavo_server::{MetricsCompat, ServerOptions};
use serde_json::json;
use std::collections::HashMap;
use std::sync::LazyLock;
use support::{TestServer, engine_options};

static SERVER: LazyLock<TestServer> = LazyLock::new(TestServer::start);

const GAUGES: &[&str] = &[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cache_config_info",
    "octavo_requests_running",
    "octavo_requests_waiting",
    "octavo_sequences_running",
    "octavo_pages",
    "octavo_pages_capacity",
    "octavo_internal_fragmentation_ratio",
    "octavo_pages_allocated_per_second",
    "octavo_pages_freed_per_second",
    "octavo_http_requests_in_flight",
    "octavo_http_connections",
];
const COUNTERS: &[&str] = &[
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "octavo_prefix_lookups_total",
    "octavo_copies_on_write_total",
    "octavo_pages_evicted_total",
    "octavo_preemptions_total",
    "octavo_tokens_recomputed_total",
    "octavo_http_requests_total",
];
const HISTOGRAMS: &[&str] = &[
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
    "vllm:kv_block_lifetime_seconds",
    "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_reuse_gap_seconds",
    "octavo_step_plan_seconds",
    "octavo_step_run_seconds",
    "octavo_step_post_seconds",
    "octavo_prefill_chunk_tokens",
];

/// Samples by name and labels.
fn samples(text: &str) -> HashMap<&str, f64> {
    let sample = |line: &'_ str| -> Option<(usize, f64)> {
        let at = line.rfind(' ')?;
        Some((at, line[at + 1..].parse().ok()?))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (at, value) = sample(line).unwrap_or_else(|| panic!("{line}"));
            (&line[..at], value)
        })
        .collect()
}

#[test]
fn every_name_is_there_with_its_type_before_anything_ran() {
    let fresh = TestServer::start();
    fresh.get("/v1/models");
    let metrics = fresh.get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = metrics.text();
    for (kind, names) in [("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)] {
        for name in names {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
            assert_eq!(text.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
            let of_name = |line: &&str| {
                let rest =
                    line.strip_prefix(name).or_else(|| line.strip_prefix(&format!("{name}_bucket")[..]));
                rest.is_some_and(|rest| {
                    rest.starts_with('{') || rest.starts_with(' ') || rest.starts_with("_bucket{")
                })
            };
            assert!(text.lines().any(|line| of_name(&line)), "{name} has no sample:\n{text}");
        }
    }
    assert!(!text.contains("# EOF"));
    samples(text);
}

#[test]
fn the_labels_are_those_of_vllm() {
    let text = SERVER.get("/metrics").text().to_owned();
    let usage = text.lines().find(|line| line.starts_with("vllm:kv_cache_usage_perc{")).unwrap();
    assert!(usage.contains("model_name=\"octavo-demo\"") && usage.contains("engine=\"0\""), "{usage}");
    let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
    for label in [
        "block_size=\"16\"",
        "num_gpu_blocks=\"256\"",
        "cache_dtype=\"f16\"",
        "enable_prefix_caching=\"True\"",
    ] {
        assert!(info.contains(label), "{info}");
    }
    assert!(info.ends_with("} 1"), "{info}");
    for reason in ["stop", "length", "abort", "error"] {
        assert!(text.contains(&format!("finished_reason=\"{reason}\"")), "{reason}");
    }
}

#[test]
fn what_runs_here_is_said_in_labels() {
    let engine = Options { prefix_cache: false, policy: PolicyKind::Priority, ..engine_options() };
    let server = TestServer::with(ServerOptions::default(), engine);
    let text = server.get("/metrics").text().to_owned();
    let labels = format!(
        "model_name=\"octavo-demo\",device=\"{}\",kv_dtype=\"f16\",policy=\"priority\",version=\"{}\"",
        server.engine.device(),
        env!("CARGO_PKG_VERSION")
    );
    assert!(text.contains(&format!("octavo_build_info{{{labels}}} 1\n")), "{text}");
    assert!(text.contains("class=\"old\",policy=\"priority\"} 0\n"), "{text}");
    assert!(text.contains("enable_prefix_caching=\"False\""), "{text}");
}

#[test]
fn the_numbers_are_those_of_what_ran() {
    let server = TestServer::start();
    let prompt: Vec<u32> = (100..164).collect();
    for _ in 0..2 {
        server.ask("/v1/completions", json!({"prompt": prompt, "max_tokens": 5, "ignore_eos": true}));
    }
    // The cache's numbers are shown with the step after.
    server.wait_for_cache("nobody uses a page", |cache| cache["pages"]["used"] == 0);
    let shown = "vllm:prefix_cache_queries_total{model_name=\"octavo-demo\",engine=\"0\"} 128\n";
    let text = server.wait_for_metrics(shown);
    let all = samples(&text);
    let value = |name: &str| {
        let labels = "model_name=\"octavo-demo\",engine=\"0\"";
        let key = format!("vllm:{name}{{{labels}}}");
        *all.get(key.as_str()).unwrap_or_else(|| panic!("{key}\n{text}"))
    };
    assert_eq!(value("prompt_tokens_total"), 128.0);
    assert_eq!(value("generation_tokens_total"), 10.0);
    // The last prompt token is always computed, and with it its page.
    assert_eq!(value("prompt_tokens_cached_total"), 63.0);
    assert_eq!((value("prefix_cache_queries_total"), value("prefix_cache_hits_total")), (128.0, 63.0));
    assert_eq!(value("e2e_request_latency_seconds_count"), 2.0);
    assert_eq!(value("request_generation_tokens_sum"), 10.0);
    assert_eq!(value("num_requests_running"), 0.0);
    let pages =
        |state: &str| all[format!("octavo_pages{{model_name=\"octavo-demo\",state=\"{state}\"}}").as_str()];
    assert_eq!(pages("used") + pages("cached") + pages("reserved") + pages("free"), 256.0);
    let own = |name: &str| all[format!("octavo_{name}{{model_name=\"octavo-demo\"}}").as_str()];
    assert_eq!(own("pages_allocated_total") - own("pages_freed_total"), pages("used") + pages("cached"));
    let cache = server.get("/v1/cache").json();
    assert_eq!((own("pages_capacity"), own("max_length_tokens")), (256.0, 1024.0));
    assert_eq!(Some(own("page_bytes")), cache["page_bytes"].as_f64());
    let answered = "octavo_http_requests_total{path=\"/v1/completions\",method=\"POST\",code=\"200\"}";
    assert_eq!(all[answered], 2.0);
}

#[test]
fn clients_cannot_make_up_labels() {
    let server = TestServer::start();
    server.get("/v1/nothing");
    server.get("/v1/models/octavo-demo");
    server.send("BREW", "/v1/models", &[], b"");
    let text = server.get("/metrics").text().to_owned();
    let all = samples(&text);
    for labels in [
        r#"path="other",method="GET",code="404""#,
        r#"path="/v1/models/{*id}",method="GET",code="200""#,
        r#"path="/v1/models",method="other",code="405""#,
    ] {
        assert_eq!(all[format!("octavo_http_requests_total{{{labels}}}").as_str()], 1.0, "{labels}");
    }
}

#[test]
fn what_was_changed_from_outside_is_shown_at_the_next_look() {
    let server = TestServer::start();
    let prompt: Vec<u32> = (100..164).collect();
    server.ask("/v1/completions", json!({"prompt": prompt, "max_tokens": 1}));
    server.wait_for_cache("nobody uses a page", |cache| cache["pages"]["used"] == 0);
    let shown = |name: &str, labels: &str| {
        let text = server.get("/metrics").text().to_owned();
        samples(&text)[format!("{name}{{model_name=\"octavo-demo\"{labels}}}").as_str()]
    };
    let pin = server.post("/v1/cache/pins", &json!({"tokens": prompt}));
    assert_eq!(pin.status, 201, "{}", pin.text());
    assert_eq!(shown("octavo_pages_pinned", ""), 4.0);
    server.delete(&format!("/v1/cache/pins/{}", pin.json()["id"]));
    assert_eq!(shown("octavo_pages_pinned", ""), 0.0);
    assert!(shown("octavo_pages", ",state=\"cached\"") >= 4.0);
    server.delete("/v1/cache/prefixes");
    assert_eq!(shown("octavo_pages", ",state=\"cached\""), 0.0);
}

#[test]
fn a_histograms_buckets_ascend_to_its_count() {
    SERVER.ask("/v1/completions", json!({"prompt": "a", "max_tokens": 3}));
    let text = SERVER.get("/metrics").text().to_owned();
    for name in HISTOGRAMS {
        let prefix = format!("{name}_bucket{{");
        let values: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with(&prefix))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(values.len() > 3 && values.is_sorted(), "{name}: {values:?}");
        assert!(text.lines().any(|line| line.starts_with(&prefix) && line.contains("le=\"+Inf\"")), "{name}");
        let count = text.lines().find(|line| line.starts_with(&format!("{name}_count{{"))).unwrap();
        assert_eq!(
            count.rsplit(' ').next().unwrap().parse::<f64>().unwrap(),
            *values.last().unwrap(),
            "{name}"
        );
    }
}

#[test]
fn prometheus_gets_the_format_it_asks_for() {
    let headers = [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    let open = SERVER.send("GET", "/metrics", &headers, b"");
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
    assert!(open.text().contains("# TYPE vllm:prompt_tokens counter\n"));
}

#[test]
fn the_names_of_others_can_be_left_out() {
    let options = ServerOptions { metrics_compat: MetricsCompat::None, ..ServerOptions::default() };
    let text = TestServer::with(options, engine_options()).get("/metrics").text().to_owned();
    assert!(!text.contains("vllm:") && text.contains("octavo_pages_capacity"));
}
