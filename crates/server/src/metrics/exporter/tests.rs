//! Every name carries what it says: each number comes from one place and is there once.

use super::*;
use crate::numbered::number;
use octavo::{Llm, Options};

/// What is written of these numbers, under both kinds of names.
fn written(metrics: Metrics, snapshot: Snapshot) -> String {
    let source = Source { metrics: Arc::new(metrics), at_start: Some(snapshot) };
    let fixed = Fixed {
        page_size: 16,
        total: 100,
        page_bytes: 4096,
        dtype: "f16",
        policy: "lru".into(),
        prefix_cache: true,
        max_len: 50,
        device: "cpu".into(),
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Own { source: source.clone(), fixed: fixed.clone() }));
    registry.register_collector(Box::new(Vllm { source, fixed }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// A cache that nobody has used.
fn fresh_snapshot() -> Snapshot {
    let serving = Llm::load(&Options::default(), &mut |_| {}).unwrap().serve();
    fresh(&serving.handle).unwrap()
}

/// The one sample of this name, with this label if there is one.
fn sample(text: &str, name: &str, label: &str) -> f64 {
    let named = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
    };
    let lines: Vec<&str> = text.lines().filter(named).collect();
    let [line] = lines[..] else { panic!("{name} {label}: {lines:?}") };
    line[line.rfind(' ').unwrap() + 1..].parse().unwrap()
}

#[test]
fn what_the_engine_counts_and_times_goes_by_its_own_name() {
    let m = Metrics::default();
    let gauges: [(_, &[&str]); 3] = [
        (&m.requests_running, &["octavo_requests_running", "vllm:num_requests_running"]),
        (&m.requests_waiting, &["octavo_requests_waiting", "vllm:num_requests_waiting"]),
        (&m.sequences_running, &["octavo_sequences_running"]),
    ];
    let counters: [(_, &[&str]); 8] = [
        (&m.prompt_tokens, &["octavo_prompt_tokens_total", "vllm:prompt_tokens_total"]),
        (&m.prompt_tokens_cached, &["octavo_prompt_tokens_cached_total", "vllm:prompt_tokens_cached_total"]),
        (&m.generation_tokens, &["octavo_generation_tokens_total", "vllm:generation_tokens_total"]),
        (&m.preemptions, &["octavo_preemptions_total", "vllm:num_preemptions_total"]),
        (&m.tokens_recomputed, &["octavo_tokens_recomputed_total"]),
        (&m.steps, &["octavo_steps_total"]),
        (&m.failed_steps, &["octavo_failed_steps_total"]),
        (&m.failed_audits, &["octavo_failed_audits_total"]),
    ];
    let ends = [
        (&m.finished.stop, "\"stop\""),
        (&m.finished.length, "\"length\""),
        (&m.finished.abort, "\"abort\""),
        (&m.finished.error, "\"error\""),
    ];
    let histograms: [(_, &[&str]); 20] = [
        (&m.time_to_first_token, &["octavo_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"]),
        (
            &m.inter_token_latency,
            &[
                "octavo_inter_token_latency_seconds",
                "vllm:inter_token_latency_seconds",
                "vllm:time_per_output_token_seconds",
            ],
        ),
        (&m.time_per_output_token, &["vllm:request_time_per_output_token_seconds"]),
        (&m.request_latency, &["octavo_request_latency_seconds", "vllm:e2e_request_latency_seconds"]),
        (&m.queue_time, &["octavo_queue_time_seconds", "vllm:request_queue_time_seconds"]),
        (&m.prefill_time, &["vllm:request_prefill_time_seconds"]),
        (&m.decode_time, &["vllm:request_decode_time_seconds"]),
        (&m.inference_time, &["vllm:request_inference_time_seconds"]),
        (&m.request_prompt_tokens, &["vllm:request_prompt_tokens"]),
        (&m.request_generation_tokens, &["vllm:request_generation_tokens"]),
        (&m.request_choices, &["vllm:request_params_n"]),
        (&m.request_max_tokens, &["vllm:request_params_max_tokens"]),
        (&m.step_tokens, &["octavo_step_tokens", "vllm:iteration_tokens_total"]),
        (&m.chunk, &["octavo_prefill_chunk_tokens"]),
        (&m.plan_time, &["octavo_step_plan_seconds"]),
        (&m.run_time, &["octavo_step_run_seconds"]),
        (&m.post_time, &["octavo_step_post_seconds"]),
        (&m.page_lifetime, &["vllm:kv_block_lifetime_seconds"]),
        (&m.page_idle_before_evict, &["vllm:kv_block_idle_before_evict_seconds"]),
        (&m.page_reuse_gap, &["vllm:kv_block_reuse_gap_seconds"]),
    ];
    let mut numbers = 1..;
    let mut expected: Vec<(String, &str, f64)> = Vec::new();
    for ((gauge, names), n) in gauges.iter().zip(&mut numbers) {
        gauge.set(n);
        expected.extend(names.iter().map(|name| ((*name).into(), "", n as f64)));
    }
    for ((counter, names), n) in counters.iter().zip(&mut numbers) {
        counter.add(n);
        expected.extend(names.iter().map(|name| ((*name).into(), "", n as f64)));
    }
    for ((counter, reason), n) in ends.into_iter().zip(&mut numbers) {
        counter.add(n);
        let names = ["octavo_requests_finished_total", "vllm:request_success_total"];
        expected.extend(names.map(|name| (name.into(), reason, n as f64)));
    }
    for ((histogram, names), n) in histograms.iter().zip(&mut numbers) {
        histogram.observe(n as f64);
        expected.extend(names.iter().map(|name| (format!("{name}_sum"), "", n as f64)));
    }
    let bounds: Vec<f64> = m.step_tokens.bounds().to_vec();
    let text = written(m, fresh_snapshot());
    let buckets = text.lines().filter_map(|line| line.strip_prefix("octavo_step_tokens_bucket{le=\""));
    let buckets: Vec<f64> =
        buckets.map(|rest| rest.split('"').next().unwrap().parse().unwrap_or(f64::INFINITY)).collect();
    assert_eq!(buckets, [&bounds[..], &[f64::INFINITY]].concat());
    for (name, label, value) in expected {
        assert_eq!(sample(&text, &name, label), value, "{name} {label}");
    }
}

#[test]
fn what_the_cache_counts_goes_by_its_own_name() {
    let mut s = fresh_snapshot();
    number(&mut s);
    let text = written(Metrics::default(), s);
    for (name, label, value) in [
        ("octavo_pages", "\"used\"", 20.0),
        ("octavo_pages", "\"cached\"", 30.0),
        ("octavo_pages", "\"reserved\"", 4.0),
        ("octavo_pages", "\"free\"", 46.0),
        ("octavo_pages_capacity", "", 100.0),
        ("octavo_pages_pinned", "", 5.0),
        ("octavo_pages_evictable", "", 6.0),
        ("octavo_pages_peak_used", "", 70.0),
        ("octavo_page_bytes", "", 4096.0),
        ("octavo_max_length_tokens", "", 50.0),
        ("octavo_internal_fragmentation_ratio", "", 0.25),
        ("octavo_pages_allocated_per_second", "", 1.5),
        ("octavo_pages_freed_per_second", "", 2.5),
        ("octavo_prefix_lookups_total", "\"whole_prompt\"", 7.0),
        ("octavo_prefix_lookups_total", "\"page_not_full\"", 8.0),
        ("octavo_prefix_lookups_total", "\"evicted\"", 9.0),
        ("octavo_prefix_lookups_total", "\"never_seen\"", 10.0),
        ("octavo_prefix_lookups_total", "\"differs\"", 11.0),
        ("octavo_prefix_lookups_total", "\"not_looked_up\"", 12.0),
        ("octavo_pages_evicted_total", "\"old\"", 13.0),
        ("octavo_pages_evicted_total", "\"recent\"", 14.0),
        ("octavo_pages_evicted_total", "\"prefix\"", 15.0),
        ("octavo_prefix_hit_tokens_total", "", 16.0),
        ("octavo_prefix_missed_tokens_total", "", 17.0),
        ("octavo_copies_on_write_total", "", 18.0),
        ("octavo_partial_copies_total", "", 19.0),
        ("octavo_forks_total", "", 21.0),
        ("octavo_computed_tokens_total", "", 22.0),
        ("octavo_evictions_total", "", 23.0),
        ("octavo_key_collisions_total", "", 24.0),
        ("vllm:kv_cache_usage_perc", "", 0.2),
        ("vllm:gpu_cache_usage_perc", "", 0.2),
        ("vllm:prefix_cache_queries_total", "", 33.0),
        ("vllm:prefix_cache_hits_total", "", 16.0),
    ] {
        assert_eq!(sample(&text, name, label), value, "{name} {label}");
    }
}
