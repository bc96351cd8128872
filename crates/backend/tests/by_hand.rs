//! The reference against results worked out by hand: what holds up the oracle itself.

use octavo_backend::{
    Activation, AttentionSpec, Backend, Heads, NormSpec, PageLayout, Reference, Rows, Span, TableView,
    TensorRef, WeightDtype, WeightFormat,
};
use octavo_types::{KvDtype, PageId, Pages};

type Buf = <Reference as Backend>::Buf;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn matrix(rows: usize, cols: usize, values: &[f32]) -> <Reference as Backend>::Matrix {
    let bytes = bytes(values);
    let view = TensorRef::new(WeightDtype::F32, rows, cols, &bytes).unwrap();
    Reference.matrix(&[view], WeightFormat::AsStored).unwrap()
}

fn filled(rows: usize, cols: usize, values: &[f32]) -> Buf {
    let mut out = Reference.buf(rows, cols).unwrap();
    let tokens: Vec<u32> = (0..rows as u32).collect();
    Reference.embed(&matrix(rows, cols, values), &tokens, 1.0, &mut out).unwrap();
    out
}

fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
    }
}

#[test]
fn a_product_takes_rows_by_rows_of_weights() {
    let x = filled(2, 3, &[1.0, 2.0, 3.0, -1.0, 0.5, 0.0]);
    let mut out = Reference.buf(2, 2).unwrap();
    Reference.linear(&matrix(2, 3, &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0]), &x, &mut out).unwrap();
    assert_eq!(out.values(), [-2.0, 12.0, -1.0, -1.0]);
}

#[test]
fn a_norm_divides_by_the_root_of_the_mean_square() {
    // Mean square 12.5, and 12.5 of it again as epsilon: the root is 5.
    let (x, weight) = (filled(1, 2, &[3.0, -4.0]), vec![1.0, 2.0]);
    let mut out = Reference.buf(1, 2).unwrap();
    Reference.rms_norm(&x, NormSpec { weight: &weight, eps: 12.5 }, &mut out).unwrap();
    near(out.values(), &[0.6, -1.6]);
}

#[test]
fn a_sum_is_normed_after_and_before_if_asked() {
    let (delta, ones) = (filled(1, 2, &[5.0, -5.0]), vec![1.0; 2]);
    let norm = NormSpec { weight: &ones, eps: 0.0 };
    for (before, sum, want) in [(None, [6.0, -6.0], [1.0, -1.0]), (Some(norm), [2.0, -2.0], [1.0, -1.0])] {
        let mut x = filled(1, 2, &[1.0, -1.0]);
        let mut out = Reference.buf(1, 2).unwrap();
        Reference.add_rms_norm(&mut x, &delta, before, norm, &mut out).unwrap();
        near(x.values(), &sum);
        near(out.values(), &want);
    }
}

#[test]
fn gates_multiply_what_is_beside_them() {
    let x = filled(1, 4, &[1.0, -2.0, 10.0, 100.0]);
    let mut out = Reference.buf(1, 2).unwrap();
    Reference.gated(Activation::Silu, &x, &mut out).unwrap();
    near(out.values(), &[7.310_586, -23.840_584]);
    Reference.gated(Activation::Gelu, &x, &mut out).unwrap();
    near(out.values(), &[8.411_92, -4.540_231]);
}

/// One head of dimension 2 in pages of 2 tokens; two tokens, in page 1.
fn two_tokens(window: Option<u32>, inv_freq: f32) -> (Vec<f32>, [Vec<f32>; 2], Vec<f32>) {
    let heads = Heads { q: 1, kv: 1, dim: 2 };
    let spec = AttentionSpec { heads, scale: 0.5, window, layer: 0 };
    let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 2, head_dim: 2, dtype: KvDtype::F32 };
    let mut arena = Reference.arena(layout, Pages(2)).unwrap();
    let mut qkv = filled(2, 6, &[1.0, 0.0, 2.0, 1.0, 10.0, 20.0, 2.0, 0.0, 4.0, 1.0, 30.0, 40.0]);
    let spans = [Span { first_row: 0, rows: 2, start: 0 }];
    let rows = Rows::new(&[0, 0], &spans);
    let tables = [TableView { first: 0, pages: &[PageId(1)] }];
    let mut angles = Reference.buf(2, 2).unwrap();
    Reference.angles(&spans, &[inv_freq], 1.0, &mut angles).unwrap();
    Reference.rotate_and_store(&mut qkv, None, &angles, &spec, rows, &tables, &mut arena).unwrap();
    let mut out = Reference.buf(2, 2).unwrap();
    Reference.attention(&qkv, &spec, rows, &tables, &arena, &mut out).unwrap();
    let stored = Reference.gather(&arena, 0, tables[0], 0..2).unwrap();
    (qkv.values().to_vec(), stored, out.values().to_vec())
}

#[test]
fn attention_weighs_what_is_seen_by_the_softmax_of_its_scores() {
    let (_, stored, out) = two_tokens(None, 0.0);
    assert_eq!(stored, [vec![2.0, 1.0, 4.0, 1.0], vec![10.0, 20.0, 30.0, 40.0]]);
    // The first token sees itself; the second has scores 2 and 4, so its weights are 1 and e² to their sum.
    let second = 2f32.exp() / (1.0 + 2f32.exp());
    near(&out, &[10.0, 20.0, 10.0 + 20.0 * second, 20.0 + 20.0 * second]);
}

#[test]
fn a_window_of_one_sees_only_itself() {
    near(&two_tokens(Some(1), 0.0).2, &[10.0, 20.0, 30.0, 40.0]);
    assert_eq!(two_tokens(Some(2), 0.0).2, two_tokens(None, 0.0).2);
}

#[test]
fn a_quarter_turn_takes_the_first_half_to_the_second_and_the_second_to_minus_the_first() {
    let (qkv, [keys, values], _) = two_tokens(None, std::f32::consts::FRAC_PI_2);
    near(&qkv[..2], &[1.0, 0.0]);
    near(&qkv[6..8], &[0.0, 2.0]);
    near(&keys, &[2.0, 1.0, -1.0, 4.0]);
    assert_eq!(values, [10.0, 20.0, 30.0, 40.0]);
}
