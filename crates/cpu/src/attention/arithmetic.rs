use super::scratch::Line;
use super::softmax::State;
use super::tile::{BLOCK, TILE};
use crate::simd::{Asking, Simd};
use std::ops::Range;

/// Bytes that come from memory together.
pub(crate) const LINE: usize = 64;

/// Tiles that are read abreast, line by line in turn. Where they lie in different pages, the processor looks up both at once;
/// and what it reads of a query serves both.
pub(crate) const ABREAST: usize = 2;

/// How the rows of a block lie.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Bytes of a stored row.
    pub(crate) row_bytes: usize,
    pub(crate) dim: usize,
    /// What rows in scratch are padded to.
    pub(crate) width: usize,
}

/// Keys or values of a pair of tiles as the arithmetic reads them.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// `[TILE]` rows as stored: values one after another, keys in the order of a [tile](crate::keys::KeyOrder). Both the same
    /// where one alone is seen.
    pub(crate) stored: [*const u8; ABREAST],
    /// What [`Arithmetic::stage_keys`] or [`Arithmetic::stage_values`] made of them, if anything.
    pub(crate) staged: [*mut f32; ABREAST],
    /// What is to be asked for while these are read; these themselves if that was done already.
    pub(crate) ahead: Ahead,
    pub(crate) shape: Shape,
}

/// Rows of tiles abreast that will be read, line by line in the order in which they are best asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Ahead {
    /// The next lines, and how far it is to those behind them.
    next: [*const u8; ABREAST],
    step: usize,
    asking: Asking,
}

impl Ahead {
    /// Of tiles in different pages: the lines of each in turn.
    #[inline(always)]
    pub(crate) fn in_turn(tiles: [*const u8; ABREAST], asking: Asking) -> Self {
        Self { next: tiles, step: LINE, asking }
    }

    /// Of tiles behind each other: their lines in the order of addresses.
    #[inline(always)]
    pub(crate) fn in_order(first: *const u8, asking: Asking) -> Self {
        let mut next = [first; ABREAST];
        for (i, next) in next.iter_mut().enumerate() {
            *next = first.wrapping_add(i * LINE);
        }
        Self { next, step: ABREAST * LINE, asking }
    }

    /// The same of the tiles that lie `bytes` further on.
    #[inline(always)]
    pub(crate) fn further(mut self, bytes: usize) -> Self {
        for next in &mut self.next {
            *next = next.wrapping_add(bytes);
        }
        self
    }

    /// For `tiles` that have what is to come asked for already: themselves, which are in the nearest caches.
    #[inline(always)]
    pub(crate) fn none(self, tiles: [*const u8; ABREAST]) -> Self {
        Self::in_turn(tiles, self.asking)
    }

    /// To be called where `lines` lines of every tile are read: asks for as many to come. Requests spread over the work this
    /// way do not wait for each other.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn ask<S: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            for line in self.pass() {
                // SAFETY: as the caller promised; any address will do.
                unsafe { S::prefetch(line, self.asking) };
            }
        }
    }

    /// The next lines, which are behind this then.
    #[inline(always)]
    pub(crate) fn pass(&mut self) -> [*const u8; ABREAST] {
        let lines = self.next;
        *self = self.further(self.step);
        lines
    }
}

/// Those of the block's `slots` that lie in tile `tile` of it.
#[inline(always)]
pub(crate) fn slots_in(slots: &Range<usize>, tile: usize) -> Range<usize> {
    let at = tile * TILE;
    slots.start.saturating_sub(at).min(TILE)..slots.end.saturating_sub(at).min(TILE)
}

/// How scores and outputs of one precision are computed. What it computes for a query depends on that query and the
/// slots that it sees alone: not on `Q`, and not on whether the tiles were staged.
///
/// # Safety
/// As [`Simd`], and what the implementation asks of the processor. The tiles' rows are readable, and as `dim` says; what is
/// staged has room for as many f32; queries and outputs are rows of scratch, `width` wide.
pub(crate) trait Arithmetic: 'static {
    type S: Simd;
    /// What rows in scratch are padded to a multiple of.
    const STEP: usize;
    /// From this many queries on, tiles are staged: brought into the form that it is computed with once, rather than
    /// in registers for every four.
    const STAGE_FROM: usize;
    /// Whether rows that are no multiple of `STEP` can be read as stored.
    const PADS: bool;
    const SCALED: bool;
    const SHIFTED: bool;

    /// Scales and shifts from the stored parameters of a tile: a stored row is `scale * row + shift`.
    unsafe fn parameters(stored: *const u8) -> [<Self::S as Simd>::V; 2];

    /// Writes the query, scaled, in the form that products are computed with.
    unsafe fn load_query(
        from: *const f32,
        dim: usize,
        scale: f32,
        to: *mut f32,
        width: usize,
        state: &mut State,
    );

    /// Writes keys in the form that they are computed with.
    unsafe fn stage_keys(tiles: &Tiles);

    /// The same for values, of the slots that are seen.
    unsafe fn stage_values(tiles: &Tiles, slots: &[Range<usize>; ABREAST]);

    /// Products of the queries with the keys of all slots; those of slots that are not seen may be anything.
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        queries: [*const f32; Q],
    ) -> [[<Self::S as Simd>::V; Q]; ABREAST];

    /// Writes the weights of a block in the form that values are weighted with: a line a tile. Weights of slots that are not
    /// seen are 0.
    unsafe fn store_weights<const Q: usize>(weights: &[[<Self::S as Simd>::V; BLOCK]; Q], to: [*mut Line; Q]);

    /// Adds the values of the seen slots to the outputs, weighted: each query's lines for both tiles follow each other.
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        slots: &[Range<usize>; ABREAST],
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    );

    /// As [`Simd::apart`].
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R;

    /// Brings a finished output in order.
    #[inline(always)]
    unsafe fn arrange(_output: *mut f32, _width: usize) {}
}
