//! Every metric's name on the wire, and nothing else but names.

#[cfg(test)]
mod tests;

use super::http::Http;
use super::text::Format;
use super::write::Out;
use crate::config::MetricsCompat;
use octavo::{Counters, EngineHandle, KvSpec, Metrics, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Exporter {
    registry: Registry,
    pub(crate) http: Http,
}

/// What does not change while the server runs.
#[derive(Debug, Clone)]
struct Fixed {
    page_size: u32,
    total: u32,
    page_bytes: u64,
    dtype: &'static str,
    policy: String,
    prefix_cache: bool,
    max_len: u32,
    device: String,
}

impl Exporter {
    pub(crate) fn new(handle: &EngineHandle, spec: &KvSpec, model: &Arc<str>, compat: MetricsCompat) -> Self {
        let source = Source { metrics: handle.metrics().clone(), at_start: fresh(handle) };
        let settings = handle.intake().settings();
        let fixed = Fixed {
            page_size: settings.page_size.tokens().0,
            total: settings.total.0,
            page_bytes: settings.page_bytes.0,
            dtype: spec.dtype().name(),
            policy: settings.policy.to_string(),
            prefix_cache: settings.prefix_cache,
            max_len: handle.intake().max_len().0,
            device: handle.device().into(),
        };
        let http = Http::default();
        let mut registry = Registry::default();
        registry.register("octavo_http_requests", "Answered requests", http.requests.clone());
        registry.register(
            "octavo_http_requests_in_flight",
            "Requests to generate, tokenise or pin that are under way, streams to their end",
            http.in_flight.clone(),
        );
        registry.register("octavo_http_connections", "Open connections", http.connections.clone());
        let label = |name: &'static str, value: &str| (name.into(), value.to_owned().into());
        let own = registry.sub_registry_with_labels([label("model_name", model)].into_iter());
        own.register_collector(Box::new(Own { source: source.clone(), fixed: fixed.clone() }));
        if compat == MetricsCompat::Vllm {
            let labels = [label("model_name", model), label("engine", "0")];
            let vllm = registry.sub_registry_with_labels(labels.into_iter());
            vllm.register_collector(Box::new(Vllm { source, fixed }));
        }
        Self { registry, http }
    }

    pub(crate) fn text(&self, format: Format, in_flight: usize) -> String {
        self.http.in_flight.set(in_flight as i64);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("a string takes everything");
        format.of(text)
    }
}

/// Where the numbers come from.
#[derive(Debug, Clone)]
struct Source {
    metrics: Arc<Metrics>,
    /// What holds before the first step.
    at_start: Option<Snapshot>,
}

impl Source {
    fn cache(&self) -> Option<Snapshot> {
        self.metrics.cache().or_else(|| self.at_start.clone())
    }
}

fn ends(m: &Metrics) -> [(&'static str, u64); 4] {
    let ends = &m.finished;
    [
        ("stop", ends.stop.get()),
        ("length", ends.length.get()),
        ("abort", ends.abort.get()),
        ("error", ends.error.get()),
    ]
}

/// The cache before anything ran. An engine that does not answer shows it with its first step.
fn fresh(handle: &EngineHandle) -> Option<Snapshot> {
    handle.report().wait(Duration::from_secs(5)).ok().map(|report| report.snapshot)
}

/// Octavo's own names.
#[derive(Debug)]
struct Own {
    source: Source,
    fixed: Fixed,
}

impl Collector for Own {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::new(encoder);
        self.encode_requests(&mut out)?;
        self.encode_steps(&mut out)?;
        self.encode_build(&mut out)?;
        let Some(snapshot) = self.source.cache() else { return Ok(()) };
        self.encode_pages(&mut out, &snapshot)?;
        self.encode_counters(&mut out, &snapshot.counters)
    }
}

impl Own {
    fn encode_requests(&self, out: &mut Out<'_>) -> fmt::Result {
        let m = &self.source.metrics;
        out.gauge("octavo_requests_running", "Requests that run", m.requests_running.get() as f64)?;
        out.gauge("octavo_requests_waiting", "Requests that wait", m.requests_waiting.get() as f64)?;
        out.gauge("octavo_sequences_running", "Sequences that run", m.sequences_running.get() as f64)?;
        out.counter("octavo_prompt_tokens", "Prompt tokens of admitted requests", m.prompt_tokens.get())?;
        out.counter(
            "octavo_prompt_tokens_cached",
            "Prompt tokens found in the cache",
            m.prompt_tokens_cached.get(),
        )?;
        out.counter("octavo_generation_tokens", "Generated tokens", m.generation_tokens.get())?;
        out.counter("octavo_preemptions", "Sequences that gave up their pages", m.preemptions.get())?;
        out.counter(
            "octavo_tokens_recomputed",
            "Tokens computed again after that",
            m.tokens_recomputed.get(),
        )?;
        out.counters("octavo_requests_finished", "Requests by how they ended", "reason", &ends(m))?;
        out.histogram(
            "octavo_time_to_first_token_seconds",
            "From arrival to the first token",
            &m.time_to_first_token,
        )?;
        out.histogram("octavo_inter_token_latency_seconds", "Between two tokens", &m.inter_token_latency)?;
        out.histogram("octavo_request_latency_seconds", "From arrival to the end", &m.request_latency)?;
        out.histogram("octavo_queue_time_seconds", "From arrival to the first step", &m.queue_time)
    }

    fn encode_steps(&self, out: &mut Out<'_>) -> fmt::Result {
        let m = &self.source.metrics;
        out.counter("octavo_steps", "Steps", m.steps.get())?;
        out.counter("octavo_failed_steps", "Steps that failed", m.failed_steps.get())?;
        out.counter("octavo_failed_audits", "Checks that found the cache wrong", m.failed_audits.get())?;
        out.histogram("octavo_step_plan_seconds", "Planning a step", &m.plan_time)?;
        out.histogram("octavo_step_run_seconds", "Running a step", &m.run_time)?;
        out.histogram("octavo_step_post_seconds", "Choosing tokens after a step", &m.post_time)?;
        out.histogram("octavo_step_tokens", "Tokens computed in a step", &m.step_tokens)?;
        out.histogram("octavo_prefill_chunk_tokens", "Prompt tokens in a step that read any", &m.chunk)
    }

    fn encode_pages(&self, out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
        let (pages, fixed) = (snapshot.pages, &self.fixed);
        let states = [
            ("used", pages.used.0.into()),
            ("cached", pages.cached.0.into()),
            ("reserved", pages.reserved.0.into()),
            ("free", pages.free.0.into()),
        ];
        out.gauges("octavo_pages", "Pages by state; they add up to octavo_pages_capacity", "state", &states)?;
        out.gauge("octavo_pages_capacity", "Pages in all", f64::from(fixed.total))?;
        out.gauge("octavo_pages_pinned", "Pages that pins keep", pages_f64(snapshot.pinned))?;
        out.gauge(
            "octavo_pages_evictable",
            "Cached pages that could be evicted",
            pages_f64(snapshot.evictable),
        )?;
        out.gauge("octavo_pages_peak_used", "The most pages in use at once", pages_f64(snapshot.peak_used))?;
        out.gauge("octavo_page_bytes", "Bytes of a page", fixed.page_bytes as f64)?;
        out.gauge("octavo_max_length_tokens", "The longest sequence", f64::from(fixed.max_len))?;
        let fragmentation = snapshot.internal_fragmentation();
        out.gauge(
            "octavo_internal_fragmentation_ratio",
            "Share of used slots without a token",
            fragmentation,
        )?;
        out.gauge("octavo_pages_allocated_per_second", "Over ten seconds", snapshot.allocated_per_second)?;
        out.gauge("octavo_pages_freed_per_second", "Over ten seconds", snapshot.freed_per_second)?;
        Ok(())
    }

    fn encode_build(&self, out: &mut Out<'_>) -> fmt::Result {
        let fixed = &self.fixed;
        let labels = [
            ("device", fixed.device.as_str()),
            ("kv_dtype", fixed.dtype),
            ("policy", &fixed.policy),
            ("version", env!("CARGO_PKG_VERSION")),
        ];
        out.info("octavo_build_info", "What runs here", &labels)
    }

    fn encode_counters(&self, out: &mut Out<'_>, counters: &Counters) -> fmt::Result {
        let (stops, evicted) = (counters.stops, counters.evicted);
        out.counter("octavo_pages_allocated", "Pages taken off the free list", counters.allocated.total())?;
        out.counter("octavo_pages_freed", "Pages put back on it", counters.freed.total())?;
        let stops = [
            ("whole_prompt", stops.whole_prompt),
            ("page_not_full", stops.page_not_full),
            ("evicted", stops.evicted),
            ("never_seen", stops.never_seen),
            ("differs", stops.differs),
            ("not_looked_up", stops.not_looked_up),
        ];
        out.counters("octavo_prefix_lookups", "Lookups by what ended them", "stop", &stops)?;
        out.counter("octavo_prefix_hit_tokens", "Tokens found", counters.hit_tokens)?;
        out.counter("octavo_prefix_missed_tokens", "Tokens not found", counters.missed_tokens)?;
        out.counter("octavo_copies_on_write", "Shared pages copied to be written", counters.copies_on_write)?;
        out.counter(
            "octavo_partial_copies",
            "Beginnings of pages copied for new sequences",
            counters.partial_copies,
        )?;
        out.counter("octavo_forks", "Sequences that began as a copy", counters.forks)?;
        out.counter("octavo_computed_tokens", "Tokens computed", counters.computed_tokens)?;
        out.counter("octavo_evictions", "Times that pages were evicted", counters.evictions)?;
        let classes = [("old", evicted.old), ("recent", evicted.recent), ("prefix", evicted.prefix)];
        let policy = ("policy", self.fixed.policy.as_str());
        out.counters_with("octavo_pages_evicted", "Evicted pages", policy, "class", &classes)?;
        out.counter("octavo_key_collisions", "Prefixes whose key another had", counters.key_collisions)
    }
}

fn pages_f64(pages: octavo::Pages) -> f64 {
    f64::from(pages.0)
}

/// The names of vLLM, so that what was made for it works unchanged.
#[derive(Debug)]
struct Vllm {
    source: Source,
    fixed: Fixed,
}

impl Collector for Vllm {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::new(encoder);
        self.encode_gauges(&mut out)?;
        self.encode_counters(&mut out)?;
        self.encode_latencies(&mut out)?;
        self.encode_sizes(&mut out)
    }
}

impl Vllm {
    fn encode_gauges(&self, out: &mut Out<'_>) -> fmt::Result {
        let (m, fixed) = (&self.source.metrics, &self.fixed);
        let usage = self.source.cache().map_or(0.0, |snapshot| snapshot.utilisation());
        out.gauge("vllm:num_requests_running", "Requests that run", m.requests_running.get() as f64)?;
        out.gauge("vllm:num_requests_waiting", "Requests that wait", m.requests_waiting.get() as f64)?;
        out.gauge("vllm:kv_cache_usage_perc", "Share of the pages in use, 0 to 1", usage)?;
        out.gauge("vllm:gpu_cache_usage_perc", "Share of the pages in use, 0 to 1", usage)?;
        let (size, total) = (fixed.page_size.to_string(), fixed.total.to_string());
        let labels = [
            ("block_size", size.as_str()),
            ("num_gpu_blocks", &total),
            ("cache_dtype", fixed.dtype),
            ("enable_prefix_caching", if fixed.prefix_cache { "True" } else { "False" }),
        ];
        out.info("vllm:cache_config_info", "How the cache is set up", &labels)
    }

    fn encode_counters(&self, out: &mut Out<'_>) -> fmt::Result {
        let m = &self.source.metrics;
        let counters = self.source.cache().map_or_else(Counters::default, |snapshot| snapshot.counters);
        let queries = counters.hit_tokens + counters.missed_tokens;
        out.counter("vllm:prefix_cache_queries", "Prompt tokens looked up", queries)?;
        out.counter("vllm:prefix_cache_hits", "Prompt tokens found", counters.hit_tokens)?;
        out.counter("vllm:num_preemptions", "Sequences that gave up their pages", m.preemptions.get())?;
        out.counter("vllm:prompt_tokens", "Prompt tokens", m.prompt_tokens.get())?;
        out.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens found in the cache",
            m.prompt_tokens_cached.get(),
        )?;
        out.counter("vllm:generation_tokens", "Generated tokens", m.generation_tokens.get())?;
        out.counters("vllm:request_success", "Requests by how they ended", "finished_reason", &ends(m))
    }

    fn encode_latencies(&self, out: &mut Out<'_>) -> fmt::Result {
        let m = &self.source.metrics;
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "From arrival to the first token", &m.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens", &m.inter_token_latency),
            ("vllm:time_per_output_token_seconds", "Between two tokens", &m.inter_token_latency),
            ("vllm:request_time_per_output_token_seconds", "Mean of a request", &m.time_per_output_token),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end", &m.request_latency),
            ("vllm:request_queue_time_seconds", "From arrival to the first step", &m.queue_time),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token", &m.prefill_time),
            ("vllm:request_decode_time_seconds", "From the first token to the end", &m.decode_time),
            ("vllm:request_inference_time_seconds", "From the first step to the end", &m.inference_time),
        ] {
            out.histogram(name, help, histogram)?;
        }
        Ok(())
    }

    fn encode_sizes(&self, out: &mut Out<'_>) -> fmt::Result {
        let m = &self.source.metrics;
        for (name, help, histogram) in [
            ("vllm:request_prompt_tokens", "Prompt tokens of a request", &m.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Generated tokens of a request", &m.request_generation_tokens),
            ("vllm:request_params_n", "Choices asked for", &m.request_choices),
            ("vllm:request_params_max_tokens", "Tokens asked for", &m.request_max_tokens),
            ("vllm:iteration_tokens_total", "Tokens computed in a step", &m.step_tokens),
            ("vllm:kv_block_lifetime_seconds", "From taking a page to evicting it", &m.page_lifetime),
            (
                "vllm:kv_block_idle_before_evict_seconds",
                "From the last use of a page to evicting it",
                &m.page_idle_before_evict,
            ),
            ("vllm:kv_block_reuse_gap_seconds", "Between two uses of an idle page", &m.page_reuse_gap),
        ] {
            out.histogram(name, help, histogram)?;
        }
        Ok(())
    }
}
