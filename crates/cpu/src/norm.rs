use crate::lanes::by_level;
use crate::pool::Pieces;
use crate::{Buf, Level, Pool};

/// Sums in flight; their order in [`total`] is part of the definition of the results.
const LANES: usize = 64;
/// Rows that a thread takes at a time.
const ROWS: usize = 4;

/// `y = x / sqrt(mean(x²) + eps) * weight`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// `out = norm(x)`, row by row.
///
/// The squares of a row are summed in 64 lanes, element `i` in lane `i % 64`, and the lanes by halving: an order that
/// depends on nothing but the row's length.
pub fn rms_norm(level: Level, pool: &Pool, x: &Buf, norm: Norm<'_>, out: &mut Buf) {
    let cols = x.cols();
    assert_eq!((out.rows(), out.cols()), (x.rows(), cols), "the output's shape");
    assert_eq!(norm.weight.len(), cols, "weights of the norm");
    if cols == 0 {
        return;
    }
    pool.run_chunks(out.data_mut(), ROWS * cols, &|i, out| {
        let rows = x.data()[i * ROWS * cols..].chunks_exact(cols);
        for (x, out) in rows.zip(out.chunks_exact_mut(cols)) {
            norm_row(level, x, norm, out);
        }
    });
}

/// `x += delta`, or `x += before(delta)` where it is given; then `out = norm(x)`.
pub fn add_rms_norm(
    level: Level,
    pool: &Pool,
    x: &mut Buf,
    delta: &Buf,
    before: Option<Norm<'_>>,
    norm: Norm<'_>,
    out: &mut Buf,
) {
    let (rows, cols) = (x.rows(), x.cols());
    assert_eq!((delta.rows(), delta.cols()), (rows, cols), "the shape of what is added");
    assert_eq!((out.rows(), out.cols()), (rows, cols), "the output's shape");
    for norm in before.iter().chain([&norm]) {
        assert_eq!(norm.weight.len(), cols, "weights of the norm");
    }
    let (x, out) = (Pieces::new(x.data_mut()), Pieces::new(out.data_mut()));
    pool.run(rows.div_ceil(ROWS), &|part| {
        for row in part * ROWS..rows.min((part + 1) * ROWS) {
            let range = row * cols..(row + 1) * cols;
            // SAFETY: rows do not overlap, and each is taken once from each buffer.
            let (x, out) = unsafe { (x.take(range.clone()), out.take(range)) };
            add_row(level, x, delta.row(row), before, out);
            norm_row(level, x, norm, out);
        }
    });
}

by_level! {
    /// One row; `out` is as long as `x` and the weights.
    fn norm_row(x: &[f32], norm: Norm<'_>, out: &mut [f32]) = norm_in_lanes
}

by_level! {
    /// One row; `room` is for what the norm yields.
    fn add_row(x: &mut [f32], delta: &[f32], before: Option<Norm<'_>>, room: &mut [f32]) = add_in_lanes
}

#[inline(always)]
fn norm_in_lanes(x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + norm.eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(norm.weight) {
        *out = x * scale * weight;
    }
}

#[inline(always)]
fn add_in_lanes(x: &mut [f32], delta: &[f32], before: Option<Norm<'_>>, room: &mut [f32]) {
    let delta = if let Some(before) = before {
        norm_in_lanes(delta, before, room);
        &*room
    } else {
        delta
    };
    for (x, delta) in x.iter_mut().zip(delta) {
        *x += delta;
    }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = value.mul_add(*value, *lane);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = value.mul_add(*value, *lane);
    }
    total(lanes)
}

/// Lane `i` takes up lane `i + half`, until one is left.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}
