//! What is not a number stays visible: in the outputs of the rows that see it, and in no other.

use octavo_backend::{AttentionSpec, Backend, Heads, PageLayout, Random, Rows, Span, TableView};
use octavo_cpu::{Buf, Cpu, Level};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages};
use std::num::NonZeroUsize;

const HEADS: Heads = Heads { q: 4, kv: 1, dim: 80 };
const LENGTH: usize = 40;
/// The position and the element that are spoilt.
const AT: (usize, usize) = (21, 70);

/// Where in q, k, v the spoilt one is.
#[derive(Clone, Copy, PartialEq)]
enum Spoilt {
    None,
    Query,
    Key,
    Value,
}

/// One chunk of `LENGTH` tokens: `[tokens][q * dim]`.
fn outputs(level: Level, dtype: KvDtype, spoilt: Spoilt) -> Vec<Vec<f32>> {
    let cpu = Cpu::new(NonZeroUsize::MIN, level);
    let spec = KvSpec::full_attention(1, 1, HEADS.dim as u32, dtype, PageSize::DEFAULT).expect("a geometry");
    let mut arena = cpu.arena(PageLayout::new(&spec), Pages(3)).expect("memory");
    let pages: Vec<PageId> = (0..3).map(PageId).collect();
    let spec = AttentionSpec { heads: HEADS, scale: 0.1, window: None, layer: 0 };
    let mut qkv = Buf::new(LENGTH, HEADS.qkv_cols());
    qkv.data_mut().copy_from_slice(&Random::new(5).values(LENGTH * HEADS.qkv_cols(), 1.0));
    let column = match spoilt {
        Spoilt::None => None,
        Spoilt::Query => Some(AT.1),
        Spoilt::Key => Some(HEADS.q * HEADS.dim + AT.1),
        Spoilt::Value => Some((HEADS.q + HEADS.kv) * HEADS.dim + AT.1),
    };
    if let Some(column) = column {
        qkv.data_mut()[AT.0 * HEADS.qkv_cols() + column] = f32::NAN;
    }
    let (tokens, spans) = (vec![0; LENGTH], [Span { first_row: 0, rows: LENGTH, start: 0 }]);
    let (rows, tables) = (Rows { tokens: &tokens, spans: &spans }, [TableView { first: 0, pages: &pages }]);
    let mut angles = Buf::new(LENGTH, HEADS.dim);
    cpu.angles(&spans, &[0.0; HEADS.dim / 2], 1.0, &mut angles).expect("angles");
    cpu.rotate_and_store(&mut qkv, None, &angles, &spec, rows, &tables, &mut arena).expect("store");
    let mut out = Buf::new(LENGTH, HEADS.q * HEADS.dim);
    cpu.attention(&qkv, &spec, rows, &tables, &arena, &mut out).expect("attention");
    (0..LENGTH).map(|row| out.row(row).to_vec()).collect()
}

/// Checks all rows: `hit` says whether an element of a row that sees the spoilt position is one too.
fn check(spoilt: Spoilt, hit: impl Fn(KvDtype, usize, usize) -> bool) {
    for level in Level::available() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
            let (got, want) = (outputs(level, dtype, spoilt), outputs(level, dtype, Spoilt::None));
            for (row, (got, want)) in got.iter().zip(&want).enumerate() {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let case = format!("{level:?} {dtype:?}, row {row}, element {i}: {got} for {want}");
                    if hit(dtype, row, i) {
                        assert!(got.is_nan(), "{case}");
                    } else {
                        assert!(!got.is_nan(), "{case}");
                        assert!(row >= AT.0 || got.to_bits() == want.to_bits(), "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_spoilt_key_spoils_the_rows_that_see_it_and_no_other() {
    check(Spoilt::Key, |_, row, _| row >= AT.0);
}

#[test]
fn a_spoilt_value_spoils_its_element_of_the_rows_that_see_it() {
    // A row in eight bits has one scale for all elements, and that is what is spoilt.
    let scaled = |dtype| matches!(dtype, KvDtype::Fp8 | KvDtype::Int8);
    check(Spoilt::Value, |dtype, row, i| row >= AT.0 && (scaled(dtype) || i % HEADS.dim == AT.1));
}

#[test]
fn a_spoilt_query_spoils_its_own_row() {
    check(Spoilt::Query, |_, row, i| row == AT.0 && i < HEADS.dim);
}
