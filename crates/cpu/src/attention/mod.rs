//! Attention over pages, for ragged batches: one row of a decode and the rows of a prefill chunk alike.

mod arithmetic;

#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(target_arch = "x86_64")]
mod e4m3;
mod element;
mod float;
#[cfg(target_arch = "x86_64")]
mod integer;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod paired;
mod scratch;
mod seen;
mod softmax;
mod tile;
mod walk;
#[cfg(target_arch = "x86_64")]
mod weighted;

use crate::pool::Target;
use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::{Arena, Buf, Level, Pool};
#[cfg(target_arch = "x86_64")]
use dots::Dots;
use element::{Bf16, Element, F16, F32, Fp8, Int8};
use float::Float;
#[cfg(target_arch = "x86_64")]
use integer::Integer;
use kernel::Work;
use octavo_backend::{AttentionSpec, PageLayout, Rows, Span, TableView};
use octavo_types::KvDtype;
use std::ops::Range;
use tile::{BLOCK, HeadPages, TILE};
use walk::Runs;

/// Queries that share one pass over the tiles.
const QUERIES: usize = 64;
/// Bytes of one head's keys in a page from which on they are read as fast as all of memory.
const SHORT_RUN: usize = 32 << 10;
/// Bytes of a block of the heads that are read together where they are shorter: their queries, outputs and weights should
/// stay in the nearest caches.
const TOGETHER: usize = 256 << 10;

/// Some rows of one span, and the query heads of some kv heads.
#[derive(Clone)]
struct Task {
    span: usize,
    kv_heads: Range<usize>,
    /// Among the span's.
    rows: Range<usize>,
    /// Among the query heads of each kv head.
    heads: Range<usize>,
    /// Pairs of a row and a position, of all kv heads.
    weight: usize,
}

/// `out = softmax(q · kᵀ * scale) · v`; see [`Backend::attention`](octavo_backend::Backend::attention).
///
/// - `qkv`: `[rows, (q + 2 kv) * dim]`, queries rotated; the keys and values in it are not read
/// - `out`: `[rows, q * dim]`
#[allow(clippy::too_many_arguments, reason = "one fused kernel, and these are its operands")]
pub fn attention(
    level: Level,
    pool: &Pool,
    qkv: &Buf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &Arena,
    out: &mut Buf,
) {
    check(level, qkv, spec, rows, tables, arena, out);
    let tasks = tasks(spec, rows.spans, arena.layout(), pool.threads());
    let out = Target(out.data_mut().as_mut_ptr());
    let weights: Vec<usize> = tasks.iter().map(|task| task.weight).collect();
    pool.run_ranges(&weights, &|range| {
        let works = |task: &Task| -> Vec<Work<'_>> {
            // SAFETY: `check` saw that the shapes fit.
            let work = |kv_head| unsafe { work(task, kv_head, qkv, spec, rows.spans, tables, arena, &out) };
            task.kv_heads.clone().map(work).collect()
        };
        let works: Vec<Vec<Work<'_>>> = tasks[range].iter().map(works).collect();
        let mut runs = Runs::new(&works);
        for heads in &works {
            // SAFETY: `check` saw that the shapes fit, that the spans lie in the batch and do not overlap, and that
            // the tables hold what the rows see; tasks have no output in common.
            unsafe { compute(level, arena.layout().dtype, heads, &mut runs) };
        }
    });
}

/// Panics where an operand does not fit the others.
fn check(
    level: Level,
    qkv: &Buf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &Arena,
    out: &Buf,
) {
    let heads = spec.heads;
    assert!(level <= Level::detect(), "{level:?} on a machine without it");
    assert!(heads.kv > 0 && heads.q.is_multiple_of(heads.kv), "{heads:?}");
    assert_eq!(
        (arena.layout().kv_heads, arena.layout().head_dim),
        (heads.kv, heads.dim),
        "heads of the arena"
    );
    assert!(spec.layer < arena.layout().layers, "layer {} of {:?}", spec.layer, arena.layout());
    assert_eq!((qkv.rows(), qkv.cols()), (rows.tokens.len(), heads.qkv_cols()), "shape of q, k, v");
    assert_eq!((out.rows(), out.cols()), (rows.tokens.len(), heads.q * heads.dim), "shape of the output");
    check_spans(rows, tables);
    for (span, table) in rows.spans.iter().zip(tables).filter(|(span, _)| span.rows > 0) {
        let seen = span.start as usize + 1;
        let oldest = spec.window.map_or(0, |window| seen.saturating_sub(window as usize));
        check_table(table, oldest..span.end() as usize, arena);
    }
}

/// Panics unless the spans follow each other and cover the batch, with a table for each.
pub(crate) fn check_spans(rows: Rows<'_>, tables: &[TableView<'_>]) {
    assert_eq!(tables.len(), rows.spans.len(), "one table a span");
    let end = rows.spans.iter().fold(0, |at, span| {
        assert_eq!(span.first_row, at, "spans follow each other");
        at + span.rows
    });
    assert_eq!(end, rows.tokens.len(), "spans cover the batch");
}

/// Panics unless the table holds `positions` in pages that exist.
pub(crate) fn check_table(table: &TableView<'_>, positions: Range<usize>, arena: &Arena) {
    let (first, size) = (table.first as usize, arena.layout().page_size);
    assert!(
        first * size <= positions.start && positions.end <= (first + table.pages.len()) * size,
        "positions {positions:?} of {} pages of {size} from page {first} on",
        table.pages.len()
    );
    for page in table.pages {
        assert!(page.index() < arena.pages(), "{page} of an arena of {}", arena.pages());
    }
}

/// Cuts the batch into tasks that no bit depends on: by span, kv head and block of rows; by query head where threads
/// would idle otherwise. One row takes several kv heads: they lie behind each other in a page, and memory is read faster in
/// longer runs; towards the end fewer, at most a thread's share of what is left, so that all threads finish together.
fn tasks(spec: &AttentionSpec, spans: &[Span], layout: &PageLayout, threads: usize) -> Vec<Task> {
    let (group, kv) = (spec.heads.group(), spec.heads.kv);
    let block = (QUERIES / group).max(1);
    let blocks: usize = spans.iter().map(|span| span.rows.div_ceil(block)).sum();
    let parts = threads.div_ceil((blocks * kv).max(1)).min(group);
    let heads = group.div_ceil(parts);
    let row = layout.row_bytes();
    let most = if layout.page_size * row < SHORT_RUN { TOGETHER / (2 * BLOCK * TILE * row) } else { 1 };
    let seen = |span: &Span| (span.end() as usize).min(spec.window.map_or(usize::MAX, |w| w as usize)).max(1);
    let mut left: usize = spans.iter().map(|span| span.rows * seen(span) * kv).sum();
    let mut tasks = Vec::with_capacity(blocks * kv * parts);
    for (index, span) in spans.iter().enumerate() {
        let together = match span.rows {
            1 => (left / (threads * seen(span))).clamp(1, most.max(1)),
            _ => 1,
        };
        // As many as are needed, of about the same size.
        let together = kv.div_ceil(kv.div_ceil(together));
        left -= span.rows * seen(span) * kv;
        for first in (0..span.rows).step_by(block) {
            for kv_head in (0..kv).step_by(together) {
                let kv_heads = kv_head..(kv_head + together).min(kv);
                let rows = first..(first + block).min(span.rows);
                for head in (0..group).step_by(heads) {
                    tasks.push(Task {
                        span: index,
                        kv_heads: kv_heads.clone(),
                        rows: rows.clone(),
                        heads: head..(head + heads).min(group),
                        weight: rows.len() * seen(span) * kv_heads.len(),
                    });
                }
            }
        }
    }
    tasks
}

/// # Safety
/// The operands fit each other, and `out` has `[rows, q * dim]`.
#[allow(clippy::too_many_arguments, reason = "the operands of `attention`, and which part of them")]
unsafe fn work<'a>(
    task: &Task,
    kv_head: usize,
    qkv: &Buf,
    spec: &AttentionSpec,
    spans: &[Span],
    tables: &[TableView<'a>],
    arena: &Arena,
    out: &Target<f32>,
) -> Work<'a> {
    let (span, dim) = (&spans[task.span], spec.heads.dim);
    let row = span.first_row + task.rows.start;
    let out_stride = spec.heads.q * dim;
    let head = kv_head * spec.heads.group() + task.heads.start;
    // SAFETY: the row and the head exist.
    unsafe {
        Work {
            q: qkv.row(row)[head * dim..].as_ptr(),
            q_stride: qkv.cols(),
            out: out.0.add(row * out_stride + head * dim),
            out_stride,
            rows: task.rows.len(),
            heads: task.heads.len(),
            dim,
            start: span.start as usize + task.rows.start,
            window: spec.window.map_or(usize::MAX, |window| window as usize),
            scale: spec.scale,
            pages: HeadPages::new(arena, spec.layer, kv_head, tables[task.span]),
        }
    }
}

/// # Safety
/// As [`kernel::run`]; the machine has `level`.
unsafe fn compute(level: Level, dtype: KvDtype, heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 {
        match dtype {
            // SAFETY: as the caller promised, and the instructions are there.
            KvDtype::Fp8 if dots::available() => return unsafe { avx512_dots(heads, runs) },
            // SAFETY: as above.
            KvDtype::Int8 if integer::available(heads[0].dim) => {
                return unsafe { avx512_integer(heads, runs) };
            }
            _ => {}
        }
    }
    // SAFETY: as the caller promised.
    unsafe {
        match dtype {
            KvDtype::F32 => enter::<F32>(level, heads, runs),
            KvDtype::F16 => enter::<F16>(level, heads, runs),
            KvDtype::Bf16 => enter::<Bf16>(level, heads, runs),
            KvDtype::Fp8 => enter::<Fp8>(level, heads, runs),
            KvDtype::Int8 => enter::<Int8>(level, heads, runs),
        }
    }
}

unsafe fn enter<E: Element>(level: Level, heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    // SAFETY: as the caller promised.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::<E>(heads, runs),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::<E>(heads, runs),
            _ => kernel::run::<Float<Portable, E>>(heads, runs),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<E: Element>(heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    // SAFETY: as the caller promised.
    unsafe { kernel::run::<Float<Avx512, E>>(heads, runs) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn avx512_dots(heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    // SAFETY: as the caller promised.
    unsafe { kernel::run::<Dots>(heads, runs) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn avx512_integer(heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    // SAFETY: as the caller promised.
    unsafe { kernel::run::<Integer>(heads, runs) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<E: Element>(heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    // SAFETY: as the caller promised.
    unsafe { kernel::run::<Float<Avx2, E>>(heads, runs) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_backend::Heads;

    const HEADS: Heads = Heads { q: 32, kv: 8, dim: 128 };

    fn tasks_of(starts: &[u32], rows: usize, threads: usize) -> Vec<Task> {
        let span = |(i, start): (usize, &u32)| Span { first_row: i * rows, rows, start: *start };
        let spans: Vec<Span> = starts.iter().enumerate().map(span).collect();
        let spec = AttentionSpec { heads: HEADS, scale: 1.0, window: None, layer: 0 };
        let layout = PageLayout { layers: 1, kv_heads: 8, page_size: 16, head_dim: 128, dtype: KvDtype::F16 };
        tasks(&spec, &spans, &layout, threads)
    }

    #[test]
    fn every_head_of_every_row_is_in_one_task() {
        for (starts, rows, threads) in
            [(&[4095; 9][..], 1, 2), (&[0], 1, 64), (&[7, 4000, 90], 1, 3), (&[100], 40, 2)]
        {
            let mut times = vec![0; starts.len() * rows * HEADS.q];
            for task in tasks_of(starts, rows, threads) {
                for (row, kv) in task.rows.flat_map(|row| task.kv_heads.clone().map(move |kv| (row, kv))) {
                    for head in task.heads.clone() {
                        times[(task.span * rows + row) * HEADS.q + kv * HEADS.group() + head] += 1;
                    }
                }
            }
            assert!(times.iter().all(|n| *n == 1), "{starts:?}, {rows} rows, {threads} threads");
        }
    }

    #[test]
    fn tasks_are_large_first_and_small_last() {
        let sizes = |starts: &[u32], threads| {
            tasks_of(starts, 1, threads).iter().map(|task| task.kv_heads.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[4095; 4], 2), [8, 8, 8, 4, 4]);
        assert_eq!(sizes(&[4095; 4], 8), [4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(sizes(&[4095], 4), [2; 4]);
        // A short sequence before a long one is nobody's share.
        assert_eq!(sizes(&[63, 4095], 2), [8, 4, 4]);
    }
}
