use octavo_backend::{Half, PageLayout, TableView};

/// Positions folded at a time; tiles are aligned to position 0, whatever the page size.
pub(crate) const TILE: usize = 16;

/// Where the rows of one kv head lie: the page table of a span, resolved to addresses.
#[derive(Clone, Copy)]
pub(crate) struct HeadPages<'a> {
    arena: *const u8,
    page_bytes: usize,
    page_size: usize,
    table: TableView<'a>,
    row_bytes: usize,
    parameter_bytes: usize,
    /// Offsets in the page: keys, values.
    rows_at: [usize; 2],
    parameters_at: [usize; 2],
}

/// The rows of sixteen positions, keys or values.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    /// `[TILE]` of `[head_dim]` elements.
    pub(crate) rows: [*const u8; TILE],
    pub(crate) parameters: [*const u8; TILE],
}

impl<'a> HeadPages<'a> {
    /// # Safety
    /// `arena` is the first of pages as `layout` says, and all that `table` lists are among them.
    pub(crate) unsafe fn new(
        arena: *const u8,
        layout: &PageLayout,
        layer: usize,
        head: usize,
        table: TableView<'a>,
    ) -> Self {
        Self {
            arena,
            page_bytes: layout.page_bytes(),
            page_size: layout.page_size,
            table,
            row_bytes: layout.row_bytes(),
            parameter_bytes: layout.parameter_bytes(),
            rows_at: [Half::Key, Half::Value].map(|half| layout.rows_at(layer, half, head)),
            parameters_at: [Half::Key, Half::Value].map(|half| layout.parameters_at(layer, half, head)),
        }
    }

    /// Positions that the table holds: the pages' first and one past their last.
    pub(crate) fn held(&self) -> [usize; 2] {
        let first = self.table.first as usize;
        [first * self.page_size, (first + self.table.pages.len()) * self.page_size]
    }

    /// Address of the page of `position`, and the slot in it.
    #[inline(always)]
    fn locate(&self, position: usize) -> (*const u8, usize) {
        let page = self.table.pages[position / self.page_size - self.table.first as usize];
        // An address inside the arena, as `new` was promised.
        (self.arena.wrapping_add(page.index() * self.page_bytes), position % self.page_size)
    }

    /// The rows of tile `tile`: all sixteen may be read. A position that the table does not hold shows the nearest
    /// that it does.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize, half: Half) -> TileRows {
        let half = usize::from(half == Half::Value);
        let (rows_at, parameters_at) = (self.rows_at[half], self.parameters_at[half]);
        if self.page_size.is_multiple_of(TILE) {
            let (page, slot) = self.locate(tile * TILE);
            let rows = page.wrapping_add(rows_at + slot * self.row_bytes);
            let parameters = page.wrapping_add(parameters_at + slot * self.parameter_bytes);
            return TileRows {
                rows: spaced(rows, self.row_bytes),
                parameters: spaced(parameters, self.parameter_bytes),
            };
        }
        let [first, end] = self.held();
        let slots: [_; TILE] = std::array::from_fn(|i| self.locate((tile * TILE + i).clamp(first, end - 1)));
        TileRows {
            rows: slots.map(|(page, slot)| page.wrapping_add(rows_at + slot * self.row_bytes)),
            parameters: slots
                .map(|(page, slot)| page.wrapping_add(parameters_at + slot * self.parameter_bytes)),
        }
    }
}

/// `first`, and fifteen more, each `bytes` behind the one before.
#[inline(always)]
fn spaced(first: *const u8, bytes: usize) -> [*const u8; TILE] {
    let (mut at, mut all) = (first, [first; TILE]);
    for slot in &mut all {
        *slot = at;
        at = at.wrapping_add(bytes);
    }
    all
}
