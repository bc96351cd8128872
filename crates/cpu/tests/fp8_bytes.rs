//! Every byte of fp8, as a key and as a value, counts for the number that it stands for, if it is one.

use octavo_backend::codec::e4m3;
use octavo_backend::{AttentionSpec, Backend, Half, Heads, PageLayout, Rows, Span, TableView};
use octavo_cpu::{Buf, Cpu, Level, RowAt};
use octavo_types::{KvDtype, PageId, Pages};
use std::num::NonZeroUsize;

const DIM: usize = 64;
const HEADS: Heads = Heads { q: 1, kv: 1, dim: DIM };
const LAYOUT: PageLayout =
    PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: DIM, dtype: KvDtype::Fp8 };
const ONE: u8 = 0x38;
/// The smallest number that has all its bits.
const SMALLEST: f32 = 1.0 / 64.0;

/// One query over these keys and values, whose scales are 1.
fn attend(cpu: &Cpu, query: &[f32; DIM], keys: &[[u8; DIM]], values: &[[u8; DIM]], scale: f32) -> Vec<f32> {
    let mut arena = cpu.arena(LAYOUT, Pages(1)).expect("memory");
    for (half, rows) in [(Half::Key, keys), (Half::Value, values)] {
        for (slot, row) in rows.iter().enumerate() {
            let at = RowAt { page: PageId(0), layer: 0, half, head: 0, slot };
            arena.store_row(at, row, &1.0_f32.to_le_bytes());
        }
    }
    let mut qkv = Buf::new(1, HEADS.qkv_cols());
    qkv.data_mut()[..DIM].copy_from_slice(query);
    let spec = AttentionSpec { heads: HEADS, scale, window: None, layer: 0 };
    let spans = [Span { first_row: 0, rows: 1, start: keys.len() as u32 - 1 }];
    let tables = [TableView { first: 0, pages: &[PageId(0)] }];
    let mut out = Buf::new(1, DIM);
    cpu.attention(&qkv, &spec, Rows::new(&[0], &spans), &tables, &arena, &mut out).expect("attention");
    out.row(0).to_vec()
}

/// The byte, or 0 for the two that are no numbers: a row that has one is marked by its scale.
fn number(byte: u8) -> u8 {
    if e4m3::to_f32(byte).is_nan() { 0 } else { byte }
}

fn levels() -> Vec<Cpu> {
    Level::available().into_iter().map(|level| Cpu::new(NonZeroUsize::MIN, level)).collect()
}

#[test]
fn a_value_alone_is_the_output() {
    for cpu in levels() {
        for first in (0..256).step_by(DIM) {
            let row: [u8; DIM] = std::array::from_fn(|i| (first + i) as u8).map(number);
            let got = attend(&cpu, &[1.0; DIM], &[[0; DIM]], &[row], 1.0);
            for (byte, got) in row.into_iter().zip(got) {
                let want = e4m3::to_f32(byte);
                // Dot products of bf16 take smaller ones for 0.
                let right = got == want || want.abs() < SMALLEST && got == 0.0;
                assert!(right, "{:?}: {byte:#x} is {got}, should be {want}", cpu.level());
            }
        }
    }
}

#[test]
fn a_key_weighs_its_value_by_its_product_with_the_query() {
    for cpu in levels() {
        for byte in (0..=255).map(number) {
            let at = usize::from(byte) % DIM;
            let (mut query, mut key) = ([0.0; DIM], [0; DIM]);
            (query[at], key[at]) = (3.0, byte);
            let keys = [[0; DIM], key, [0; DIM]];
            let got = attend(&cpu, &query, &keys, &[[0; DIM], [ONE; DIM], [0; DIM]], 1.0 / 256.0);
            let weight = (e4m3::to_f32(byte) * 3.0 / 256.0).exp();
            let want = weight / (weight + 2.0);
            for got in got {
                let right = (got - want).abs() < 2e-3;
                assert!(right, "{:?}: {byte:#x} gives {got}, should be {want}", cpu.level());
            }
        }
    }
}
