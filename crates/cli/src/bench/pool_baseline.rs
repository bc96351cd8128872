//! What `bench pool` compares with: the usual design of a block allocator, one mutex around a queue of free
//! ids and a vector of boxed blocks.
//!
//! `allocate_n` takes the lock once for all its blocks, `free` once for each, as that design does; for one
//! block there is `allocate`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

#[derive(Debug)]
struct PhysicalBlock {
    ref_count: u32,
    num_tokens: u32,
    is_allocated: bool,
}

#[derive(Debug)]
struct State {
    #[expect(clippy::vec_box, reason = "the design that is measured boxes its blocks")]
    blocks: Vec<Box<PhysicalBlock>>,
    free_blocks: VecDeque<u32>,
}

impl State {
    fn take(&mut self) -> Option<u32> {
        let id = self.free_blocks.pop_front()?;
        let block = &mut self.blocks[id as usize];
        block.is_allocated = true;
        block.ref_count = 1;
        block.num_tokens = 0;
        Some(id)
    }
}

#[derive(Debug)]
pub(super) struct LockedAllocator(Mutex<State>);

/// Why the allocator did nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    NotEnough { need: usize, free: usize },
    Unknown(u32),
    NotAllocated(u32),
}

impl LockedAllocator {
    pub(super) fn new(blocks: u32) -> Self {
        let block = || Box::new(PhysicalBlock { ref_count: 0, num_tokens: 0, is_allocated: false });
        let state =
            State { blocks: (0..blocks).map(|_| block()).collect(), free_blocks: (0..blocks).collect() };
        Self(Mutex::new(state))
    }

    pub(super) fn allocate(&self) -> Result<u32, Refused> {
        self.lock().take().ok_or(Refused::NotEnough { need: 1, free: 0 })
    }

    pub(super) fn allocate_n(&self, n: usize) -> Result<Vec<u32>, Refused> {
        let mut state = self.lock();
        let free = state.free_blocks.len();
        if free < n {
            return Err(Refused::NotEnough { need: n, free });
        }
        let mut allocated = Vec::with_capacity(n);
        for _ in 0..n {
            allocated.push(state.take().expect("counted above"));
        }
        Ok(allocated)
    }

    pub(super) fn free(&self, id: u32) -> Result<(), Refused> {
        let mut state = self.lock();
        let block = state.blocks.get_mut(id as usize).ok_or(Refused::Unknown(id))?;
        if !block.is_allocated {
            return Err(Refused::NotAllocated(id));
        }
        block.ref_count -= 1;
        if block.ref_count == 0 {
            block.is_allocated = false;
            block.num_tokens = 0;
            state.free_blocks.push_back(id);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_in_the_order_they_were_freed() {
        let allocator = LockedAllocator::new(3);
        assert_eq!(allocator.allocate_n(3), Ok(vec![0, 1, 2]));
        assert_eq!(allocator.allocate_n(1), Err(Refused::NotEnough { need: 1, free: 0 }));
        for id in [2, 0, 1] {
            allocator.free(id).unwrap();
        }
        assert_eq!(allocator.allocate(), Ok(2));
        assert_eq!(allocator.allocate_n(2), Ok(vec![0, 1]));
    }

    #[test]
    fn a_block_is_freed_once_and_only_if_it_exists() {
        let allocator = LockedAllocator::new(1);
        assert_eq!(allocator.free(0), Err(Refused::NotAllocated(0)));
        assert_eq!(allocator.free(1), Err(Refused::Unknown(1)));
    }
}
