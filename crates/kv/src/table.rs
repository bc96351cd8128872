//! The page table of one sequence in one layer group.

use crate::page::{PageMut, PageRef};
use crate::pool::RefError;
use octavo_types::{PageId, PageSize, Pages, SlotId, SlotRange, Tokens};
use std::collections::VecDeque;
use std::ops::Range;

/// Maps positions to pages.
///
/// ```text
///   index     0 … first-1 │ first … first+sealed.len()-1 │ the next
///   page      left the    │ sealed: read only, perhaps   │ open: being filled,
///             window      │ shared                       │ ours alone
/// ```
///
/// Invariants: at most one page is open, and it is the last; a sealed page that is not full is the last; `ids` names
/// the pages in order.
#[derive(Debug)]
pub struct Table {
    first: Pages,
    sealed: VecDeque<PageRef>,
    open: Option<PageMut>,
    /// The same pages by their ids: what a step reads.
    ids: VecDeque<PageId>,
}

impl Table {
    /// A table whose first `first` pages have left the window.
    pub(crate) fn starting_at(first: Pages) -> Self {
        Self { first, sealed: VecDeque::new(), open: None, ids: VecDeque::new() }
    }

    /// Index of the first page held.
    pub fn first(&self) -> Pages {
        self.first
    }

    /// Index after the last page held.
    pub fn end(&self) -> Pages {
        self.first + self.held()
    }

    /// How many pages are held.
    pub fn held(&self) -> Pages {
        Pages(self.ids.len() as u32)
    }

    /// The pages held, in order.
    pub fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.ids.iter().copied()
    }

    /// The pages held, in order, as two runs of memory.
    pub fn page_runs(&self) -> [&[PageId]; 2] {
        self.ids.as_slices().into()
    }

    /// Whether the ids are those of the pages.
    pub(crate) fn agrees(&self) -> bool {
        let pages = self.sealed.iter().map(PageRef::id).chain(self.open.iter().map(PageMut::id));
        self.ids.iter().copied().eq(pages)
    }

    /// The page at `index`, unless it left the window or has not been taken yet.
    pub fn page(&self, index: Pages) -> Option<PageId> {
        self.ids.get(index.checked_sub(self.first)?.as_usize()).copied()
    }

    /// Where the token at `position` lives.
    pub fn slot(&self, position: Tokens, size: PageSize) -> Option<SlotId> {
        let page = self.page(size.page_of(position))?;
        Some(SlotId::new(page, size.offset_of(position), size))
    }

    /// Where `positions` live, page by page; `None` if one of them has no page.
    pub fn slots(&self, positions: Range<Tokens>, size: PageSize) -> Option<Vec<SlotRange>> {
        let mut ranges = Vec::new();
        let mut at = positions.start.0;
        while at < positions.end.0 {
            let page = self.page(size.page_of(Tokens(at)))?;
            let offset = size.offset_of(Tokens(at)).0;
            let len = (size.tokens().0 - offset).min(positions.end.0 - at);
            ranges.push(SlotRange { page, offsets: offset..offset + len });
            at += len;
        }
        Some(ranges)
    }

    pub(crate) fn push_sealed(&mut self, page: PageRef) {
        assert!(self.open.is_none(), "the open page is the last");
        self.ids.push_back(page.id());
        self.sealed.push_back(page);
    }

    /// Seals the open page, if there is one, and goes on with `page`.
    pub(crate) fn push_open(&mut self, page: PageMut) {
        self.seal();
        self.ids.push_back(page.id());
        self.open = Some(page);
    }

    pub(crate) fn seal(&mut self) {
        self.sealed.extend(self.open.take().map(PageMut::seal));
    }

    pub(crate) fn open(&self) -> Option<&PageMut> {
        self.open.as_ref()
    }

    /// The last page, if it is sealed.
    pub(crate) fn sealed_tail(&self) -> Option<&PageRef> {
        if self.open.is_some() { None } else { self.sealed.back() }
    }

    /// Makes the sealed tail writable where it lies. Panics if it is shared.
    pub(crate) fn reopen_tail(&mut self) {
        let tail = self.sealed.pop_back().expect("a sealed tail");
        self.open = Some(tail.unseal().expect("nobody else holds the tail"));
    }

    /// Replaces the sealed tail by `copy`, and hands the original out.
    pub(crate) fn replace_tail(&mut self, copy: PageMut) -> PageRef {
        let tail = self.sealed.pop_back().expect("a sealed tail");
        *self.ids.back_mut().expect("it has an id") = copy.id();
        self.open = Some(copy);
        tail
    }

    /// Takes back `replace_tail`: the last page, whatever it is now, gives way to `original`.
    pub(crate) fn restore_tail(&mut self, original: PageRef) {
        drop(self.pop());
        self.push_sealed(original);
    }

    pub(crate) fn sealed_page(&self, index: Pages) -> Option<&PageRef> {
        self.sealed.get(index.checked_sub(self.first)?.as_usize())
    }

    /// Gives up the last page.
    pub(crate) fn pop(&mut self) -> Option<PageRef> {
        self.ids.pop_back();
        match self.open.take() {
            Some(page) => Some(page.seal()),
            None => self.sealed.pop_back(),
        }
    }

    /// Gives up the first page if its index is below `keep_from`.
    pub(crate) fn pop_front(&mut self, keep_from: Pages) -> Option<PageRef> {
        if self.first >= keep_from {
            return None;
        }
        let page = self.sealed.pop_front()?;
        self.ids.pop_front();
        self.first += Pages(1);
        Some(page)
    }

    /// A second table over the same pages. The open page is sealed: whoever writes next copies it.
    pub(crate) fn fork(&mut self) -> Result<Self, RefError> {
        self.seal();
        let sealed = self.sealed.iter().map(PageRef::share).collect::<Result<_, _>>()?;
        Ok(Self { first: self.first, sealed, open: None, ids: self.ids.clone() })
    }
}
