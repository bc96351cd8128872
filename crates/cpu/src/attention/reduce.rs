//! From sums in sixteen parts to one vector of scores a query.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::Tile;
use crate::simd::{LANES, Simd};

/// # Safety
/// As [`Arithmetic`](super::arithmetic::Arithmetic).
pub(crate) trait Sums<S: Simd> {
    /// `[position][query]` products in sixteen parts each, for `P` positions from `from` on.
    unsafe fn sums<const Q: usize, const P: usize>(
        tile: &Tile,
        from: usize,
        queries: [*const f32; Q],
    ) -> [[S::V; Q]; P];
}

/// The parts added up, for all positions; as many positions at a time as registers hold sums for.
///
/// # Safety
/// As [`Sums`].
#[inline(always)]
pub(crate) unsafe fn reduced<S: Simd, D: Sums<S>, const Q: usize>(
    tile: &Tile,
    queries: [*const f32; Q],
) -> [S::V; Q] {
    // SAFETY: as the caller promised.
    unsafe {
        match (Q, S::WIDE) {
            (1, true) => in_groups::<S, D, Q, 1, 16>(tile, queries),
            (1, false) => in_groups::<S, D, Q, 1, 4>(tile, queries),
            (2, true) => in_groups::<S, D, Q, 2, 8>(tile, queries),
            (2, false) => in_groups::<S, D, Q, 2, 2>(tile, queries),
            (_, true) => in_groups::<S, D, Q, 4, 4>(tile, queries),
            (_, false) => in_groups::<S, D, Q, 4, 1>(tile, queries),
        }
    }
}

/// Sixteen sums at a time: `16 / G` positions of up to `G` queries.
#[inline(always)]
unsafe fn in_groups<S: Simd, D: Sums<S>, const Q: usize, const G: usize, const P: usize>(
    tile: &Tile,
    queries: [*const f32; Q],
) -> [S::V; Q] {
    // Quarters of a vector that belong to one query.
    let quarters = 4 / G;
    // SAFETY: as the caller promised.
    unsafe {
        let zero = S::splat(0.0);
        let mut blocks = [zero; 4];
        for b in 0..G {
            let mut all = [zero; LANES];
            for from in (0..4 * quarters).step_by(P) {
                let sums: [[S::V; Q]; P] = D::sums(tile, b * 4 * quarters + from, queries);
                for j in 0..P {
                    for n in 0..Q {
                        all[(from + j) % 4 * 4 + n * quarters + (from + j) / 4] = sums[j][n];
                    }
                }
            }
            blocks[b] = S::sum16(&all);
        }
        let by_query = match G {
            1 => blocks,
            2 => {
                let [a, b] = S::transpose_halves(blocks[0], blocks[1]);
                [a, b, zero, zero]
            }
            _ => S::transpose_quarters(blocks),
        };
        let mut scores = [zero; Q];
        scores.copy_from_slice(&by_query[..Q]);
        scores
    }
}
