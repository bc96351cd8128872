//! The online softmax, in base 2: scores of a block become weights, and what was summed under a smaller maximum is
//! scaled down.

use super::scratch::Line;
use super::tile::{BLOCK, TILE};
use crate::simd::{LANES, Lanes, Simd};

/// What is known of one query so far.
#[derive(Clone, Copy)]
pub(crate) struct State {
    /// What a product of the stored query is multiplied with.
    pub(crate) factor: f32,
    /// Sum of the scaled query, for keys that are shifted.
    pub(crate) sum: f32,
    /// Largest score; at first one below all but minus infinity, so that what has that score weighs 0.
    largest: f32,
    /// Sums of the weights, and of the weights times their values' shifts; slot by slot.
    total: Line,
    shift: Line,
}

impl Default for State {
    fn default() -> Self {
        let zero = Line([0.0; TILE]);
        Self { factor: 1.0, sum: 0.0, largest: f32::MIN, total: zero, shift: zero }
    }
}

/// Scales and shifts of a tile's keys and values: `[scale, shift]`.
#[derive(Clone, Copy)]
pub(crate) struct Parameters<S: Simd> {
    pub(crate) keys: [S::V; 2],
    pub(crate) values: [S::V; 2],
}

impl State {
    /// Products with the keys of a block in, weights of its values out; `output`, `[width]`, is what was summed so far.
    /// What is not `seen` weighs 0, whatever its product.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn soften<S: Simd>(
        &mut self,
        block: &mut [S::V; BLOCK],
        seen: &[Lanes; BLOCK],
        parameters: Option<&[Parameters<S>; BLOCK]>,
        shifted: bool,
        output: *mut f32,
        width: usize,
    ) {
        // SAFETY: as the caller promised; lines have LANES numbers.
        unsafe {
            let mut largest = S::splat(f32::NEG_INFINITY);
            for tile in 0..BLOCK {
                let mut score = block[tile];
                if let Some(parameters) = parameters {
                    let keys = &parameters[tile].keys;
                    score = S::mul(score, S::mul(keys[0], S::splat(self.factor)));
                    if shifted {
                        score = S::fma(S::splat(self.sum), keys[1], score);
                    }
                }
                block[tile] = S::keep(seen[tile], score, f32::NEG_INFINITY);
                largest = S::max(largest, block[tile]);
            }
            if S::any_above(largest, self.largest) {
                self.rescale::<S>(S::largest(largest), output, width);
            }
            let (mut total, mut shift) = (S::load(self.total.0.as_ptr()), S::load(self.shift.0.as_ptr()));
            for tile in 0..BLOCK {
                let weight = S::exp2(S::sub(block[tile], S::splat(self.largest)));
                total = S::add(total, weight);
                block[tile] = weight;
                if let Some(parameters) = parameters {
                    let values = &parameters[tile].values;
                    block[tile] = S::mul(weight, values[0]);
                    if shifted {
                        shift = S::fma(weight, values[1], shift);
                    }
                }
            }
            S::store(self.total.0.as_mut_ptr(), total);
            S::store(self.shift.0.as_mut_ptr(), shift);
        }
    }

    /// A larger score was found.
    #[inline(always)]
    unsafe fn rescale<S: Simd>(&mut self, largest: f32, output: *mut f32, width: usize) {
        // SAFETY: lines have LANES numbers, and `output` is as wide as whole vectors.
        unsafe {
            let factor = S::exp2(S::splat(self.largest - largest));
            self.largest = largest;
            let multiply = |at: *mut f32| S::store(at, S::mul(S::load(at), factor));
            multiply(self.total.0.as_mut_ptr());
            multiply(self.shift.0.as_mut_ptr());
            for i in (0..width).step_by(LANES) {
                multiply(output.add(i));
            }
        }
    }

    /// What is added to an output at the end, and what it is multiplied with then.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd>(&self) -> (f32, f32) {
        // SAFETY: lines have LANES numbers.
        unsafe { (S::sum(S::load(self.shift.0.as_ptr())), 1.0 / S::sum(S::load(self.total.0.as_ptr()))) }
    }
}
