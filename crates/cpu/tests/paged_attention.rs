//! The fused kernel, which reads pages in place, against gathering what they hold and attending the plain way.

use octavo_backend::{
    AttentionSpec, Backend, BackendError, Heads, PageLayout, Random, Rows, Span, TableView, TensorRef,
    WeightDtype, WeightFormat,
};
use octavo_cpu::{Arena, Buf, Cpu, Level};
use octavo_types::{KvDtype, PageId, Pages, SlotId};
use std::num::NonZeroUsize;

const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];
/// Tokens that each sequence has, the one that attends included; 0 is an empty one, in the batch with no row.
const LENS: [usize; 8] = [1, 16, 17, 0, 100, 33, 64, 200];

fn upload(cpu: &Cpu, rows: usize, cols: usize, values: &[f32]) -> Buf {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensor = TensorRef::new(WeightDtype::F32, rows, cols, &bytes).unwrap();
    let table = cpu.matrix(&[tensor], WeightFormat::AsStored).unwrap();
    let mut out = cpu.buf(rows, cols).unwrap();
    cpu.embed(&table, &(0..rows as u32).collect::<Vec<_>>(), 1.0, &mut out).unwrap();
    out
}

/// `softmax(q · kᵀ * scale) · v` in f64, of one query head over `[tokens, kv_heads, dim]`.
fn plain(query: &[f32], kv: &[Vec<f32>; 2], head: usize, heads: Heads, scale: f32) -> Vec<f64> {
    let of = |half: usize| {
        kv[half].chunks(heads.kv * heads.dim).map(move |token| &token[head * heads.dim..][..heads.dim])
    };
    let dot = |key: &[f32]| key.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = of(0).map(|key| dot(key) * f64::from(scale)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let sum = |i: usize| of(1).zip(&weights).map(|(value, w)| f64::from(value[i]) * w).sum::<f64>();
    (0..heads.dim).map(|i| sum(i) / total).collect()
}

/// Pages in a random order, with what is behind the last token of a page left over from others.
fn tables(page_size: usize, seed: u64) -> (Vec<Vec<PageId>>, u32) {
    let pages: Vec<usize> = LENS.iter().map(|len| len.div_ceil(page_size)).collect();
    let total = pages.iter().sum::<usize>() + 3;
    let mut ids: Vec<PageId> = (0..total as u32).map(PageId).collect();
    Random::new(seed).shuffle(&mut ids);
    (pages.into_iter().map(|n| ids.split_off(ids.len() - n)).collect(), total as u32)
}

/// One row of each sequence that has any, through the fused kernel.
fn fused(
    cpu: &Cpu,
    spec: &AttentionSpec,
    qkv: &[f32],
    tables: &[TableView<'_>],
    arena: &Arena,
) -> (Vec<Span>, Vec<f32>) {
    let mut first_row = 0;
    let spans = LENS.map(|len| {
        let rows = len.min(1);
        first_row += rows;
        Span { first_row: first_row - rows, rows, start: (len - rows) as u32 }
    });
    let (heads, tokens) = (spec.heads, vec![0; first_row]);
    let batch = Rows::new(&tokens, &spans);
    let qkv = upload(cpu, first_row, heads.qkv_cols(), qkv);
    let mut out = cpu.buf(first_row, heads.q * heads.dim).unwrap();
    cpu.attention(&qkv, spec, batch, tables, arena, &mut out).unwrap();
    let mut got = Vec::new();
    cpu.read(&out, &mut got).unwrap();
    (spans.to_vec(), got)
}

fn check(cpu: &Cpu, heads: Heads, dtype: KvDtype, page_size: usize) {
    let mut random = Random::new(page_size as u64);
    let layout = PageLayout { layers: 2, kv_heads: heads.kv, page_size, head_dim: heads.dim, dtype };
    let (tables, total) = tables(page_size, 5);
    let mut arena = cpu.arena(layout, Pages(total)).unwrap();
    let width = heads.kv * heads.dim;
    let every: Vec<SlotId> = (0..u64::from(total) * page_size as u64).map(SlotId).collect();
    let [keys, values] = [2.0, 1.0].map(|range| random.values(every.len() * width, range));
    cpu.scatter(&mut arena, 1, &every, [&keys, &values]).unwrap();

    let rows = LENS.iter().filter(|len| **len > 0).count();
    let qkv = random.values(rows * heads.qkv_cols(), 2.0);
    let views: Vec<_> = tables.iter().map(|pages| TableView { first: 0, pages }).collect();
    let scale = 1.6 / (heads.dim as f32).sqrt();
    let spec = AttentionSpec { heads, scale, window: None, layer: 1 };
    let (spans, got) = fused(cpu, &spec, &qkv, &views, &arena);

    for ((span, table), len) in spans.iter().zip(&views).zip(LENS).filter(|((span, _), _)| span.rows > 0) {
        let kv = cpu.gather(&arena, 1, *table, 0..len as u32).unwrap();
        for head in 0..heads.q {
            let query = &qkv[span.first_row * heads.qkv_cols() + head * heads.dim..][..heads.dim];
            let want = plain(query, &kv, head / heads.group(), heads, spec.scale);
            let got = &got[(span.first_row * heads.q + head) * heads.dim..][..heads.dim];
            for (got, want) in got.iter().zip(want) {
                let off = (f64::from(*got) - want).abs();
                let most = match dtype {
                    // Multiplied by queries and weights rounded to bf16.
                    KvDtype::Fp8 => 1e-2,
                    // Multiplied as integers, by queries and weights rounded to sixteen bits.
                    KvDtype::Int8 => 2e-4,
                    KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => 5e-5,
                };
                assert!(
                    off < most,
                    "{got} instead of {want}: {len} tokens, head {head}, {heads:?}, {layout:?}"
                );
            }
        }
    }
}

#[test]
fn the_fused_kernel_equals_gathering_and_plain_attention() {
    let all = [Level::Portable, Level::Avx2, Level::Avx512];
    for level in all.into_iter().filter(|level| *level <= Level::detect()) {
        let cpu = Cpu::new(NonZeroUsize::new(2).unwrap(), level);
        for dtype in DTYPES {
            for (q, kv) in [(4, 4), (8, 2), (6, 2), (4, 1)] {
                for page_size in [1, 7, 16, 128] {
                    check(&cpu, Heads { q, kv, dim: 64 }, dtype, page_size);
                }
            }
            for dim in [6, 7, 16, 17, 18, 80, 96, 128, 256] {
                check(&cpu, Heads { q: 4, kv: 1, dim }, dtype, 16);
            }
            // Too wide for sums of integers.
            check(&cpu, Heads { q: 2, kv: 1, dim: 528 }, dtype, 16);
        }
    }
}

/// With keys as attention reads them, or in rows.
type NewArena = fn(PageLayout, Pages) -> Result<Arena, BackendError>;

/// All rows of one sequence of `tokens`, in spans of these sizes, through pages in a random order. The token at
/// `spoilt` has keys and values that are no numbers.
fn in_spans(
    cpu: &Cpu,
    spec: &AttentionSpec,
    dtype: KvDtype,
    (page_size, new): (usize, NewArena),
    tokens: usize,
    sizes: &[usize],
    spoilt: Option<usize>,
) -> Vec<f32> {
    let (heads, mut random) = (spec.heads, Random::new(3));
    let width = heads.kv * heads.dim;
    let [keys, values] = [2.0, 1.0].map(|range| {
        let mut all = random.values(tokens * width, range);
        if let Some(at) = spoilt {
            all[at * width..][..width].fill(f32::NAN);
        }
        all
    });
    let qkv = upload(cpu, tokens, heads.qkv_cols(), &random.values(tokens * heads.qkv_cols(), 2.0));
    let mut pages: Vec<PageId> = (0..tokens.div_ceil(page_size) as u32 + 2).map(PageId).collect();
    Random::new(page_size as u64).shuffle(&mut pages);
    let layout = PageLayout { layers: 2, kv_heads: heads.kv, page_size, head_dim: heads.dim, dtype };
    let mut arena = new(layout, Pages(pages.len() as u32)).unwrap();
    let slot = |i: usize| SlotId((pages[i / page_size].index() * page_size + i % page_size) as u64);
    let slots: Vec<SlotId> = (0..tokens).map(slot).collect();
    cpu.scatter(&mut arena, 1, &slots, [&keys, &values]).unwrap();

    let mut at = 0;
    let span = |&rows: &usize| {
        at += rows;
        Span { first_row: at - rows, rows, start: (at - rows) as u32 }
    };
    let spans: Vec<Span> = sizes.iter().map(span).collect();
    // Pages that no row of the span sees any more are gone.
    let table = |span: &Span| {
        let window = spec.window.map_or(usize::MAX, |window| window as usize);
        let first = (span.start as usize + 1).saturating_sub(window) / page_size;
        TableView { first: first as u32, pages: &pages[first..] }
    };
    let tables: Vec<_> = spans.iter().map(table).collect();
    let ids = vec![0; tokens];
    let batch = Rows::new(&ids, &spans);
    let mut out = cpu.buf(tokens, heads.q * heads.dim).unwrap();
    cpu.attention(&qkv, spec, batch, &tables, &arena, &mut out).unwrap();
    let mut got = Vec::new();
    cpu.read(&out, &mut got).unwrap();
    got
}

#[test]
fn spans_and_pages_do_not_change_a_bit_over_several_blocks() {
    const TOKENS: usize = 200;
    for level in Level::available() {
        let cpu = Cpu::new(NonZeroUsize::new(2).unwrap(), level);
        let cases = DTYPES.into_iter().flat_map(|dtype| [(dtype, None, 64), (dtype, Some(71), 96)]);
        for (dtype, window, dim) in cases {
            let heads = Heads { q: 8, kv: 2, dim };
            let spec = AttentionSpec { heads, scale: 0.2, window, layer: 1 };
            let want = in_spans(&cpu, &spec, dtype, (16, Arena::new), TOKENS, &[1; TOKENS], None);
            let tiles = Arena::new as NewArena;
            for (page_size, new, sizes) in [
                (16, tiles, &[200][..]),
                (7, tiles, &[63, 2, 135]),
                (48, tiles, &[130, 70]),
                (200, tiles, &[100; 2]),
                (16, Arena::in_rows, &[1; TOKENS]),
                (32, Arena::in_rows, &[63, 2, 135]),
            ] {
                let got = in_spans(&cpu, &spec, dtype, (page_size, new), TOKENS, sizes, None);
                assert!(
                    got == want,
                    "{sizes:?}, pages of {page_size}, window {window:?}, {dtype:?}, {level:?}"
                );
            }
        }
    }
}

/// Not even as zero times no number, and not through the rows that are computed with it and do see it.
#[test]
fn a_token_that_a_row_does_not_see_does_not_change_a_bit_of_it() {
    const TOKENS: usize = 75;
    for level in Level::available() {
        let cpu = Cpu::new(NonZeroUsize::new(2).unwrap(), level);
        let cases = DTYPES.into_iter().flat_map(|dtype| [1, 2, 3, 4].map(|group| (dtype, group)));
        for ((dtype, group), window) in cases.flat_map(|case| [(case, TOKENS), (case, 9)]) {
            let heads = Heads { q: 2 * group, kv: 2, dim: 80 };
            let spec = AttentionSpec { heads, scale: 0.2, window: Some(window as u32), layer: 1 };
            for sizes in [&[1; TOKENS][..], &[2, 3, 70], &[TOKENS]] {
                let run = |spoilt| in_spans(&cpu, &spec, dtype, (16, Arena::new), TOKENS, sizes, spoilt);
                let want = run(None);
                for spoilt in [0, 20, 21, 63, 64] {
                    let got = run(Some(spoilt));
                    let rows = got.chunks(heads.q * heads.dim).zip(want.chunks(heads.q * heads.dim));
                    for (row, (got, want)) in rows.enumerate() {
                        let sees = spoilt <= row && row < spoilt + window;
                        let right = if sees { got.iter().all(|x| x.is_nan()) } else { got == want };
                        assert!(
                            right,
                            "row {row} with token {spoilt} spoilt: {sizes:?}, {heads:?}, window {window}, \
                             {dtype:?}, {level:?}"
                        );
                    }
                }
            }
        }
    }
}
