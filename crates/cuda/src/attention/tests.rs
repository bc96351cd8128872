use crate::emulated::emulated;
use crate::plan::Tuning;
use octavo_backend::{
    AttentionSpec, Backend, Heads, PageLayout, Rows, Span, TableView, TensorRef, WeightDtype, WeightFormat,
};
use octavo_types::{KvDtype, PageId, Pages, SlotId};

const HEADS: Heads = Heads { q: 3, kv: 1, dim: 16 };
/// Tiles: more than twice as many parts as are merged at once.
const TILES: usize = 35;

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * seed).sin()).collect()
}

/// The last rows of a long sequence, in parts of so many tiles.
fn attended(rows: usize, part_tiles: u32) -> Vec<f32> {
    let cuda = emulated(false);
    cuda.tuning.set(Tuning { part_tiles, chunk_lines: 2, ..Tuning::default() });
    let (layout, tokens) = (
        PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: 16, dtype: KvDtype::F16 },
        16 * TILES - 3,
    );
    let mut arena = cuda.arena(layout, Pages(TILES as u32)).unwrap();
    let slots: Vec<SlotId> = (0..tokens as u64).map(SlotId).collect();
    // Later values are larger: a part that is missing shows.
    let values: Vec<f32> = (0..tokens * 16).map(|i| (i / 16) as f32 / tokens as f32).collect();
    cuda.scatter(&mut arena, 0, &slots, [&numbers(tokens * 16, 0.37), &values]).unwrap();
    let bytes: Vec<u8> =
        numbers(rows * HEADS.qkv_cols(), 1.3).into_iter().flat_map(|x| (3.0 * x).to_le_bytes()).collect();
    let table = TensorRef::new(WeightDtype::F32, rows, HEADS.qkv_cols(), &bytes).unwrap();
    let table = cuda.matrix(&[table], WeightFormat::AsStored).unwrap();
    let ids: Vec<u32> = (0..rows as u32).collect();
    let mut qkv = cuda.buf(rows, HEADS.qkv_cols()).unwrap();
    cuda.embed(&table, &ids, 1.0, &mut qkv).unwrap();
    let spec = AttentionSpec { heads: HEADS, scale: 0.25, window: None, layer: 0 };
    let spans = [Span { first_row: 0, rows, start: (tokens - rows) as u32 }];
    let pages: Vec<PageId> = (0..TILES as u32).map(PageId).collect();
    let mut out = cuda.buf(rows, HEADS.q * HEADS.dim).unwrap();
    let rows = Rows { tokens: &ids, spans: &spans };
    let tables = [TableView { first: 0, pages: &pages }];
    cuda.attention(&qkv, &spec, rows, &tables, &arena, &mut out).unwrap();
    let mut values = Vec::new();
    cuda.read(&out, &mut values).unwrap();
    values
}

/// One row (decoding) and several (a chunk).
#[test]
fn many_parts_are_merged_by_groups_into_what_the_whole_is() {
    for rows in [1, 12] {
        let (whole, parts) = (attended(rows, u32::MAX), attended(rows, 1));
        assert!(whole.iter().all(|x| *x > 0.1), "{whole:?}");
        for (i, (a, b)) in whole.iter().zip(&parts).enumerate() {
            assert!((a - b).abs() < 0.01, "{rows} rows, element {i}: {b}, whole {a}");
        }
    }
}
