use super::softmax::State;
use super::tile::{BLOCK, TILE};

/// One cache line of f32.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; TILE]);

/// What a task keeps while it walks the tiles. Rows are `width` f32 wide: `dim` and zeros up to a multiple of
/// whole cache lines.
pub(crate) struct Scratch {
    lines: usize,
    queries: usize,
    /// `[queries][width]` queries, `[queries][width]` outputs, `[BLOCK][2][TILE][width]` staged tiles if there are any,
    /// and copied ones if there are any.
    data: Vec<Line>,
    /// `[queries]`, of the block at hand.
    scores: Vec<[Line; BLOCK]>,
    pub(crate) states: Vec<State>,
    /// Whether there are staged tiles.
    pub(crate) stages: bool,
}

impl Scratch {
    /// `step`: what rows are padded to a multiple of, in f32. `copied`: bytes of all copied tiles.
    pub(crate) fn new(queries: usize, dim: usize, step: usize, stages: bool, copied: usize) -> Self {
        let lines = dim.next_multiple_of(step).div_ceil(TILE);
        let staged = if stages { BLOCK * 2 * TILE * lines } else { 0 };
        let total = 2 * queries * lines + staged + copied.div_ceil(size_of::<Line>());
        Self {
            lines,
            queries,
            data: vec![Line([0.0; TILE]); total],
            scores: vec![[Line([0.0; TILE]); BLOCK]; queries],
            states: vec![State::default(); queries],
            stages,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.lines * TILE
    }

    /// `[width]`.
    #[inline(always)]
    pub(crate) fn query(&mut self, query: usize) -> *mut f32 {
        self.data[query * self.lines..][..self.lines].as_mut_ptr().cast()
    }

    /// `[width]`.
    #[inline(always)]
    pub(crate) fn output(&mut self, query: usize) -> *mut f32 {
        self.data[(self.queries + query) * self.lines..][..self.lines].as_mut_ptr().cast()
    }

    /// Of the tiles of a block.
    #[inline(always)]
    pub(crate) fn scores(&mut self, query: usize) -> &mut [Line; BLOCK] {
        &mut self.scores[query]
    }

    /// Of a tile of the block: keys, in the form of the arithmetic, and values, `[TILE]` rows of `[width]`; as large as each
    /// other.
    pub(crate) fn staged(&mut self, tile: usize) -> [*mut f32; 2] {
        let first = 2 * self.queries * self.lines;
        [2 * tile, 2 * tile + 1].map(|part| {
            self.data[first + part * TILE * self.lines..][..TILE * self.lines].as_mut_ptr().cast()
        })
    }

    /// The copied tiles, of so many bytes together: at the end.
    pub(crate) fn copied(&mut self, bytes: usize) -> *mut u8 {
        let first = self.data.len() - bytes.div_ceil(size_of::<Line>());
        self.data[first..].as_mut_ptr().cast()
    }
}
