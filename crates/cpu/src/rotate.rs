//! Queries and keys get their positions, and keys and values their place in the pages.

use crate::attention::{check_spans, check_table};
use crate::pool::Target;
use crate::{Arena, Buf, Level, Pool, codec};
use octavo_backend::{AttentionSpec, Half, NormSpec, PageLayout, Rows, Span, TableView};

/// Rows of queries a task takes.
const ROWS: usize = 32;

/// Cosines and sines of every row's position, `[rows, 2 * inv_freq.len()]`: `scale * cos(position * inv_freq[i])`,
/// then the sines.
pub fn angles(pool: &Pool, spans: &[Span], inv_freq: &[f32], scale: f32, out: &mut Buf) {
    let rows: usize = spans.iter().map(|span| span.rows).sum();
    assert_eq!((out.rows(), out.cols()), (rows, 2 * inv_freq.len()), "shape of the angles");
    let positions: Vec<u32> = spans.iter().flat_map(|span| span.start..span.end()).collect();
    let cols = out.cols();
    if cols == 0 {
        return;
    }
    pool.run_chunks(out.data_mut(), ROWS * cols, &|block, out| {
        for (out, position) in out.chunks_exact_mut(cols).zip(&positions[block * ROWS..]) {
            let (cos, sin) = out.split_at_mut(inv_freq.len());
            for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(inv_freq) {
                let (s, c) = f64::from(*position as f32 * freq).sin_cos();
                (*cos, *sin) = ((f64::from(scale) * c) as f32, (f64::from(scale) * s) as f32);
            }
        }
    });
}

/// What is done to a query or key head before it is used.
#[derive(Clone, Copy)]
struct Prepare<'a> {
    norm: Option<(&'a [f32], f32)>,
    /// `[rows, 2 * half]`: cosines, sines.
    angles: &'a Buf,
}

/// See [`Backend::rotate_and_store`](octavo_backend::Backend::rotate_and_store).
///
/// - `qkv`: `[rows, (q + 2 kv) * dim]`; queries are rotated in place, keys and values left as they are
/// - `norms`: weights `[dim]` of queries and keys
/// - `angles`: `[rows, dim]`
#[allow(clippy::too_many_arguments, reason = "one fused kernel, and these are its operands")]
pub fn rotate_and_store(
    level: Level,
    pool: &Pool,
    qkv: &mut Buf,
    norms: Option<[NormSpec<'_, Vec<f32>>; 2]>,
    angles: &Buf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &mut Arena,
) {
    check(level, qkv, norms, angles, spec, rows, tables, arena);
    let (heads, layout, cols) = (spec.heads, *arena.layout(), qkv.cols());
    let keys = arena.keys();
    let prepare = [0, 1]
        .map(|i| Prepare { norm: norms.map(|norms| (norms[i].weight.as_slice(), norms[i].eps)), angles });
    let all = Target(qkv.data_mut().as_mut_ptr());
    let pages = Target(arena.as_mut_ptr());
    let blocks = rows.tokens.len().div_ceil(ROWS);
    // One task a block of query rows, and one a head of keys or of values: these write to different places of a
    // page whatever the tables say.
    pool.run(blocks + 2 * heads.kv, &|task| {
        if task < blocks {
            for row in task * ROWS..((task + 1) * ROWS).min(rows.tokens.len()) {
                // SAFETY: the queries of a row that is this task's alone.
                let q = unsafe { std::slice::from_raw_parts_mut(all.at(row * cols), heads.q * heads.dim) };
                for head in q.chunks_exact_mut(heads.dim) {
                    turn(level, head, prepare[0], row);
                }
            }
            return;
        }
        let (head, half) = ((task - blocks) / 2, [Half::Key, Half::Value][(task - blocks) % 2]);
        let column = (heads.q + if half == Half::Key { head } else { heads.kv + head }) * heads.dim;
        let (mut buffer, mut encoded) = (vec![0.0; heads.dim], vec![0; layout.row_bytes()]);
        for (row, page, slot) in places(rows.spans, tables, layout.page_size) {
            // SAFETY: keys and values are only read here.
            buffer.copy_from_slice(unsafe {
                std::slice::from_raw_parts(all.at(row * cols + column), heads.dim)
            });
            let page = pages.at(page * layout.page_bytes());
            // SAFETY: the page was checked; this head's half of it is this task's alone.
            let [plane, parameters] = unsafe { place(page, &layout, spec.layer, half, head) };
            let parameters = &mut parameters[slot * layout.parameter_bytes()..][..layout.parameter_bytes()];
            if half == Half::Key {
                turn(level, &mut buffer, prepare[1], row);
                codec::encode(level, layout.dtype, &buffer, &mut encoded, parameters);
                keys.write(&encoded, plane, slot);
            } else {
                let out = &mut plane[slot * layout.row_bytes()..][..layout.row_bytes()];
                codec::encode(level, layout.dtype, &buffer, out, parameters);
            }
        }
    });
}

/// Panics where an operand does not fit the others.
#[allow(clippy::too_many_arguments, reason = "the operands of one kernel")]
fn check(
    level: Level,
    qkv: &Buf,
    norms: Option<[NormSpec<'_, Vec<f32>>; 2]>,
    angles: &Buf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &Arena,
) {
    let heads = spec.heads;
    assert!(level <= Level::detect(), "{level:?} on a machine without it");
    assert_eq!((qkv.rows(), qkv.cols()), (rows.tokens.len(), heads.qkv_cols()), "shape of q, k, v");
    assert_eq!(
        (arena.layout().kv_heads, arena.layout().head_dim),
        (heads.kv, heads.dim),
        "heads of the arena"
    );
    assert!(spec.layer < arena.layout().layers, "layer {} of {:?}", spec.layer, arena.layout());
    assert_eq!((angles.rows(), angles.cols()), (qkv.rows(), heads.dim), "shape of the angles");
    for norm in norms.iter().flatten() {
        assert_eq!(norm.weight.len(), heads.dim, "weights of a head's norm");
    }
    check_spans(rows, tables);
    for (span, table) in rows.spans.iter().zip(tables).filter(|(span, _)| span.rows > 0) {
        check_table(table, span.start as usize..span.end() as usize, arena);
    }
}

/// Row, page and slot of every token of the batch.
fn places<'a>(
    spans: &'a [Span],
    tables: &'a [TableView<'_>],
    page_size: usize,
) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
    spans.iter().zip(tables).flat_map(move |(span, table)| {
        (0..span.rows).map(move |i| {
            let position = span.start as usize + i;
            let page = table.pages[position / page_size - table.first as usize];
            (span.first_row + i, page.index(), position % page_size)
        })
    })
}

/// The rows of a head, of all slots, and their parameters.
///
/// # Safety
/// `page` is a page of this layout, and nobody else uses this head's half of it meanwhile.
unsafe fn place<'a>(
    page: *mut u8,
    layout: &PageLayout,
    layer: usize,
    half: Half,
    head: usize,
) -> [&'a mut [u8]; 2] {
    let slots = layout.page_size;
    // SAFETY: both lie in the page, apart from each other.
    unsafe {
        [
            std::slice::from_raw_parts_mut(
                page.add(layout.rows_at(layer, half, head)),
                slots * layout.row_bytes(),
            ),
            std::slice::from_raw_parts_mut(
                page.add(layout.parameters_at(layer, half, head)),
                slots * layout.parameter_bytes(),
            ),
        ]
    }
}

/// Norms one head, `[dim]`, and rotates its first half against its second.
fn turn(level: Level, head: &mut [f32], prepare: Prepare<'_>, row: usize) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, which includes these instructions.
        Level::Avx512 | Level::Avx2 => unsafe { turn_avx2(head, prepare, row) },
        _ => turn_any(head, prepare, row),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn turn_avx2(head: &mut [f32], prepare: Prepare<'_>, row: usize) {
    turn_any(head, prepare, row);
}

#[inline(always)]
fn turn_any(head: &mut [f32], prepare: Prepare<'_>, row: usize) {
    if let Some((weight, eps)) = prepare.norm {
        let factor = 1.0 / (sum_of_squares(head) / head.len() as f32 + eps).sqrt();
        for (x, w) in head.iter_mut().zip(weight) {
            *x = *x * factor * w;
        }
    }
    let half = head.len() / 2;
    let (cos, sin) = prepare.angles.row(row).split_at(half);
    let (first, second) = head.split_at_mut(half);
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// In sixteen interleaved parts, each in order.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut parts = [0.0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for x in whole {
        for (part, x) in parts.iter_mut().zip(x) {
            *part += x * x;
        }
    }
    for (part, x) in parts.iter_mut().zip(rest) {
        *part += x * x;
    }
    parts.iter().sum()
}
