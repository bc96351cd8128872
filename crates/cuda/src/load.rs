//! What measurements on an H200 (132 multiprocessors) taught about decoding, where bits may depend on the batch.
//!
//! A sequence is cut into parts, each for a block of its own, only to fill the device: merging costs some
//! microseconds, and more with every part. What stays whole runs best in many small blocks, what is cut in few
//! large ones.

use crate::plan::{PlanKey, Tuning};

/// The fewest tiles that are worth a part of their own.
const LEAST_PART: usize = 16;
/// Sequences up to this many tiles are never cut.
const SHORT: usize = 32;
/// Where blocks come and go several times, parts are at least this long.
const LONG_PART: usize = 64;
/// How often, then, each place on the device is taken.
const WAVES: usize = 4;
/// The most parts that may be merged for the sake of that.
const MANY_PARTS: usize = 24;

/// The tiles that rows of a batch read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Tiles of all sequences and heads.
    total: usize,
    /// Sequences times heads: the blocks there are if none is cut.
    whole: usize,
    longest: usize,
}

impl Load {
    pub(crate) fn new(tiles: impl Iterator<Item = u32> + Clone, kv_heads: usize) -> Self {
        Self {
            total: tiles.clone().map(|n| n as usize).sum::<usize>() * kv_heads,
            whole: tiles.clone().count() * kv_heads,
            longest: tiles.max().unwrap_or(0) as usize,
        }
    }

    /// Warps, stages and blocks for one multiprocessor; zeros where nothing was measured.
    pub(crate) fn tuning(&self, key: &PlanKey, processors: usize) -> Tuning {
        let [warps, stages, min_blocks] = match (key.head_dim > 128, key.element_bytes) {
            (_, 4) => [0; 3],
            (true, _) if self.whole >= processors => [2, 3, 4],
            (true, bytes) => [4, 6 / bytes, 1],
            _ if self.total <= LEAST_PART * processors => [8, 3, 1],
            (false, 1) if self.whole >= processors => [2, 3, 4],
            _ if self.whole >= processors && self.longest > 128 => [2, 3, 4],
            _ if self.whole >= processors => [4, 2, 2],
            _ => [4, 3, 2],
        };
        Tuning { part_tiles: 0, warps, stages, min_blocks }
    }

    /// Tiles of a part, on a device with room for so many blocks.
    pub(crate) fn part_tiles(&self, room: usize) -> u32 {
        let tiles = if self.longest <= SHORT {
            self.longest
        } else if 4 * self.longest * self.whole > 5 * self.total {
            // Of different lengths: the long ones go first, and the short ones fill what they leave.
            self.total.div_ceil(2 * room).max(SHORT)
        } else if 9 * self.whole >= 4 * room {
            self.longest
        } else {
            self.longest.div_ceil(self.parts(room)).max(LEAST_PART)
        };
        u32::try_from(tiles.max(1)).unwrap_or(u32::MAX)
    }

    /// Parts of each sequence: such that all blocks run at once and leave no place empty, or else so many that a
    /// place which is empty in the end does not matter.
    fn parts(&self, room: usize) -> usize {
        let once = (room / self.whole).max(1);
        let often = (WAVES * room).div_ceil(self.whole);
        let full = 100 * once * self.whole >= 99 * room;
        if full || often > MANY_PARTS || self.longest < often * LONG_PART { once } else { often }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESSORS: usize = 132;

    /// Tiles of a part, warps, stages, blocks.
    fn chosen(batch: usize, context: u32, [kv_heads, head_dim, bytes]: [usize; 3]) -> [usize; 4] {
        let key = PlanKey {
            window: 0,
            kv_heads,
            group: 4,
            head_dim,
            element_bytes: bytes,
            deterministic: false,
            tuning: Tuning::default(),
        };
        let load = Load::new(std::iter::repeat_n(context / 16, batch), kv_heads);
        let Tuning { warps, stages, min_blocks, .. } = load.tuning(&key, PROCESSORS);
        [load.part_tiles(PROCESSORS * min_blocks) as usize, warps, stages, min_blocks]
    }

    #[test]
    fn what_was_fastest_is_chosen_for_heads_of_128() {
        let llama = [8, 128, 2];
        assert_eq!(chosen(1, 4096, llama), [16, 8, 3, 1]);
        assert_eq!(chosen(24, 512, llama), [32, 4, 2, 2]);
        assert_eq!(chosen(64, 4096, llama), [256, 2, 3, 4]);
        assert_eq!(chosen(256, 1024, llama), [64, 4, 2, 2]);
        assert_eq!(chosen(8, 32768, llama)[1..], [4, 3, 2]);
        assert!((83..=249).contains(&chosen(8, 32768, llama)[0]));
        assert_eq!(chosen(1, 200_000, llama), [379, 4, 3, 2]);
        assert_eq!(chosen(64, 4096, [8, 128, 1]), [256, 2, 3, 4]);
    }

    #[test]
    fn what_was_fastest_is_chosen_for_heads_of_256() {
        let gemma = [1, 256, 2];
        assert_eq!(chosen(24, 512, gemma), [32, 4, 3, 1]);
        assert_eq!(chosen(64, 4096, gemma), [256, 4, 3, 1]);
        assert_eq!(chosen(256, 1024, gemma), [64, 2, 3, 4]);
        assert_eq!(chosen(8, 32768, gemma), [128, 4, 3, 1]);
        assert_eq!(chosen(1, 200_000, gemma), [95, 4, 3, 1]);
    }

    #[test]
    fn a_long_sequence_among_many_short_ones_is_cut() {
        let tiles = std::iter::repeat_n(10, 63).chain([12_500]);
        let load = Load::new(tiles, 8);
        assert!(load.part_tiles(264) < 500);
    }
}
