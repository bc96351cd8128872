//! Lock-free stacks of page ids: the free list and the return stack.
//!
//! A page lies on at most one stack at a time, so all stacks of a pool share one array of links. A link holds
//! the page below and the *depth*, the number of pages from here down to the bottom. The depth makes the
//! length of a stack one load, and lets `n` pages be taken all or none with a single compare-and-swap.
//!
//! The head is tagged: it changes on every operation, so a walk over links that another thread was rewriting
//! meanwhile ends in a failed compare-and-swap and is thrown away. Stale links are harmless, since every
//! value ever stored in one is a valid page id or the bottom mark.
//!
//! Orders: every write to a head is a read-modify-write with release order, so an acquire load of it sees the
//! links of all pushes before it. A link is rewritten only after the compare-and-swap that took its page off;
//! links are stored with release and loaded with acquire order, so whoever sees the new link also sees the new
//! head, and comparing heads is enough to know that a walk was sound.

use crate::sync::{AtomicU64, Ordering};
use octavo_types::{PageId, Pages};

/// In the place of a page id: nothing below.
const BOTTOM: u32 = u32::MAX;

/// The most pages a pool can have: one id stands for the bottom of a stack.
pub(crate) const MAX_PAGES: Pages = Pages(u32::MAX);

fn pack(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// One link a page: (depth, page below).
#[derive(Debug)]
pub(crate) struct Links(Box<[AtomicU64]>);

impl Links {
    pub(crate) fn new(pages: Pages) -> Self {
        Self((0..pages.0).map(|_| AtomicU64::new(pack(0, BOTTOM))).collect())
    }

    fn below(&self, page: u32) -> u32 {
        unpack(self.0[page as usize].load(Ordering::Acquire)).1
    }

    /// Pages from `top` down, itself included; none at the bottom.
    fn depth(&self, top: u32) -> u32 {
        if top == BOTTOM { 0 } else { unpack(self.0[top as usize].load(Ordering::Acquire)).0 }
    }

    /// Fills `out` with the pages from `top` down; returns what lies below them. `None` if the links end before:
    /// they were being rewritten.
    fn read_down(&self, mut top: u32, out: &mut [PageId]) -> Option<u32> {
        for page in out {
            if top == BOTTOM {
                return None;
            }
            *page = PageId(top);
            top = self.below(top);
        }
        Some(top)
    }

    fn set(&self, page: PageId, depth: u32, below: u32) {
        self.0[page.index()].store(pack(depth, below), Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct Stack {
    /// (tag, top page)
    head: AtomicU64,
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self { head: AtomicU64::new(pack(0, BOTTOM)) }
    }

    pub(crate) fn len(&self, links: &Links) -> Pages {
        loop {
            let head = self.head.load(Ordering::Acquire);
            let depth = links.depth(unpack(head).1);
            if self.unchanged(head) {
                return Pages(depth);
            }
        }
    }

    /// Puts `pages` on the stack in one step, the last of them on top. None may lie on a stack already.
    pub(crate) fn push(&self, links: &Links, pages: &[PageId]) {
        let Some(top) = pages.last() else { return };
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (_, mut below) = unpack(head);
            let mut depth = links.depth(below);
            for &page in pages {
                // A wrong depth read from a stale link must not trip the check: the swap below fails then.
                depth = depth.wrapping_add(1);
                links.set(page, depth, below);
                below = page.0;
            }
            match self.swap(head, top.0) {
                Ok(()) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Fills `out` with pages in one step, top first, and says how many are left. When there are fewer, takes none
    /// and says how many there are.
    pub(crate) fn pop(&self, links: &Links, out: &mut [PageId]) -> Result<Pages, Pages> {
        let n = u32::try_from(out.len()).expect("no more pages than a pool has");
        loop {
            let head = self.head.load(Ordering::Acquire);
            let (_, top) = unpack(head);
            let depth = links.depth(top);
            if depth < n {
                if self.unchanged(head) {
                    return Err(Pages(depth));
                }
            } else if let Some(below) = links.read_down(top, out)
                && self.swap(head, below).is_ok()
            {
                return Ok(Pages(depth - n));
            }
        }
    }

    /// Takes everything, appended to `out` in the order it was pushed.
    pub(crate) fn take_all(&self, links: &Links, out: &mut Vec<PageId>) {
        let before = out.len();
        let mut head = self.head.load(Ordering::Acquire);
        while unpack(head).1 != BOTTOM {
            match self.swap(head, BOTTOM) {
                Ok(()) => break,
                Err(now) => head = now,
            }
        }
        let (_, mut top) = unpack(head);
        while top != BOTTOM {
            out.push(PageId(top));
            top = links.below(top);
        }
        out[before..].reverse();
    }

    /// The pages on the stack, top first. Only meaningful while nobody pushes or pops.
    pub(crate) fn walk<'a>(&self, links: &'a Links) -> impl Iterator<Item = PageId> + 'a {
        let mut top = unpack(self.head.load(Ordering::Acquire)).1;
        std::iter::from_fn(move || {
            let page = (top != BOTTOM).then_some(PageId(top))?;
            top = links.below(top);
            Some(page)
        })
    }

    /// Whether the links read since `head` was loaded belong to it.
    fn unchanged(&self, head: u64) -> bool {
        self.head.load(Ordering::Acquire) == head
    }

    fn swap(&self, head: u64, top: u32) -> Result<(), u64> {
        let (tag, _) = unpack(head);
        self.head
            .compare_exchange(head, pack(tag.wrapping_add(1), top), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}
