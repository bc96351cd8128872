//! What the tests of the plain interface share.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use octavo_kv::{BlockAllocator, CacheManager};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages, SeqId};

pub fn allocate(blocks: &BlockAllocator, n: u32) -> Vec<PageId> {
    blocks.allocate(Pages(n), None).unwrap()
}

pub fn allocate_for(blocks: &BlockAllocator, n: u32, owner: u64) -> Vec<PageId> {
    blocks.allocate(Pages(n), Some(SeqId(owner))).unwrap()
}

pub fn sorted(mut pages: Vec<PageId>) -> Vec<PageId> {
    pages.sort();
    pages
}

pub fn owners(blocks: &BlockAllocator, pages: &[PageId]) -> Vec<Option<u64>> {
    pages.iter().map(|page| blocks.owner(*page).unwrap().map(|seq| seq.0)).collect()
}

pub fn spec(block_size: u32) -> KvSpec {
    KvSpec::full_attention(32, 8, 128, KvDtype::F16, PageSize::new(block_size).unwrap()).unwrap()
}

pub fn manager(total: u32, block_size: u32) -> CacheManager {
    CacheManager::new(spec(block_size), Pages(total)).unwrap()
}

pub fn blocks_of(cache: &CacheManager, seq: SeqId) -> Vec<PageId> {
    cache.block_table(seq).unwrap().as_slice().to_vec()
}
