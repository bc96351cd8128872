use std::fmt;

/// One physical page of the pool: `0..total`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct PageId(pub u32);

/// One sequence for as long as the process lives: ids are counted up and never given out twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SeqId(pub u64);

/// One layer group: the layers that share a page table (see [`KvSpec`](crate::KvSpec)).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u16);

impl PageId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl GroupId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}
