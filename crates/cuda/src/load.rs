//! What measurements on an H200 (132 multiprocessors) taught about decoding, where bits may depend on the batch.
//!
//! A sequence is cut into parts, each for a block of its own, only to fill the device: merging costs some
//! microseconds, and more with every part. What stays whole runs best in many small blocks, what is cut in few
//! large ones.

use crate::plan::{Cuts, PlanKey, Tuning};

/// The fewest tiles that are worth a share: one for each warp of a small batch.
const LEAST_PART: usize = 8;
/// The same for heads over 128.
const LEAST_WIDE_PART: usize = 4;
/// Up to so many tiles a multiprocessor, a batch is small, or tiny.
const SMALL: usize = 16;
const TINY: usize = 2;
/// What merging the parts of a sequence costs, in tiles.
const MERGING: usize = 12;
/// So many tiles more than its part a processor may have before cutting is worth it.
const UNEVEN: usize = 32;

/// The tiles that rows of a batch read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Tiles of all sequences and heads.
    total: usize,
    /// Sequences times heads: the blocks there are if none is cut.
    whole: usize,
    longest: usize,
    kv_heads: usize,
}

impl Load {
    pub(crate) fn new(tiles: impl Iterator<Item = u32> + Clone, kv_heads: usize) -> Self {
        Self {
            total: tiles.clone().map(|n| n as usize).sum::<usize>() * kv_heads,
            whole: tiles.clone().count() * kv_heads,
            longest: tiles.max().unwrap_or(0) as usize,
            kv_heads,
        }
    }

    /// The most blocks that a processor gets if none is cut and they are dealt out evenly.
    fn rounds(&self, processors: usize) -> usize {
        self.whole.div_ceil(processors)
    }

    /// Whether no processor has much more than its part if none is cut.
    fn is_even(&self, processors: usize) -> bool {
        let part = self.total / processors;
        let fullest = (self.rounds(processors) * self.total / self.whole).max(self.longest);
        self.longest <= 2 * part && fullest <= part + (part / 8).max(UNEVEN)
    }

    /// Warps, stages and blocks for one multiprocessor; zeros where nothing was measured.
    ///
    /// The device puts blocks wherever there is room, several on one processor while others have none: what is long and
    /// stays whole has blocks so large that no processor has room for more than its part.
    pub(crate) fn tuning(&self, key: &PlanKey, processors: usize) -> Tuning {
        let (rounds, is_even) = (self.rounds(processors), self.is_even(processors));
        let [warps, stages, min_blocks] = match (key.head_dim > 128, key.element_bytes) {
            (_, 4) => [0; 3],
            (true, 1) => [4, 4, 1],
            (true, _) if is_even && rounds > 1 => [2, 3, 2],
            // Of more heads in a group, results leave no room for a fifth warp.
            (true, _) if self.total <= TINY * processors && key.group <= 8 => [5, 2, 1],
            (true, _) => [4, 2, 1],
            _ if self.total <= SMALL * processors => [8, 3, 1],
            (false, 1) if is_even && rounds > 1 => [2, 4, 4],
            (false, 1) if rounds > 1 => [4, 4, 3],
            _ if is_even && self.longest > 128 => match rounds {
                1 => [8, 3, 1],
                2 => [4, 3, 2],
                3 => [4, 2, 3],
                _ => [2, 3, 4],
            },
            _ => [4, 3, 2],
        };
        Tuning { warps, stages, min_blocks, ..Tuning::default() }
    }

    /// How to cut for so many shares, on so many processors.
    ///
    /// What gives some processors much more than others is cut, and what comes in more blocks than there are places at
    /// once, of which the last would leave places empty.
    pub(crate) fn cuts(&self, key: &PlanKey, shares: usize, processors: usize) -> Cuts {
        let tiles = self.total / self.kv_heads;
        let at_once = self.whole / self.kv_heads <= shares;
        let whole = if at_once { self.is_even(processors) } else { self.longest <= 2 * MERGING };
        if whole {
            return Cuts::Parts(u32::MAX);
        }
        let least = if key.head_dim > 128 { LEAST_WIDE_PART } else { LEAST_PART };
        let shares = shares.min(tiles / least).max(1);
        // Of equal lengths each is cut alike, if that does not leave many places empty.
        let batch = self.whole / self.kv_heads;
        let alike = shares / batch * batch;
        let is_even = self.longest * self.whole == self.total && alike > 0;
        let loses = |alike: usize| tiles.div_ceil(alike) - tiles / shares;
        Cuts::Even(if is_even && loses(alike) <= MERGING { alike } else { shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESSORS: usize = 132;

    fn key(kv_heads: usize, head_dim: usize, element_bytes: usize) -> PlanKey {
        let tuning = Tuning::default();
        PlanKey {
            window: 0,
            kv_heads,
            group: 4,
            head_dim,
            element_bytes,
            deterministic: false,
            groups: false,
            tuning,
        }
    }

    fn chosen(batch: usize, context: u32, [kv_heads, head_dim, bytes]: [usize; 3]) -> (Cuts, [usize; 3]) {
        let key = key(kv_heads, head_dim, bytes);
        let load = Load::new(std::iter::repeat_n(context / 16, batch), kv_heads);
        let Tuning { warps, stages, min_blocks, .. } = load.tuning(&key, PROCESSORS);
        (load.cuts(&key, PROCESSORS * min_blocks / kv_heads, PROCESSORS), [warps, stages, min_blocks])
    }

    #[test]
    fn sequences_are_cut_only_to_fill_the_device() {
        let (llama, gemma, whole) = ([8, 128, 2], [1, 256, 2], Cuts::Parts(u32::MAX));
        assert_eq!(chosen(64, 4096, llama), (whole, [2, 3, 4]));
        assert_eq!(chosen(48, 4096, llama), (whole, [4, 2, 3]));
        assert_eq!(chosen(32, 4096, llama), (whole, [4, 3, 2]));
        assert_eq!(chosen(24, 4096, llama), (Cuts::Even(33), [4, 3, 2]));
        assert_eq!(chosen(16, 4096, llama), (whole, [8, 3, 1]));
        assert_eq!(chosen(1, 4096, llama), (Cuts::Even(16), [8, 3, 1]));
        assert_eq!(chosen(1, 512, llama), (Cuts::Even(4), [8, 3, 1]));
        assert_eq!(chosen(1, 48, llama), (Cuts::Even(1), [8, 3, 1]), "less than is worth a share");
        assert_eq!(chosen(1, 512, gemma), (Cuts::Even(8), [5, 2, 1]));
        assert_eq!(chosen(24, 512, gemma), (Cuts::Even(120), [4, 2, 1]));
        assert_eq!(chosen(8, 32768, llama), (Cuts::Even(33), [4, 3, 2]));
        assert_eq!(chosen(1, 200_000, llama), (Cuts::Even(33), [4, 3, 2]));
        assert_eq!(chosen(24, 512, llama), (whole, [4, 3, 2]));
        assert_eq!(chosen(64, 4096, gemma), (Cuts::Even(128), [4, 2, 1]));
        assert_eq!(chosen(256, 1024, gemma), (whole, [2, 3, 2]));
        assert_eq!(chosen(1, 200_000, gemma), (Cuts::Even(132), [4, 2, 1]));
        assert_eq!(chosen(64, 4096, [1, 256, 1]), (Cuts::Even(128), [4, 4, 1]));
        assert_eq!(chosen(64, 4096, [8, 128, 1]), (whole, [2, 4, 4]));
        assert_eq!(chosen(24, 4096, [8, 128, 1]), (Cuts::Even(48), [4, 4, 3]));
    }

    #[test]
    fn a_long_sequence_among_many_short_ones_is_cut() {
        let tiles = std::iter::repeat_n(10, 63).chain([12_500]);
        assert_eq!(Load::new(tiles, 8).cuts(&key(8, 128, 2), 33, PROCESSORS), Cuts::Even(33));
    }
}
