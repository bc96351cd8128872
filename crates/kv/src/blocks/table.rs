use octavo_types::{PageId, PageSize, Pages, SlotId, Tokens};

/// Maps the logical blocks of one sequence to physical ones. It has no holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable(Vec<PageId>);

/// A block that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table has no block {}: it ends after {len}", index.0)]
pub struct NoSuchBlock {
    pub index: Pages,
    pub len: Pages,
}

impl BlockTable {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn append(&mut self, page: PageId) {
        self.0.push(page);
    }

    pub fn get(&self, index: Pages) -> Option<PageId> {
        self.0.get(index.as_usize()).copied()
    }

    /// Puts `page` in the place of the block at `index`, and hands that one out.
    pub fn set(&mut self, index: Pages, page: PageId) -> Result<PageId, NoSuchBlock> {
        let len = self.len();
        let entry = self.0.get_mut(index.as_usize()).ok_or(NoSuchBlock { index, len })?;
        Ok(std::mem::replace(entry, page))
    }

    pub fn len(&self) -> Pages {
        Pages(self.0.len() as u32)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        self.0.iter().copied()
    }

    pub fn as_slice(&self) -> &[PageId] {
        &self.0
    }

    /// Where the token at `position` lives; `None` past the last block.
    pub fn slot(&self, position: Tokens, size: PageSize) -> Option<SlotId> {
        let page = self.get(size.page_of(position))?;
        Some(SlotId::new(page, size.offset_of(position), size))
    }

    /// Tokens that the blocks have room for, no more than a sequence can have.
    pub fn room(&self, size: PageSize) -> Tokens {
        size.tokens_in(self.len()).unwrap_or(Tokens(u32::MAX))
    }
}

impl Extend<PageId> for BlockTable {
    fn extend<I: IntoIterator<Item = PageId>>(&mut self, pages: I) {
        self.0.extend(pages);
    }
}

impl FromIterator<PageId> for BlockTable {
    fn from_iter<I: IntoIterator<Item = PageId>>(pages: I) -> Self {
        Self(pages.into_iter().collect())
    }
}
