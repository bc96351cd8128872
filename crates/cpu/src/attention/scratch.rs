use super::arithmetic::ABREAST;
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
    /// `[queries][width]` queries, `[queries][width]` outputs, `[TILE][width]` of each staged tile if there are some, and
    /// copied ones if there are any.
    data: Vec<Line>,
    /// `[queries]`: scores of the block at hand, then its weights.
    weights: Vec<[Line; BLOCK]>,
    pub(crate) states: Vec<State>,
    /// Whether tiles are staged.
    pub(crate) stages: bool,
}

impl Scratch {
    /// `step`: what rows are padded to a multiple of, in f32. `copied`: bytes of all copied tiles.
    pub(crate) fn new(queries: usize, dim: usize, step: usize, stages: bool, copied: usize) -> Self {
        let lines = dim.next_multiple_of(step).div_ceil(TILE);
        let staged = if stages { ABREAST * TILE * lines } else { 0 };
        let total = 2 * queries * lines + staged + copied.div_ceil(size_of::<Line>());
        Self {
            lines,
            queries,
            data: vec![Line([0.0; TILE]); total],
            weights: vec![[Line([0.0; TILE]); BLOCK]; queries],
            states: vec![State::default(); queries],
            stages,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.lines.wrapping_mul(TILE)
    }

    /// Of `Q` queries from `first` on: `[width]` each.
    #[inline(always)]
    pub(crate) fn queries<const Q: usize>(&mut self, first: usize) -> [*mut f32; Q] {
        self.rows(first, 0)
    }

    /// Of `Q` queries from `first` on: `[width]` each.
    #[inline(always)]
    pub(crate) fn outputs<const Q: usize>(&mut self, first: usize) -> [*mut f32; Q] {
        self.rows(first, self.queries)
    }

    #[inline(always)]
    fn rows<const Q: usize>(&mut self, first: usize, behind: usize) -> [*mut f32; Q] {
        assert!(first + Q <= self.queries, "{Q} queries from {first} on of {}", self.queries);
        // Within the rows, so that nothing overflows.
        let (from, width) = (self.data.as_mut_ptr().cast::<f32>(), self.width());
        let mut row = from.wrapping_add(behind.wrapping_add(first).wrapping_mul(width));
        let mut rows = [row; Q];
        for to in &mut rows {
            *to = row;
            row = row.wrapping_add(width);
        }
        rows
    }

    /// Of `Q` queries from `first` on: what there is of tile `tile` of a block and of those behind it, scores, then weights.
    #[inline(always)]
    pub(crate) fn lines_of<const Q: usize>(&mut self, first: usize, tile: usize) -> [*mut Line; Q] {
        let from = self.weights[first..][..Q].as_mut_ptr().cast::<Line>();
        let mut lines = [from; Q];
        for (i, line) in lines.iter_mut().enumerate() {
            *line = from.wrapping_add(i * BLOCK + tile);
        }
        lines
    }

    /// Keys or values of tiles, in the form of the arithmetic.
    pub(crate) fn staged(&mut self) -> [*mut f32; ABREAST] {
        let all = &mut self.data[2 * self.queries * self.lines..][..ABREAST * TILE * self.lines];
        let first = all.as_mut_ptr().cast::<f32>();
        std::array::from_fn(|i| first.wrapping_add(i * TILE * self.width()))
    }

    /// Tile `i` of a block, copied, if a copy has so many bytes: behind all else.
    pub(crate) fn copied(&mut self, i: usize, bytes: usize) -> *mut u8 {
        let first = self.data.len() - (BLOCK * bytes).div_ceil(size_of::<Line>());
        self.data[first..].as_mut_ptr().cast::<u8>().wrapping_add(i * bytes)
    }
}
