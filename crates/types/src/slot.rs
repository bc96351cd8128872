use crate::{PageId, PageSize, Tokens};
use std::ops::Range;

/// One token's place in the whole arena: `page * page_size + offset`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u64);

impl SlotId {
    /// The slot `offset` tokens into `page`. Panics if the offset lies outside the page.
    pub fn new(page: PageId, offset: Tokens, size: PageSize) -> Self {
        assert!(offset < size.tokens(), "slot {} of a page of {}", offset.0, size.tokens());
        Self(u64::from(page.0) * u64::from(size.tokens().0) + u64::from(offset.0))
    }

    /// The page and the offset again; `None` if the page id would not fit its type.
    pub fn split(self, size: PageSize) -> Option<(PageId, Tokens)> {
        let tokens = u64::from(size.tokens().0);
        let page = u32::try_from(self.0 / tokens).ok()?;
        Some((PageId(page), Tokens((self.0 % tokens) as u32)))
    }
}

/// Slots of consecutive positions, a page at a time: what a kernel that scatters new keys and values reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRange {
    pub page: PageId,
    /// Offsets within the page.
    pub offsets: Range<u32>,
}

impl SlotRange {
    pub fn slots(&self, size: PageSize) -> impl Iterator<Item = SlotId> + use<> {
        let page = self.page;
        self.offsets.clone().map(move |offset| SlotId::new(page, Tokens(offset), size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_page_times_size_plus_offset() {
        let size = PageSize::DEFAULT;
        assert_eq!(SlotId::new(PageId(23), Tokens(14), size), SlotId(23 * 16 + 14));
        assert_eq!(SlotId(23 * 16 + 14).split(size), Some((PageId(23), Tokens(14))));
    }

    #[test]
    fn the_last_slot_of_the_largest_pool_does_not_wrap() {
        let size = PageSize::new(u32::MAX).unwrap();
        let last = SlotId::new(PageId(u32::MAX), Tokens(u32::MAX - 1), size);
        assert_eq!(last.split(size), Some((PageId(u32::MAX), Tokens(u32::MAX - 1))));
    }

    #[test]
    #[should_panic(expected = "slot 16 of a page of 16 tokens")]
    fn an_offset_outside_the_page_is_refused() {
        SlotId::new(PageId(0), Tokens(16), PageSize::DEFAULT);
    }
}
