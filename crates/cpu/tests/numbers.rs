//! What is not a number stays visible: in the outputs of the rows that see it, and in no other.

use octavo_backend::{
    AttentionSpec, Backend, Heads, PageLayout, Random, Reference, Rows, Span, TableView, TensorRef,
    WeightDtype, WeightFormat,
};
use octavo_cpu::{Buf, Cpu, Level};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages, SlotId};
use std::num::NonZeroUsize;
use std::ops::Range;

const HEADS: Heads = Heads { q: 4, kv: 1, dim: 80 };
const LENGTH: usize = 40;
const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];
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

/// What is not a number may have any of these bits.
const NANS: [u32; 5] = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0001, 0x7fc0_0180, 0xffff_e000];

/// One chunk of `LENGTH` tokens: `[tokens][q * dim]`.
fn outputs(level: Level, dtype: KvDtype, spoilt: Spoilt, nan: u32) -> Vec<Vec<f32>> {
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
        qkv.data_mut()[AT.0 * HEADS.qkv_cols() + column] = f32::from_bits(nan);
    }
    let (tokens, spans) = (vec![0; LENGTH], [Span { first_row: 0, rows: LENGTH, start: 0 }]);
    let (rows, tables) = (Rows::new(&tokens, &spans), [TableView { first: 0, pages: &pages }]);
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
        for (dtype, nan) in DTYPES.into_iter().flat_map(|dtype| NANS.map(|nan| (dtype, nan))) {
            let (got, want) = (outputs(level, dtype, spoilt, nan), outputs(level, dtype, Spoilt::None, nan));
            for (row, (got, want)) in got.iter().zip(&want).enumerate() {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let case =
                        format!("{level:?} {dtype:?} {nan:#x}, row {row}, element {i}: {got} for {want}");
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

/// The last of 200 tokens, whose scores are minus infinity at `hidden` positions.
fn last_of_200<B: Backend>(
    backend: &B,
    dtype: KvDtype,
    hidden: &Range<usize>,
    window: Option<u32>,
) -> Vec<f32> {
    const HEADS: Heads = Heads { q: 1, kv: 1, dim: 16 };
    const TOKENS: usize = 200;
    let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: HEADS.dim, dtype };
    let pages: Vec<PageId> = (0..TOKENS.div_ceil(16) as u32).map(PageId).collect();
    let slots: Vec<SlotId> = (0..TOKENS as u64).map(SlotId).collect();
    let [mut keys, values] = [3, 4].map(|seed| Random::new(seed).values(TOKENS * HEADS.dim, 1.0));
    hidden.clone().for_each(|position| keys[position * HEADS.dim] = f32::NEG_INFINITY);
    let mut arena = backend.arena(layout, Pages(pages.len() as u32)).expect("memory");
    backend.scatter(&mut arena, 0, &slots, [&keys, &values]).expect("store");
    let ones: Vec<u8> = [1.0_f32; 3 * 16].iter().flat_map(|x| x.to_le_bytes()).collect();
    let ones = TensorRef::new(WeightDtype::F32, 1, HEADS.qkv_cols(), &ones).expect("a row");
    let ones = backend.matrix(&[ones], WeightFormat::AsStored).expect("a matrix");
    let mut qkv = backend.buf(1, HEADS.qkv_cols()).expect("memory");
    backend.embed(&ones, &[0], 1.0, &mut qkv).expect("a query");
    let spans = [Span { first_row: 0, rows: 1, start: TOKENS as u32 - 1 }];
    let spec = AttentionSpec { heads: HEADS, scale: 0.5, window, layer: 0 };
    let (rows, tables) = (Rows::new(&[0], &spans), [TableView { first: 0, pages: &pages }]);
    let mut out = backend.buf(1, HEADS.dim).expect("memory");
    backend.attention(&qkv, &spec, rows, &tables, &arena, &mut out).expect("attention");
    let mut got = Vec::new();
    backend.read(&out, &mut got).expect("the output");
    got
}

#[test]
fn positions_whose_scores_are_minus_infinity_weigh_nothing_wherever_they_lie() {
    for level in Level::available() {
        let cpu = Cpu::new(NonZeroUsize::MIN, level);
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            for (hidden, window) in
                [(0..64, None), (0..199, None), (64..128, None), (50..199, None), (0..192, Some(70))]
            {
                let got = last_of_200(&cpu, dtype, &hidden, window);
                let want = last_of_200(&Reference, dtype, &hidden, window);
                for (got, want) in got.iter().zip(&want) {
                    assert!((got - want).abs() < 1e-5, "{level:?} {dtype:?} {hidden:?}: {got} for {want}");
                }
            }
            let nothing = last_of_200(&cpu, dtype, &(0..200), None);
            assert!(nothing.iter().all(|x| x.is_nan()), "{level:?} {dtype:?}: {nothing:?}");
        }
    }
}
