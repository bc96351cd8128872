use crate::keys::KeyOrder;
use memmap2::{MmapMut, MmapOptions};
use octavo_backend::{BackendError, Half, PageLayout};
use octavo_types::{PageId, Pages};

/// Arenas from this size on are backed by huge pages of the OS, which are then a small part of them: looking up the
/// address of every 4 KiB would cost attention a good part of its speed.
const HUGE_FROM: usize = 64 << 20;

/// The bytes of all pages: one mapping, reserved whole; the OS backs a page when it is first written.
///
/// A page that was never written reads as zeros.
#[derive(Debug)]
pub struct Arena {
    layout: PageLayout,
    keys: KeyOrder,
    pages: usize,
    /// `[pages][layout.page_bytes()]`.
    map: MmapMut,
}

/// A row of keys or values.
#[derive(Clone, Copy, Debug)]
pub struct RowAt {
    pub page: PageId,
    pub layer: usize,
    pub half: Half,
    pub head: usize,
    pub slot: usize,
}

impl Arena {
    /// Keys lie by sixteen positions within their part of a page, as attention multiplies them.
    pub fn new(layout: PageLayout, pages: Pages) -> Result<Self, BackendError> {
        Self::with(layout, KeyOrder::tiles(&layout), pages)
    }

    /// Keys lie in rows as values do, for memory that others look at, too; attention is slower.
    pub fn in_rows(layout: PageLayout, pages: Pages) -> Result<Self, BackendError> {
        Self::with(layout, KeyOrder::rows(&layout), pages)
    }

    fn with(layout: PageLayout, keys: KeyOrder, pages: Pages) -> Result<Self, BackendError> {
        let pages = pages.0 as usize;
        let out = |why: String| {
            BackendError::OutOfMemory(format!("{pages} pages of {} bytes: {why}", layout.page_bytes()))
        };
        let bytes =
            pages.checked_mul(layout.page_bytes()).ok_or_else(|| out("beyond the address space".into()))?;
        let map = MmapOptions::new()
            .len(bytes.max(1))
            .no_reserve_swap()
            .map_anon()
            .map_err(|error| out(error.to_string()))?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            // A kernel without huge pages is no error: they only make reading faster.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { layout, keys, pages, map })
    }

    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub(crate) fn keys(&self) -> KeyOrder {
        self.keys
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The page's bytes, `[layout.page_bytes()]`; keys in the order of the arena. Panics if there is no such page.
    pub fn page(&self, page: PageId) -> &[u8] {
        &self.map[self.at(page)..][..self.layout.page_bytes()]
    }

    pub fn page_mut(&mut self, page: PageId) -> &mut [u8] {
        let at = self.at(page);
        &mut self.map[at..][..self.layout.page_bytes()]
    }

    /// Stores an encoded row, `[layout.row_bytes()]`, and its parameters.
    pub fn store_row(&mut self, at: RowAt, row: &[u8], parameters: &[u8]) {
        let (layout, keys) = (self.layout, self.keys);
        let [plane_at, parameters_at] = at.offsets(&layout);
        let page = self.page_mut(at.page);
        let plane = &mut page[plane_at..][..layout.page_size * layout.row_bytes()];
        match at.half {
            Half::Key => keys.write(row, plane, at.slot),
            Half::Value => plane[at.slot * row.len()..][..layout.row_bytes()].copy_from_slice(row),
        }
        page[parameters_at..][..layout.parameter_bytes()].copy_from_slice(parameters);
    }

    /// The encoded row is copied to `row`, `[layout.row_bytes()]`; its parameters are returned.
    pub fn load_row(&self, at: RowAt, row: &mut [u8]) -> &[u8] {
        let layout = &self.layout;
        let [plane_at, parameters_at] = at.offsets(layout);
        let page = self.page(at.page);
        let plane = &page[plane_at..][..layout.page_size * layout.row_bytes()];
        match at.half {
            Half::Key => self.keys.read(plane, at.slot, row),
            Half::Value => row.copy_from_slice(&plane[at.slot * row.len()..][..layout.row_bytes()]),
        }
        &page[parameters_at..][..layout.parameter_bytes()]
    }

    /// Two pages at once; panics if they are the same.
    pub(crate) fn two_pages(&mut self, read: PageId, write: PageId) -> [&mut [u8]; 2] {
        let (read, write, bytes) = (self.at(read), self.at(write), self.layout.page_bytes());
        self.map
            .get_disjoint_mut([read..read + bytes, write..write + bytes])
            .expect("pages do not overlap each other")
    }

    /// Where the page starts. Panics if there is no such page.
    pub(crate) fn at(&self, page: PageId) -> usize {
        assert!(page.index() < self.pages, "{page} of an arena of {}", self.pages);
        page.index() * self.layout.page_bytes()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// The first byte of the first page, for those who share the memory with others, [in rows](Self::in_rows): it stays
    /// where it is for as long as the arena lives, wherever the arena itself is moved.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

impl RowAt {
    /// In the page: of the rows of the head, and of the parameters of this one. Panics if there is no such slot.
    fn offsets(&self, layout: &PageLayout) -> [usize; 2] {
        assert!(self.slot < layout.page_size, "slot {} of {layout:?}", self.slot);
        let parameters = layout.parameters_at(self.layer, self.half, self.head);
        [layout.rows_at(self.layer, self.half, self.head), parameters + self.slot * layout.parameter_bytes()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_types::{KvDtype, KvSpec, PageSize};

    fn layout() -> PageLayout {
        let spec = KvSpec::full_attention(4, 2, 64, KvDtype::F32, PageSize::DEFAULT).unwrap();
        PageLayout::new(&spec)
    }

    #[test]
    fn pages_do_not_overlap_and_start_as_zeros() {
        let mut arena = Arena::new(layout(), Pages(3)).unwrap();
        arena.page_mut(PageId(1)).fill(7);
        assert!(arena.page(PageId(0)).iter().chain(arena.page(PageId(2))).all(|byte| *byte == 0));
        assert!(arena.page(PageId(1)).iter().all(|byte| *byte == 7));
        assert_eq!(arena.page(PageId(1)).len(), arena.layout().page_bytes());
    }

    #[test]
    #[should_panic(expected = "page 3 of an arena of 3")]
    fn a_page_that_does_not_exist_is_refused() {
        Arena::new(layout(), Pages(3)).unwrap().page(PageId(3));
    }

    #[test]
    fn an_arena_beyond_the_address_space_is_an_error() {
        assert!(matches!(Arena::new(layout(), Pages(u32::MAX)), Err(BackendError::OutOfMemory(_))));
    }
}
