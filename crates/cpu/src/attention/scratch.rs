use super::tile::TILE;

/// One cache line of f32.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; TILE]);

/// What a task keeps while it walks the tiles, for each of its queries. Rows are `width` wide: `dim` and zeros up to
/// whole cache lines.
pub(crate) struct Scratch {
    lines: usize,
    queries: usize,
    /// `[queries][width]` scaled queries, `[queries][width]` outputs, `[2][TILE][width]` a staged tile.
    data: Vec<Line>,
    /// Sum of the scaled query.
    pub(crate) sums: Vec<f32>,
    /// Largest score so far.
    pub(crate) largest: Vec<f32>,
    /// Sum of the weights.
    pub(crate) total: Vec<f32>,
    /// Sum of the weights times their values' shifts.
    pub(crate) shift: Vec<f32>,
}

impl Scratch {
    pub(crate) fn new(queries: usize, dim: usize) -> Self {
        let lines = dim.div_ceil(TILE);
        Self {
            lines,
            queries,
            data: vec![Line([0.0; TILE]); lines * (2 * queries + 2 * TILE)],
            sums: vec![0.0; queries],
            largest: vec![f32::NEG_INFINITY; queries],
            total: vec![0.0; queries],
            shift: vec![0.0; queries],
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.lines * TILE
    }

    #[inline(always)]
    fn row(&self, row: usize) -> *const f32 {
        self.data[row * self.lines..][..self.lines].as_ptr().cast()
    }

    #[inline(always)]
    fn row_mut(&mut self, row: usize) -> *mut f32 {
        self.data[row * self.lines..][..self.lines].as_mut_ptr().cast()
    }

    /// `[width]`.
    #[inline(always)]
    pub(crate) fn query(&self, query: usize) -> *const f32 {
        self.row(query)
    }
    #[inline(always)]
    pub(crate) fn query_mut(&mut self, query: usize) -> *mut f32 {
        self.row_mut(query)
    }
    /// `[width]`.
    #[inline(always)]
    pub(crate) fn output(&self, query: usize) -> *const f32 {
        self.row(self.queries + query)
    }
    #[inline(always)]
    pub(crate) fn output_mut(&mut self, query: usize) -> *mut f32 {
        self.row_mut(self.queries + query)
    }

    /// `[TILE]` rows of `[width]`: keys for 0, values for 1.
    pub(crate) fn tile_rows(&mut self, half: usize) -> [*const u8; TILE] {
        let first = 2 * self.queries + half * TILE;
        std::array::from_fn(|i| self.row_mut(first + i).cast_const().cast())
    }

    /// Multiplies all that `query` summed so far.
    #[inline(always)]
    pub(crate) fn rescale(&mut self, query: usize, factor: f32) {
        self.total[query] *= factor;
        self.shift[query] *= factor;
        let first = (self.queries + query) * self.lines;
        for line in &mut self.data[first..first + self.lines] {
            for x in &mut line.0 {
                *x *= factor;
            }
        }
    }
}
