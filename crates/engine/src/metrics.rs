//! What the engine counts and times. Written by the engine's thread, read by anybody at any time; the names they have
//! on the wire are the exporter's business.

use crate::event::{FinishReason, Usage};
use octavo_kv::{PageTimes, Snapshot};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Only ever grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The latest value.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a value fell at or under each bound. Bounds ascend; one more bucket holds the rest.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    /// Of an `f64`.
    sum_bits: AtomicU64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum_bits: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.sum_bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
    pub fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }
    /// One count a bound, and one above the last; not cumulative.
    pub fn buckets(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }
    pub fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum_bits.load(Ordering::Relaxed))
    }
}

/// Seconds from a millisecond to ten minutes.
const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0,
];
/// Seconds from ten microseconds to ten.
const STEP_SECONDS: &[f64] =
    &[0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0,
    50_000.0, 100_000.0, 200_000.0,
];
const FEW: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

/// What an engine counts and times; read from any thread.
#[derive(Debug)]
pub struct Metrics {
    pub requests_running: Gauge,
    pub sequences_running: Gauge,
    /// Preempted ones too.
    pub requests_waiting: Gauge,
    pub prompt_tokens: Counter,
    pub prompt_tokens_cached: Counter,
    pub generation_tokens: Counter,
    pub preemptions: Counter,
    /// Tokens that preempted sequences had to compute again.
    pub tokens_recomputed: Counter,
    pub finished: Finishes,
    pub steps: Counter,
    pub failed_steps: Counter,
    pub failed_audits: Counter,

    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub time_per_output_token: Histogram,
    pub request_latency: Histogram,
    pub queue_time: Histogram,
    pub prefill_time: Histogram,
    pub decode_time: Histogram,
    pub inference_time: Histogram,
    pub request_prompt_tokens: Histogram,
    pub request_generation_tokens: Histogram,
    pub request_choices: Histogram,
    pub request_max_tokens: Histogram,
    /// Tokens computed in a step.
    pub step_tokens: Histogram,
    /// Prompt tokens in a step that read any.
    pub chunk: Histogram,
    pub plan_time: Histogram,
    pub run_time: Histogram,
    pub post_time: Histogram,
    /// From being taken to being evicted.
    pub page_lifetime: Histogram,
    pub page_idle_before_evict: Histogram,
    /// Between two uses of a page that nobody held in between.
    pub page_reuse_gap: Histogram,
    /// As it was last shown: after a step, a change from outside, or while nothing runs.
    cache: Mutex<Option<Snapshot>>,
}

/// Requests by how they ended.
#[derive(Debug, Default)]
pub struct Finishes {
    pub stop: Counter,
    pub length: Counter,
    pub abort: Counter,
    pub error: Counter,
}

impl Finishes {
    pub(crate) fn count(&self, reason: FinishReason) {
        match reason {
            FinishReason::Stop => self.stop.add(1),
            FinishReason::Length => self.length.add(1),
            FinishReason::Cancelled => self.abort.add(1),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests_running: Gauge::default(),
            sequences_running: Gauge::default(),
            requests_waiting: Gauge::default(),
            prompt_tokens: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: Counter::default(),
            tokens_recomputed: Counter::default(),
            finished: Finishes::default(),
            steps: Counter::default(),
            failed_steps: Counter::default(),
            failed_audits: Counter::default(),
            time_to_first_token: Histogram::new(SECONDS),
            inter_token_latency: Histogram::new(SECONDS),
            time_per_output_token: Histogram::new(SECONDS),
            request_latency: Histogram::new(SECONDS),
            queue_time: Histogram::new(SECONDS),
            prefill_time: Histogram::new(SECONDS),
            decode_time: Histogram::new(SECONDS),
            inference_time: Histogram::new(SECONDS),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generation_tokens: Histogram::new(TOKENS),
            request_choices: Histogram::new(FEW),
            request_max_tokens: Histogram::new(TOKENS),
            step_tokens: Histogram::new(FEW),
            chunk: Histogram::new(FEW),
            plan_time: Histogram::new(STEP_SECONDS),
            run_time: Histogram::new(STEP_SECONDS),
            post_time: Histogram::new(STEP_SECONDS),
            page_lifetime: Histogram::new(SECONDS),
            page_idle_before_evict: Histogram::new(SECONDS),
            page_reuse_gap: Histogram::new(SECONDS),
            cache: Mutex::new(None),
        }
    }
}

impl Metrics {
    /// The cache as it was last shown; `None` before the first time.
    pub fn cache(&self) -> Option<Snapshot> {
        self.cache.lock().expect("nobody panics while holding it").clone()
    }
    pub(crate) fn note_pages(&self, times: &PageTimes) {
        let PageTimes { lifetime, idle_before_evict, reuse_gap } = times;
        lifetime.iter().for_each(|time| self.page_lifetime.observe_time(*time));
        idle_before_evict.iter().for_each(|time| self.page_idle_before_evict.observe_time(*time));
        reuse_gap.iter().for_each(|time| self.page_reuse_gap.observe_time(*time));
    }
    pub(crate) fn set_cache(&self, snapshot: Snapshot) {
        *self.cache.lock().expect("nobody panics while holding it") = Some(snapshot);
    }

    pub(crate) fn request_ended(&self, usage: &Usage) {
        self.queue_time.observe_time(usage.queued);
        self.prefill_time.observe_time(usage.prefill);
        self.decode_time.observe_time(usage.decode);
        self.inference_time.observe_time(usage.prefill + usage.decode);
        self.request_latency.observe_time(usage.queued + usage.prefill + usage.decode);
        self.request_generation_tokens.observe(usage.completion_tokens as f64);
        if usage.completion_tokens > 1 {
            let gaps = (usage.completion_tokens - 1) as f64;
            self.time_per_output_token.observe(usage.decode.as_secs_f64() / gaps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 2.0, 2.5].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.buckets(), [2, 2, 1]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum() - 7.5).abs() < 1e-9);
    }
}
