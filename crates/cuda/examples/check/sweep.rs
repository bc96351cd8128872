//! What the plan chooses by itself, against everything else.

use crate::parts::{GEMMA, LLAMA, QWEN_4B, QWEN_06B, Report, TABLE, case, measure, text};
use octavo_backend::Heads;
use octavo_cuda::bench::{AttentionCase, Bench, ChunkOptions, Measured, Tuning};
use octavo_types::KvDtype;
use serde_json::json;

pub(crate) fn decoding(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let mut cases: Vec<(String, AttentionCase)> = Vec::new();
    for &((name, heads), batch, context, _) in TABLE.iter().filter(|row| row.0.0 != QWEN_4B.0) {
        cases.push((name.into(), case(heads, batch, context)));
    }
    // More blocks than processors, and fewer than twice as many.
    for (name, heads) in [LLAMA, QWEN_06B] {
        cases.push((name.into(), case(heads, 24, 4096)));
    }
    for (name, heads) in [LLAMA, GEMMA] {
        for dtype in [KvDtype::Fp8, KvDtype::Int8] {
            cases.push((name.into(), AttentionCase { dtype, ..case(heads, 64, 4096) }));
        }
    }
    for (name, case) in cases {
        let what = format!("{name} {:?} {} x {}", case.dtype, case.batch, case.context);
        compare(bench, report, &what, &case, tunings(&case), |_| String::new())?;
    }
    Ok(())
}

/// Measures all, prints the best of them and the usual.
fn compare(
    bench: &Bench,
    report: &mut Report,
    what: &str,
    case: &AttentionCase,
    mut tunings: Vec<Tuning>,
    also: impl Fn(f64) -> String,
) -> Result<(), String> {
    let (cases, first) = report.cases.split_once('@').unwrap_or((&report.cases, "0"));
    if !what.contains(cases) {
        return Ok(());
    }
    let first = first.parse::<usize>().map_err(|error| error.to_string())? % tunings.len();
    tunings.rotate_left(first);
    let times = bench.attention(case, &tunings).map_err(text)?.into_iter();
    let right = |m: &Measured| m.error.is_none_or(|e| e < 0.02);
    let time = |m: Result<Measured, _>| match m {
        Ok(m) if right(&m) => m.micros,
        Ok(m) => {
            println!("    WRONG by {:?}", m.error);
            f64::INFINITY
        }
        Err(error) => {
            println!("    FAILED {error}");
            f64::INFINITY
        }
    };
    let mut best: Vec<(f64, Tuning)> = times.map(time).zip(tunings).collect();
    best.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("  {what}");
    for (time, tuning) in best.iter().take(16).chain(best.iter().filter(|b| b.1 == Tuning::default())) {
        println!("    {time:>8.1} us{} {}", also(*time), short(tuning));
        report.rows.push(json!({ "sweep": what, "us": time, "tuning": format!("{tuning:?}") }));
    }
    Ok(())
}

fn short(t: &Tuning) -> String {
    if *t == Tuning::default() {
        return "as planned".into();
    }
    if let Some(c) = t.chunk {
        return format!(
            "strips {} warps {} span {} stages {} blocks {}{}",
            c.strips,
            c.warps,
            c.span,
            c.stages,
            c.min_blocks,
            if c.staggered { " staggered" } else { "" },
        );
    }
    let cuts = match (t.part_tiles, t.shares) {
        (u32::MAX, _) => "whole".into(),
        (0, shares) => format!("{shares} shares"),
        (tiles, _) => format!("parts of {tiles}"),
    };
    format!("{cuts}, warps {} stages {} blocks {}", t.warps, t.stages, t.min_blocks)
}

/// Warps, stages, blocks.
type Blocks = (usize, usize, usize);

const OF_128: &[Blocks] = &[(4, 3, 2), (4, 2, 2), (8, 3, 1), (2, 3, 4), (2, 2, 4), (2, 4, 3), (4, 4, 1)];
const OF_256: &[Blocks] = &[(4, 3, 1), (4, 2, 1), (2, 3, 2), (2, 2, 3), (2, 6, 1), (1, 3, 4), (1, 6, 2)];
const OF_8_BITS: &[Blocks] = &[(2, 3, 4), (4, 6, 2), (2, 6, 4), (4, 4, 2), (2, 4, 4), (4, 3, 3)];

fn tunings(case: &AttentionCase) -> Vec<Tuning> {
    let tiles = case.context.div_ceil(16) * case.batch;
    let mut tunings = vec![Tuning::default()];
    let plain = match (case.dtype, case.heads.dim) {
        (KvDtype::Fp8 | KvDtype::Int8, _) => OF_8_BITS,
        (_, 256) => OF_256,
        _ => OF_128,
    };
    for &(warps, stages, min_blocks) in plain {
        let with = Tuning { warps, stages, min_blocks, ..Tuning::default() };
        let full = 132 * min_blocks / case.heads.kv;
        let mut seen = vec![0];
        for shares in [full, full / 2, full / 4, case.batch, 2 * case.batch, 3 * case.batch, 4 * case.batch] {
            if !seen.contains(&shares) && tiles >= 4 * shares && shares <= full && 8 * shares >= full {
                seen.push(shares);
                tunings.push(Tuning { shares, ..with });
            }
        }
        if 8 * case.batch >= full {
            tunings.push(Tuning { part_tiles: u32::MAX, ..with });
        }
    }
    tunings
}

/// Rows of one sequence against a longer context, and the work in them.
fn chunk(heads: Heads, dtype: KvDtype, rows: usize, context: usize) -> (AttentionCase, f64) {
    let pairs = rows as f64 * (context as f64 - rows as f64 / 2.0);
    (AttentionCase { dtype, rows, ..case(heads, 1, context) }, 4.0 * pairs * (heads.q * heads.dim) as f64)
}

pub(crate) fn prefill(bench: &Bench, report: &mut Report) -> Result<(), String> {
    for (name, heads) in [LLAMA, QWEN_4B, GEMMA, QWEN_06B] {
        for (dtype, rows, context) in [
            (KvDtype::Bf16, 512, 512),
            (KvDtype::Bf16, 2048, 2048),
            (KvDtype::Bf16, 8192, 8192),
            (KvDtype::Fp8, 8192, 8192),
            (KvDtype::Int8, 8192, 8192),
            (KvDtype::Bf16, 2048, 32768),
            (KvDtype::Bf16, 128, 32768),
        ] {
            let (case, flops) = chunk(heads, dtype, rows, context);
            let time = measure(bench, report, &format!("{name}, {rows} rows"), case, Tuning::default(), None);
            println!("    {:.0} TFLOP/s", flops / time / 1e6);
        }
    }
    Ok(())
}

/// Strips, warps, span, stages, blocks, staggered.
type Options = [usize; 6];

const NARROW: &[Options] = &[
    [1, 12, 64, 2, 1, 0],
    [1, 12, 64, 3, 1, 1],
    [2, 8, 64, 2, 1, 0],
    [1, 8, 64, 3, 1, 1],
    [1, 6, 64, 2, 2, 0],
    [1, 12, 32, 3, 1, 0],
];
const WIDE: &[Options] = &[[1, 8, 32, 2, 1, 0], [1, 8, 32, 3, 1, 1]];

pub(crate) fn chunks(bench: &Bench, report: &mut Report) -> Result<(), String> {
    for ((name, heads), dtype, rows, context, options) in [
        (LLAMA, KvDtype::Bf16, 8192, 8192, NARROW),
        (LLAMA, KvDtype::Bf16, 2048, 2048, NARROW),
        (LLAMA, KvDtype::Fp8, 8192, 8192, &NARROW[..3]),
        (LLAMA, KvDtype::Int8, 8192, 8192, &NARROW[..3]),
        (GEMMA, KvDtype::Bf16, 8192, 8192, WIDE),
        (GEMMA, KvDtype::Fp8, 8192, 8192, &WIDE[..2]),
    ] {
        let (case, flops) = chunk(heads, dtype, rows, context);
        let of = |&[strips, warps, span, stages, min_blocks, staggered]: &Options| {
            let chunk = ChunkOptions {
                strips,
                warps,
                span,
                stages,
                min_blocks,
                staggered: staggered == 1,
                grouped: false,
            };
            Tuning { chunk: Some(chunk), ..Tuning::default() }
        };
        let tunings: Vec<_> = [Tuning::default()].into_iter().chain(options.iter().map(of)).collect();
        let what = format!("{name} {dtype:?} {rows} rows of {context}");
        compare(bench, report, &what, &case, tunings, |time| {
            format!(" {:>4.0} TFLOP/s", flops / time / 1e6)
        })?;
    }
    Ok(())
}
