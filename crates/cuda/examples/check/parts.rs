//! The parts of the check.

use crate::{message, sweep};
use octavo_backend::conformance::{self, Tolerance};
use octavo_backend::{BackendError, Heads};
use octavo_cuda::Cuda;
use octavo_cuda::bench::{AttentionCase, Bench, Tuning};
use octavo_types::KvDtype;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) deterministic: bool,
    pub(crate) run: fn(&Bench, &mut Report) -> Result<(), String>,
}

pub(crate) const ALL: &[Part] = &[
    Part { name: "same-bits", deterministic: true, run: suite },
    Part { name: "fast", deterministic: false, run: suite },
    Part { name: "ceiling", deterministic: false, run: ceiling },
    Part { name: "attention", deterministic: false, run: attention },
    Part { name: "codecs", deterministic: false, run: codecs },
    Part { name: "prefill", deterministic: false, run: sweep::prefill },
    Part { name: "products", deterministic: false, run: products },
    Part { name: "sweep", deterministic: false, run: sweep::decoding },
    Part { name: "sweep-chunks", deterministic: false, run: sweep::chunks },
];

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) failures: Vec<String>,
    /// What the names of sweeps' cases contain.
    pub(crate) cases: String,
    /// Bytes a second; 0 before it was measured.
    ceiling: f64,
    pub(crate) rows: Vec<Value>,
}

impl Report {
    /// The rows of another report.
    pub(crate) fn take_over(&mut self, json: Value) {
        self.rows.extend(json["rows"].as_array().into_iter().flatten().cloned());
        self.ceiling = json["ceiling"].as_f64().filter(|c| *c > 0.0).unwrap_or(self.ceiling);
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "ceiling": self.ceiling, "rows": self.rows, "failures": self.failures })
    }
}

type Property = fn(&Cuda, Tolerance);

macro_rules! properties {
    ($($name:ident)*) => { &[$((stringify!($name), conformance::$name as Property)),*] };
}

const NEAR: &[(&str, Property)] = properties![
    buffers_resize_and_read_back embeddings_match_the_reference norms_match_the_reference
    activations_match_the_reference rows_are_picked_exactly linear_matches_the_reference
    angles_match_the_reference rotation_matches_the_reference attention_matches_the_reference
    stale_contents_of_pages_never_reach_a_result what_is_gathered_is_what_was_encoded
    what_is_written_at_slots_is_gathered_in_token_order storing_touches_its_own_slots_only
    copies_run_one_after_another zeroed_pages_decode_to_zero
];
/// Those that compare bits between one way of running and another.
const BITS: &[(&str, Property)] = properties![
    dense_rows_alone_equal_rows_in_a_batch attention_alone_equals_attention_in_a_batch one_chunk_equals_many
    where_pages_lie_and_how_large_they_are_does_not_matter pages_that_left_the_window_do_not_matter
    copied_pages_attend_like_their_originals
];

fn suite(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let deterministic = bench.deterministic();
    let bits = if deterministic { BITS } else { &[] };
    let mut failed = Vec::new();
    for (name, property) in NEAR.iter().chain(bits) {
        let result = catch_unwind(AssertUnwindSafe(|| property(bench.cuda(), Tolerance::BF16)));
        let outcome = result.err().map(|panic| message(&*panic));
        println!("  {name}: {}", outcome.as_deref().unwrap_or("ok"));
        report.rows.push(json!({ "property": name, "deterministic": deterministic, "failure": outcome }));
        failed.extend(outcome.map(|_| *name));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("{failed:?}")) }
}

fn ceiling(bench: &Bench, report: &mut Report) -> Result<(), String> {
    println!("  {}", octavo_backend::Backend::name(bench.cuda()));
    for megabytes in [17, 50, 268, 1074, 4096] {
        let rate = bench.read_ceiling(megabytes << 20).map_err(text)?;
        println!("  reading {megabytes} MiB: {:.0} GB/s", rate / 1e9);
        report.rows.push(json!({ "read_mib": megabytes, "gb_s": rate / 1e9 }));
        if megabytes == 1074 {
            report.ceiling = rate;
        }
    }
    Ok(())
}

pub(crate) fn text(error: BackendError) -> String {
    error.to_string()
}

pub(crate) const LLAMA: (&str, Heads) = ("Llama-3.2-3B", Heads { q: 24, kv: 8, dim: 128 });
pub(crate) const QWEN_4B: (&str, Heads) = ("Qwen3-4B", Heads { q: 32, kv: 8, dim: 128 });
pub(crate) const GEMMA: (&str, Heads) = ("Gemma-3-1B", Heads { q: 4, kv: 1, dim: 256 });
pub(crate) const QWEN_06B: (&str, Heads) = ("Qwen3-0.6B", Heads { q: 16, kv: 8, dim: 128 });

/// Geometry, batch, context, and the best paged time known, in microseconds.
pub(crate) type Row = ((&'static str, Heads), usize, usize, f64);

pub(crate) const TABLE: &[Row] = &[
    (LLAMA, 1, 4096, 15.3),
    (LLAMA, 24, 512, 21.4),
    (LLAMA, 64, 4096, 252.0),
    (LLAMA, 256, 1024, 264.0),
    (LLAMA, 8, 32768, 253.0),
    (LLAMA, 1, 200_000, 200.0),
    (QWEN_4B, 24, 512, 21.4),
    (QWEN_4B, 64, 4096, 251.0),
    (QWEN_4B, 8, 32768, 256.0),
    (QWEN_4B, 1, 200_000, 199.0),
    (GEMMA, 24, 512, 14.0),
    (GEMMA, 64, 4096, 75.4),
    (GEMMA, 256, 1024, 73.1),
    (GEMMA, 8, 32768, 76.8),
    (GEMMA, 1, 200_000, 69.1),
    (QWEN_06B, 1, 4096, 13.8),
    (QWEN_06B, 24, 512, 21.2),
    (QWEN_06B, 64, 4096, 252.0),
    (QWEN_06B, 256, 1024, 261.0),
    (QWEN_06B, 8, 32768, 255.0),
    (QWEN_06B, 1, 200_000, 200.0),
];

pub(crate) fn case(heads: Heads, batch: usize, context: usize) -> AttentionCase {
    AttentionCase { heads, dtype: KvDtype::Bf16, page_size: 16, batch, context, rows: 1, resident: false }
}

/// Measures, prints and notes one case; returns its time.
pub(crate) fn measure(
    bench: &Bench,
    report: &mut Report,
    name: &str,
    case: AttentionCase,
    tuning: Tuning,
    best: Option<f64>,
) -> f64 {
    let what = format!("{name} {:?} {} x {}", case.dtype, case.batch, case.context);
    let result = catch_unwind(AssertUnwindSafe(|| bench.attention(&case, &[tuning])?.remove(0)));
    let measured = match result {
        Ok(Ok(measured)) => measured,
        Ok(Err(error)) => {
            println!("  {what} {tuning:?}: FAILED {error}");
            return f64::INFINITY;
        }
        Err(panic) => {
            println!("  {what} {tuning:?}: FAILED {}", message(&*panic));
            return f64::INFINITY;
        }
    };
    let rate = measured.bytes as f64 / measured.micros * 1e6;
    let share = if report.ceiling > 0.0 { rate / report.ceiling * 100.0 } else { f64::NAN };
    let error = measured.error.map_or("-".into(), |error| format!("{error:.4}"));
    let against = best.map_or(String::new(), |best| {
        format!(" best known {best:.1}{}", if measured.micros <= best { "" } else { "  SLOWER" })
    });
    println!(
        "  {what:<36} {:>8.1} us {:>6.0} GB/s {share:>5.1} % error {error}{against} {}",
        measured.micros,
        rate / 1e9,
        if tuning == Tuning::default() { String::new() } else { format!("{tuning:?}") }
    );
    report.rows.push(json!({
        "geometry": name, "dtype": format!("{:?}", case.dtype), "batch": case.batch, "context": case.context,
        "rows": case.rows, "resident": case.resident, "us": measured.micros, "gb_s": rate / 1e9,
        "error": measured.error, "best": best, "tuning": format!("{tuning:?}"),
    }));
    measured.micros
}

fn attention(bench: &Bench, report: &mut Report) -> Result<(), String> {
    report.ceiling = bench.read_ceiling(1 << 30).map_err(text)?;
    for &((name, heads), batch, context, best) in TABLE {
        let case = case(heads, batch, context);
        measure(bench, report, name, case, Tuning::default(), Some(best));
        if batch * context * heads.kv * heads.dim * 4 < 20_000_000 {
            let resident = AttentionCase { resident: true, ..case };
            measure(bench, report, &format!("{name} in L2"), resident, Tuning::default(), Some(best));
        }
    }
    Ok(())
}

fn codecs(bench: &Bench, report: &mut Report) -> Result<(), String> {
    report.ceiling = bench.read_ceiling(1 << 30).map_err(text)?;
    for (name, heads) in [LLAMA, QWEN_4B, GEMMA, QWEN_06B] {
        let mut first = None;
        for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int8] {
            let case = AttentionCase { dtype, ..case(heads, 64, 4096) };
            let time = measure(bench, report, name, case, Tuning::default(), None);
            println!("    {:.2} x the tokens of bf16", *first.get_or_insert(time) / time);
        }
    }
    let (name, heads) = LLAMA;
    for page_size in [32, 4096] {
        let case = AttentionCase { page_size, ..case(heads, 64, 4096) };
        measure(bench, report, &format!("{name}, pages of {page_size}"), case, Tuning::default(), None);
    }
    Ok(())
}

fn products(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let peak = (8192, 8192, 8192);
    let llama = [(5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192), (128_256, 3072)];
    let qwen = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)];
    let shapes = llama.iter().flat_map(|&(n, k)| [1, 24, 256, 8192].map(|m| (m, n, k)));
    let small = qwen.iter().flat_map(|&(n, k)| [1, 24, 256].map(|m| (m, n, k)));
    for (m, n, k) in [peak].into_iter().chain(shapes).chain(small) {
        let time = bench.product(m, n, k).map_err(text)?;
        let (flops, bytes) = (2 * m * n * k, 2 * n * k);
        println!(
            "  [{m}, {k}] by {n}: {time:>8.1} us {:>6.0} TFLOP/s {:>6.0} GB/s of weights",
            flops as f64 / time / 1e6,
            bytes as f64 / time / 1e3
        );
        report.rows.push(json!({ "m": m, "n": n, "k": k, "us": time }));
    }
    Ok(())
}
