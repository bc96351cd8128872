use crate::backend::Cuda;
use crate::emulated::{Emulated, emulated};
use crate::kernels::ChunkOptions;
use crate::plan::Tuning;
use octavo_backend::{
    AttentionSpec, Backend, Heads, PageLayout, Rows, Span, TableView, TensorRef, WeightDtype, WeightFormat,
};
use octavo_types::{KvDtype, PageId, Pages, SlotId};
use std::sync::Arc;

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * seed).sin()).collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Heads,
    dtype: KvDtype,
    window: Option<u32>,
    tokens: usize,
    /// The last ones are attended.
    rows: usize,
}

fn attended(case: Case, deterministic: bool, tuning: Tuning) -> Vec<f32> {
    let cuda = emulated(deterministic);
    cuda.tuning.set(tuning);
    attended_by(&cuda, case)
}

fn attended_by(cuda: &Cuda, case: Case) -> Vec<f32> {
    let Case { heads, dtype, window, tokens, rows } = case;
    let layout = PageLayout { layers: 1, kv_heads: heads.kv, page_size: 16, head_dim: heads.dim, dtype };
    let pages: Vec<PageId> = (0..tokens.div_ceil(16) as u32).map(PageId).collect();
    let mut arena = cuda.arena(layout, Pages(pages.len() as u32)).unwrap();
    let slots: Vec<SlotId> = (0..tokens as u64).map(SlotId).collect();
    let width = heads.kv * heads.dim;
    // Later values are larger: a part that is missing shows.
    let values: Vec<f32> = (0..tokens * width)
        .map(|i| (i / width) as f32 / tokens as f32 + 0.5 * (i as f32 * 0.91).sin())
        .collect();
    cuda.scatter(&mut arena, 0, &slots, [&numbers(tokens * width, 0.37), &values]).unwrap();
    let bytes: Vec<u8> =
        numbers(rows * heads.qkv_cols(), 1.3).into_iter().flat_map(|x| (3.0 * x).to_le_bytes()).collect();
    let table = TensorRef::new(WeightDtype::F32, rows, heads.qkv_cols(), &bytes).unwrap();
    let table = cuda.matrix(&[table], WeightFormat::AsStored).unwrap();
    let ids: Vec<u32> = (0..rows as u32).collect();
    let mut qkv = cuda.buf(rows, heads.qkv_cols()).unwrap();
    cuda.embed(&table, &ids, 1.0, &mut qkv).unwrap();
    let spec = AttentionSpec { heads, scale: 0.25, window, layer: 0 };
    let spans = [Span { first_row: 0, rows, start: (tokens - rows) as u32 }];
    let mut out = cuda.buf(rows, heads.q * heads.dim).unwrap();
    let rows = Rows::new(&ids, &spans);
    let tables = [TableView { first: 0, pages: &pages }];
    cuda.attention(&qkv, &spec, rows, &tables, &arena, &mut out).unwrap();
    let mut values = Vec::new();
    cuda.read(&out, &mut values).unwrap();
    values
}

fn assert_near(case: Case, a: &[f32], b: &[f32]) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(
            (a - b).abs() < 0.01,
            "{case:?}, element {i} of row {}: {b}, should be {a}",
            i / (case.heads.q * case.heads.dim)
        );
    }
}

/// One row (decoding) and several (a chunk); more than twice as many parts as are merged at once, of two heads.
#[test]
fn many_parts_are_merged_by_groups_into_what_the_whole_is() {
    for rows in [1, 12] {
        let heads = Heads { q: 6, kv: 2, dim: 16 };
        let case = Case { heads, dtype: KvDtype::F16, window: None, tokens: 16 * 35 - 3, rows };
        let tuned = |part_tiles| Tuning { part_tiles, chunk_lines: 2, ..Tuning::default() };
        let (whole, parts) = (attended(case, false, tuned(u32::MAX)), attended(case, false, tuned(1)));
        assert_near(case, &whole, &parts);
    }
}

/// With what the plan chooses for each, against the kernel for few columns.
#[test]
fn chunks_of_wide_heads_attend_like_few_rows() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
        for (dim, window, tokens, rows) in
            [(256, None, 150, 150), (256, Some(8), 150, 150), (128, None, 100, 90)]
        {
            let case = Case { heads: Heads { q: 2, kv: 1, dim }, dtype, window, tokens, rows };
            let usual = attended(case, false, Tuning::default());
            assert_near(case, &attended(case, true, Tuning::default()), &usual);
        }
    }
}

/// With as little shared memory as any device has.
#[test]
fn small_devices_attend_like_large_ones() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Fp8, KvDtype::Int8] {
        for (dim, rows) in [(64, 1), (128, 1), (256, 1), (64, 90), (128, 90), (256, 90)] {
            let case = Case { heads: Heads { q: 4, kv: 1, dim }, dtype, window: None, tokens: 150, rows };
            let small = Arc::new(Emulated::small());
            let found = attended_by(&Cuda::on(small, false, true), case);
            assert_near(case, &attended(case, true, Tuning::default()), &found);
        }
    }
}

/// By products of groups of four warps: two groups, spans as long as all that each product takes, windows.
#[test]
fn groups_of_warps_attend_like_few_rows() {
    for (dtype, span) in [(KvDtype::Bf16, 64), (KvDtype::F16, 128)] {
        for (dim, window, tokens, rows) in
            [(128, None, 300, 150), (64, Some(70), 300, 200), (64, None, 90, 90)]
        {
            let case = Case { heads: Heads { q: 2, kv: 1, dim }, dtype, window, tokens, rows };
            let chunk = ChunkOptions {
                strips: 1,
                warps: 8,
                span,
                stages: 3,
                min_blocks: 1,
                staggered: true,
                grouped: true,
            };
            let grouped = attended(case, false, Tuning { chunk: Some(chunk), ..Tuning::default() });
            assert_near(case, &attended(case, true, Tuning::default()), &grouped);
        }
    }
}
