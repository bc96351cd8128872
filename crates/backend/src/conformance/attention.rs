//! Rotation, storing and attention against the reference.

use super::Tolerance;
use super::compare::{close, close_by_row, largest};
use super::transfer::{buf, download};
use super::world::{DTYPES, PAGE_SIZES, Shape, World, heads};
use crate::{Backend, Heads, Reference, Span, TableView};
use octavo_types::{KvDtype, PageId};

/// `(tokens stored before, rows of the step)`: decode rows, chunks, whole prompts, nothing, all in one batch.
pub(super) const BATCH: [(usize, usize); 8] =
    [(21, 1), (0, 19), (16, 16), (5, 0), (47, 1), (0, 0), (0, 1), (70, 3)];

/// Runs the batch: the histories in one step, then the rows. Returns the world with everything in it.
pub(super) fn run_batch<B: Backend>(backend: &B, shape: Shape, stale: Option<f32>) -> World<'_, B> {
    let sequences: Vec<_> = BATCH.iter().zip(100..).map(|(&(a, b), seed)| (seed, a + b)).collect();
    let mut world = World::new(backend, shape, &sequences, 17);
    if let Some(x) = stale {
        world.fill(x);
    }
    let step = |part: fn(&(usize, usize)) -> usize| BATCH.iter().map(part).enumerate().collect::<Vec<_>>();
    let histories: Vec<_> = step(|b| b.0).into_iter().filter(|&(_, rows)| rows > 0).collect();
    world.step(&histories);
    world.step(&step(|b| b.1));
    world.step(&[]);
    world
}

fn shapes() -> Vec<Shape> {
    let base = Shape {
        heads: heads(6, 2, 64),
        dtype: KvDtype::F16,
        page_size: 16,
        window: None,
        turn: false,
        fine: false,
    };
    let mut shapes = Vec::new();
    for dim in [16, 32, 64, 80, 96, 128, 256] {
        for (q, kv) in [(4, 4), (6, 2), (8, 2), (4, 1), (1, 1)] {
            shapes.push(Shape { heads: heads(q, kv, dim), ..base });
        }
    }
    for page_size in PAGE_SIZES {
        for dtype in DTYPES {
            shapes.push(Shape { page_size, dtype, ..base });
        }
        for window in [1, 5, 16, 40] {
            shapes.push(Shape { page_size, window: Some(window), ..base });
        }
    }
    shapes
}

pub fn attention_matches_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    for shape in shapes() {
        compare_batches(backend, shape, None, tolerance);
    }
}

/// What a page held before, or beyond the last token, must not matter: not even as zero times NaN.
pub fn stale_contents_of_pages_never_reach_a_result<B: Backend>(backend: &B, tolerance: Tolerance) {
    for dtype in DTYPES {
        for (page_size, window) in [(16, None), (4, None), (48, None), (16, Some(9))] {
            let shape = Shape { heads: heads(6, 2, 64), dtype, page_size, window, turn: false, fine: false };
            compare_batches(backend, shape, Some(f32::NAN), tolerance);
        }
    }
}

fn compare_batches<B: Backend>(backend: &B, shape: Shape, stale: Option<f32>, tolerance: Tolerance) {
    let (got, want) = (run_batch(backend, shape, stale), run_batch(&Reference, shape, None));
    for (i, (got, want)) in got.sequences.iter().zip(&want.sequences).enumerate() {
        let case = format!("attention, {shape:?}, stale {stale:?}, sequence {i} of {BATCH:?}");
        let most = if shape.dtype == KvDtype::Fp8 { tolerance.attention_fp8 } else { tolerance.attention };
        close(&case, &got.out, &want.out, |_| most);
    }
}

pub fn angles_match_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    let spans = [(0, 3), (1000, 1), (77, 0), (131_000, 5)];
    let mut first_row = 0;
    let spans = spans.map(|(start, rows)| {
        first_row += rows;
        Span { first_row: first_row - rows, rows, start }
    });
    for (pairs, theta) in [(8, 1e4f32), (32, 5e5), (40, 1e6), (128, 1e4)] {
        let inv_freq: Vec<f32> = (0..pairs).map(|i| theta.powf(-(i as f32) / pairs as f32)).collect();
        for scale in [1.0, 1.1] {
            let case = format!("angles of {pairs} pairs, theta {theta}, scale {scale}");
            let got = angles(backend, &spans, &inv_freq, scale);
            let want = angles(&Reference, &spans, &inv_freq, scale);
            close(&case, &got, &want, |_| tolerance.elementwise);
        }
    }
}

fn angles<B: Backend>(backend: &B, spans: &[Span], inv_freq: &[f32], scale: f32) -> Vec<f32> {
    let mut out = buf(backend, spans.iter().map(|s| s.rows).sum(), 2 * inv_freq.len());
    backend.angles(spans, inv_freq, scale, &mut out).unwrap();
    download(backend, &out)
}

pub fn rotation_matches_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    for dtype in DTYPES {
        for heads in [heads(6, 2, 64), heads(2, 1, 128), heads(3, 3, 96), heads(4, 2, 16)] {
            // Far into a long sequence, whose earlier pages are gone.
            for start in [0, 5, 4099] {
                let shape = Shape { heads, dtype, page_size: 16, window: Some(64), turn: true, fine: false };
                let case = format!("rotation from position {start}, {shape:?}");
                let got = rotated(backend, shape, start);
                let want = rotated(&Reference, shape, start);
                compare_rotated(&case, heads, dtype, &got, &want, tolerance);
            }
        }
    }
}

/// Queries, gathered keys, gathered values of 20 tokens from `start`.
fn rotated<B: Backend>(backend: &B, shape: Shape, start: u32) -> [Vec<f32>; 3] {
    let mut world = World::new(backend, shape, &[(31, 20)], 5);
    let pages: Vec<PageId> = [&world.sequences[0].pages[..], &world.spare[..]].concat();
    let table = TableView { first: start / 16, pages: &pages };
    let spans = [Span { first_row: 0, rows: 20, start }];
    let values = world.sequences[0].qkv.clone();
    let (qkv, _) = world.store(&values, &spans, &[table]);
    let cols = shape.heads.qkv_cols();
    let queries = download(backend, &qkv)
        .chunks(cols)
        .flat_map(|row| row[..shape.heads.q * shape.heads.dim].to_vec())
        .collect();
    let [keys, values] = backend.gather(&world.arena, super::world::LAYER, table, start..start + 20).unwrap();
    [queries, keys, values]
}

fn compare_rotated(
    case: &str,
    heads: Heads,
    dtype: KvDtype,
    got: &[Vec<f32>; 3],
    want: &[Vec<f32>; 3],
    tolerance: Tolerance,
) {
    close_by_row(&format!("{case}, queries"), &got[0], &want[0], heads.dim, tolerance.elementwise);
    super::compare::same(&format!("{case}, values"), &got[2], &want[2]);
    for (row, (got, want)) in got[1].chunks(heads.dim).zip(want[1].chunks(heads.dim)).enumerate() {
        let case = format!("{case}, keys of token {} head {}", row / heads.kv, row % heads.kv);
        let amax = largest(want);
        close(&case, got, want, |i| one_step(dtype, want[i].abs(), amax) + tolerance.elementwise * amax);
    }
}

/// How far apart two encodings of almost the same number may be: a little more than one step of the format.
fn one_step(dtype: KvDtype, x: f32, amax: f32) -> f32 {
    1.05 * match dtype {
        KvDtype::F32 => 0.0,
        KvDtype::F16 => (x / 1024.0).max(1e-7),
        KvDtype::Bf16 => x / 128.0,
        KvDtype::Fp8 => (x / 8.0).max(amax / 448.0 / 512.0),
        KvDtype::Int8 => 2.0 * amax / 255.0,
    }
}
