use super::scratch::Line;
use super::softmax::State;
use super::tile::{BLOCK, TILE};
use crate::simd::{Asking, Simd};
use std::ops::Range;

/// Bytes that come from memory together.
pub(crate) const LINE: usize = 64;

/// How the rows of a block lie.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Bytes of a stored row.
    pub(crate) row_bytes: usize,
    pub(crate) dim: usize,
    /// What rows in scratch are padded to.
    pub(crate) width: usize,
}

/// Keys or values of a tile as the arithmetic reads them.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// `[TILE]` rows as stored: values one after another, keys in the order of a [tile](crate::keys::KeyOrder).
    pub(crate) stored: *const u8,
    /// What [`Arithmetic::stage_keys`] or [`Arithmetic::stage_values`] made of them, if anything.
    pub(crate) staged: *const f32,
    /// The rows to be asked for while these are read; these themselves if that was done already.
    pub(crate) ahead: *const u8,
    pub(crate) asking: Asking,
    pub(crate) shape: Shape,
}

impl Tile {
    /// To be called where stored rows are read: asks for the line at `offset` of the rows to come, in the order of their
    /// addresses. Requests spread over the work this way do not wait for each other.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn fetch<S: Simd>(&self, offset: usize) {
        // SAFETY: as the caller promised; any address will do.
        unsafe { S::prefetch(self.ahead.wrapping_add(offset), self.asking) };
    }
}

/// Those of the block's `slots` that lie in tile `tile` of it.
#[inline(always)]
pub(crate) fn slots_in(slots: &Range<usize>, tile: usize) -> Range<usize> {
    let at = tile * TILE;
    slots.start.saturating_sub(at).min(TILE)..slots.end.saturating_sub(at).min(TILE)
}

/// How scores and outputs of one precision are computed. What it computes for a query depends on that query and the
/// slots that it sees alone: not on `Q`, and not on whether the tile was staged.
///
/// # Safety
/// As [`Simd`], and what the implementation asks of the processor. A tile's rows are readable, and as `dim` says;
/// queries and outputs are rows of scratch, `width` wide.
pub(crate) trait Arithmetic: 'static {
    type S: Simd;
    /// What rows in scratch are padded to a multiple of.
    const STEP: usize;
    /// From this many queries on, a tile is staged: brought into the form that it is computed with once, rather than
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
    unsafe fn stage_keys(tile: &Tile, to: *mut f32);

    /// The same for values, of the slots that are seen.
    unsafe fn stage_values(tile: &Tile, slots: &Range<usize>, to: *mut f32);

    /// Products of the queries with the keys of all slots; those of slots that are not seen may be anything.
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        queries: [*const f32; Q],
    ) -> [<Self::S as Simd>::V; Q];

    /// Writes the weights of a block in the form that values are weighted with: a line a tile. Weights of slots that are not
    /// seen are 0.
    unsafe fn store_weights<const Q: usize>(weights: &[[<Self::S as Simd>::V; BLOCK]; Q], to: [*mut Line; Q]);

    /// Adds the values of a tile's seen slots to the outputs, weighted by its lines.
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        slots: &Range<usize>,
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    );

    /// Brings a finished output in order.
    #[inline(always)]
    unsafe fn arrange(_output: *mut f32, _width: usize) {}
}
