use super::softmax::State;
use super::tile::{BLOCK, TILE};
use crate::simd::Simd;
use std::ops::Range;

/// Bytes that come from memory together.
pub(crate) const LINE: usize = 64;

/// A tile as the arithmetic reads it.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// `[TILE]` rows, as stored or as staged: keys, values.
    pub(crate) rows: [*const u8; 2],
    /// Bytes from one to the next.
    pub(crate) stride: usize,
    /// The rows as stored.
    pub(crate) stored: [*const u8; 2],
    /// Bytes of a stored row.
    pub(crate) row_bytes: usize,
    pub(crate) dim: usize,
    /// What rows in scratch are padded to.
    pub(crate) width: usize,
    /// How far away the rows lie that are to be fetched while these are read; 0 if that was done already.
    pub(crate) ahead: [usize; 2],
}

impl Tile {
    /// A tile as stored.
    #[inline(always)]
    pub(crate) fn new(stored: [*const u8; 2], row_bytes: usize, dim: usize, width: usize) -> Self {
        let (rows, stride, ahead) = (stored, row_bytes, [0; 2]);
        Self { rows, stride, stored, row_bytes, dim, width, ahead }
    }

    /// Has `ahead`, the rows of another tile, fetched while the keys (0) or values (1) of this one are read.
    #[inline(always)]
    pub(crate) fn fetch_later(&mut self, half: usize, ahead: *const u8) {
        self.ahead[half] = ahead.addr().wrapping_sub(self.stored[half].addr());
    }

    /// To be called where stored keys (0) or values (1) are read: asks for the line at the same place in the tile to
    /// come. Requests spread over the work this way do not wait for each other.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn fetch<S: Simd>(&self, half: usize, at: *const u8) {
        // SAFETY: as the caller promised; any address will do.
        unsafe { S::prefetch(at.wrapping_add(self.ahead[half])) };
    }
}

/// A block as the arithmetic reads it. Tiles that no row sees stand for nothing.
#[derive(Clone, Copy)]
pub(crate) struct Block(pub(crate) [Tile; BLOCK]);

/// Those of the block's `slots` that lie in tile `tile` of it.
#[inline(always)]
pub(crate) fn slots_in(slots: &Range<usize>, tile: usize) -> Range<usize> {
    let at = tile * TILE;
    slots.start.saturating_sub(at).min(TILE)..slots.end.saturating_sub(at).min(TILE)
}

/// The tiles of a block that hold some of its `slots`.
#[inline(always)]
pub(crate) fn tiles_of(slots: &Range<usize>) -> Range<usize> {
    slots.start / TILE..slots.end.div_ceil(TILE)
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

    /// Writes the rows in `slots` in the form that they are computed with.
    unsafe fn stage(tile: &mut Tile, slots: &Range<usize>, to: [*mut f32; 2]);

    /// Products of the queries with the keys of all slots; those of slots that are not seen may be anything.
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        queries: [*const f32; Q],
    ) -> [<Self::S as Simd>::V; Q];

    /// Adds the weighted values of the seen slots of a block to the outputs. Weights of other slots, in tiles that
    /// have a seen one, are 0.
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        block: &Block,
        slots: &Range<usize>,
        weights: &[[<Self::S as Simd>::V; BLOCK]; Q],
        outputs: [*mut f32; Q],
    );

    /// Brings a finished output in order.
    #[inline(always)]
    unsafe fn arrange(_output: *mut f32, _width: usize) {}
}
