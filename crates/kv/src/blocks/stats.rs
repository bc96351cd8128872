use octavo_types::{Bytes, Pages};

/// One moment of a [`BlockAllocator`](crate::BlockAllocator): `free_blocks + used_blocks == total_blocks`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockStats {
    pub total_blocks: Pages,
    pub free_blocks: Pages,
    pub used_blocks: Pages,
    /// The most blocks that were used at once.
    pub peak_blocks: Pages,
    /// Share of the blocks in use: 0 to 1; 0 for a pool of none.
    pub utilization: f64,
}

impl BlockStats {
    pub(super) fn new(total: Pages, free: Pages, peak: Pages) -> Self {
        let used = total - free;
        Self {
            total_blocks: total,
            free_blocks: free,
            used_blocks: used,
            // The peak is noted after the blocks are taken: another thread may be between the two.
            peak_blocks: peak.max(used),
            utilization: share(used.0.into(), total.0.into()),
        }
    }

    pub fn utilization_percent(&self) -> f64 {
        100.0 * self.utilization
    }
}

/// One moment of a [`CacheManager`](crate::CacheManager).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheStats {
    pub total_blocks: Pages,
    pub free_blocks: Pages,
    pub used_blocks: Pages,
    /// The most blocks that were used at once.
    pub peak_blocks: Pages,
    /// Share of the blocks in use: 0 to 1.
    pub utilization: f64,
    pub num_sequences: usize,
    /// All blocks, in units of 2^30 bytes.
    pub total_memory_gb: f64,
    pub bytes_used: Bytes,
    pub bytes_free: Bytes,
    pub bytes_peak: Bytes,
    /// Slots without a token, in percent of the slots in sequences' blocks. Free blocks are all alike, so there
    /// is no external fragmentation to report.
    pub internal_fragmentation_percent: f64,
}

/// Slots of the blocks that sequences hold.
pub(super) struct Slots {
    pub(super) in_blocks: u64,
    pub(super) filled: u64,
}

impl CacheStats {
    pub(super) fn new(blocks: BlockStats, page: Bytes, num_sequences: usize, slots: &Slots) -> Self {
        let BlockStats { total_blocks, free_blocks, used_blocks, peak_blocks, utilization } = blocks;
        let bytes = |pages: Pages| Bytes(u64::from(pages.0).saturating_mul(page.0));
        Self {
            total_blocks,
            free_blocks,
            used_blocks,
            peak_blocks,
            utilization,
            num_sequences,
            total_memory_gb: bytes(total_blocks).0 as f64 / f64::from(1 << 30),
            bytes_used: bytes(used_blocks),
            bytes_free: bytes(free_blocks),
            bytes_peak: bytes(peak_blocks),
            internal_fragmentation_percent: 100.0 * share(slots.in_blocks - slots.filled, slots.in_blocks),
        }
    }

    pub fn utilization_percent(&self) -> f64 {
        100.0 * self.utilization
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
