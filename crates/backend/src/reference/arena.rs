//! Pages as bytes, by the book of [`PageLayout`].

use crate::{Half, PageLayout, TableView, codec};
use octavo_types::{PageId, Pages};
use std::ops::Range;

/// Pages in plain memory.
#[derive(Clone, PartialEq, Debug)]
pub struct ReferenceArena {
    layout: PageLayout,
    bytes: Vec<u8>,
}

/// The place of one row (one head's key or value of one token) in the arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) layer: usize,
    pub(super) half: Half,
    pub(super) head: usize,
    pub(super) page: PageId,
    pub(super) slot: usize,
}

impl ReferenceArena {
    pub(super) fn new(layout: PageLayout, pages: Pages) -> Self {
        Self { layout, bytes: vec![0; layout.page_bytes() * pages.as_usize()] }
    }

    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The bytes of one page.
    pub fn page(&self, page: PageId) -> &[u8] {
        &self.bytes[page.index() * self.layout.page_bytes()..][..self.layout.page_bytes()]
    }

    /// Page and slot of a position.
    pub(super) fn locate(&self, table: TableView<'_>, position: u32) -> (PageId, usize) {
        let size = self.layout.page_size as u32;
        let index = (position / size).checked_sub(table.first).expect("a page that has left the window");
        (table.pages[index as usize], (position % size) as usize)
    }

    pub(super) fn write(&mut self, place: Place, row: &[f32]) {
        let (elements, parameters) = self.ranges(place);
        let mut params = [0; 4];
        let params = &mut params[..parameters.len()];
        codec::encode(self.layout.dtype, row, &mut self.bytes[elements], params);
        self.bytes[parameters].copy_from_slice(params);
    }

    pub(super) fn read(&self, place: Place) -> Vec<f32> {
        let (elements, parameters) = self.ranges(place);
        let mut out = vec![0.0; self.layout.head_dim];
        codec::decode(self.layout.dtype, &self.bytes[elements], &self.bytes[parameters], &mut out);
        out
    }

    pub(super) fn copy(&mut self, from: PageId, to: PageId, slots: usize) {
        for layer in 0..self.layout.layers {
            for half in [Half::Key, Half::Value] {
                for head in 0..self.layout.kv_heads {
                    for slot in 0..slots {
                        let place = |page| Place { layer, half, head, page, slot };
                        let ((e0, p0), (e1, p1)) = (self.ranges(place(from)), self.ranges(place(to)));
                        self.bytes.copy_within(e0, e1.start);
                        self.bytes.copy_within(p0, p1.start);
                    }
                }
            }
        }
    }

    pub(super) fn zero(&mut self, page: PageId) {
        let bytes = self.layout.page_bytes();
        self.bytes[page.index() * bytes..][..bytes].fill(0);
    }

    /// The bytes of a row's elements and of its parameters.
    fn ranges(&self, place: Place) -> (Range<usize>, Range<usize>) {
        let Place { layer, half, head, page, slot } = place;
        let layout = &self.layout;
        assert!(slot < layout.page_size, "slot {slot} of {}", layout.page_size);
        let page = page.index() * layout.page_bytes();
        let elements = page + layout.rows_at(layer, half, head) + slot * layout.row_bytes();
        let parameters = page + layout.parameters_at(layer, half, head) + slot * layout.parameter_bytes();
        (elements..elements + layout.row_bytes(), parameters..parameters + layout.parameter_bytes())
    }
}
