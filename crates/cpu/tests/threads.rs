//! Neither the number of threads nor a smaller page changes a bit of attention, at any level and precision.

use octavo_backend::{AttentionSpec, Backend, Heads, PageLayout, Random, Rows, Span, TableView};
use octavo_cpu::{Buf, Cpu, Level};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages};
use std::num::NonZeroUsize;

const LENGTHS: [usize; 4] = [1, 40, 77, 16];

/// Stores the sequences in chunks of `chunk` tokens and attends: `[tokens, q * dim]`.
fn outputs(
    level: Level,
    threads: usize,
    dtype: KvDtype,
    heads: Heads,
    page_size: u32,
    chunk: usize,
) -> Vec<u32> {
    let cpu = Cpu::new(NonZeroUsize::new(threads).expect("at least one"), level);
    let size = PageSize::new(page_size).expect("a page size");
    let spec = KvSpec::full_attention(1, heads.kv as u32, heads.dim as u32, dtype, size).expect("a geometry");
    let mut arena = cpu.arena(PageLayout::new(&spec), Pages(200)).expect("memory");
    let mut order: Vec<PageId> = (0..200).map(PageId).collect();
    Random::new(u64::from(page_size)).shuffle(&mut order);
    let spec = AttentionSpec { heads, scale: 0.2, window: Some(33), layer: 0 };
    let mut results = Vec::new();
    for (sequence, length) in LENGTHS.into_iter().enumerate() {
        let pages = &order[sequence * 40..][..40];
        let values = Random::new(sequence as u64).values(length * heads.qkv_cols(), 2.0);
        for (at, values) in (0..length).step_by(chunk).zip(values.chunks(chunk * heads.qkv_cols())) {
            let rows = values.len() / heads.qkv_cols();
            let mut qkv = Buf::new(rows, heads.qkv_cols());
            qkv.data_mut().copy_from_slice(values);
            let spans = [Span { first_row: 0, rows, start: at as u32 }];
            let tokens = vec![0; rows];
            let rows_view = Rows::new(&tokens, &spans);
            let tables = [TableView { first: 0, pages }];
            let mut angles = Buf::new(rows, heads.dim);
            let frequencies: Vec<f32> = (0..heads.dim / 2).map(|i| 1.0 / (i + 1) as f32).collect();
            cpu.angles(&spans, &frequencies, 1.0, &mut angles).expect("angles");
            cpu.rotate_and_store(&mut qkv, None, &angles, &spec, rows_view, &tables, &mut arena)
                .expect("store");
            let mut out = Buf::new(rows, heads.q * heads.dim);
            cpu.attention(&qkv, &spec, rows_view, &tables, &arena, &mut out).expect("attention");
            results.extend(out.data().iter().map(|x| x.to_bits()));
        }
    }
    results
}

#[test]
fn threads_chunks_and_pages_change_no_bit_of_attention() {
    let geometries =
        [(8, 2, 32), (3, 1, 20), (3, 1, 18), (2, 2, 64)].map(|(q, kv, dim)| Heads { q, kv, dim });
    for level in Level::available() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
            for heads in geometries {
                let want = outputs(level, 1, dtype, heads, 16, 1);
                for (threads, page_size, chunk) in [(3, 16, 1), (1, 16, 77), (4, 5, 13), (2, 128, 9)] {
                    let got = outputs(level, threads, dtype, heads, page_size, chunk);
                    assert!(got == want, "{level:?} {dtype:?} {heads:?} {threads} {page_size} {chunk}");
                }
            }
        }
    }
}
