//! The best that any eviction can do: Belady's rule on a trace that is known to its end.
//!
//! Every request needs all its blocks in the cache at once, so its missing blocks take the place of others,
//! never of its own. Out goes the block whose next use lies farthest ahead; of those that are next used by
//! the same request (or by none), the deepest, because a block is of use only together with all that come
//! before it. No block is used before the one it follows, so what is cached is always closed towards the
//! start: leaves go first. A hit is the longest run of cached blocks from the start of a request.

use super::trace_file::{BlockId, Trace};
use std::collections::BinaryHeap;

/// When a block is used next, as the number of a request; `NEVER` if it is not.
type NextUse = u32;
const NEVER: NextUse = u32::MAX;

/// The order in which blocks go, the greatest first: the next use, then the depth.
type Rank = (NextUse, u32);

/// How many blocks of the trace an optimal cache of `capacity` blocks would have found. A request of more
/// blocks than that is passed over.
pub(super) fn optimal_hits(trace: &Trace, capacity: u32) -> u64 {
    let mut cache = Cache { ranks: vec![None; trace.distinct_blocks()], len: 0, order: BinaryHeap::new() };
    let fits = |blocks: &[BlockId]| blocks.len() <= capacity as usize;
    let next_uses = next_uses(trace, fits);
    let mut hits = 0;
    for (request, next_uses) in trace.requests().iter().zip(&next_uses) {
        if !fits(&request.blocks) {
            continue;
        }
        let hit = request.blocks.iter().take_while(|block| cache.has(**block)).count();
        hits += hit as u64;
        request.blocks[..hit].iter().for_each(|block| cache.take(*block));
        while cache.len + request.blocks.len() > capacity as usize {
            cache.evict();
        }
        for ((block, next_use), depth) in request.blocks.iter().zip(next_uses).zip(0..) {
            cache.insert(*block, (*next_use, depth));
        }
    }
    hits
}

/// For every block of every request, which request uses it next.
fn next_uses(trace: &Trace, fits: impl Fn(&[BlockId]) -> bool) -> Vec<Vec<NextUse>> {
    let mut next = vec![NEVER; trace.distinct_blocks()];
    let mut uses: Vec<Vec<NextUse>> = trace
        .requests()
        .iter()
        .enumerate()
        .rev()
        .map(|(number, request)| {
            let uses = request.blocks.iter().map(|block| next[block.index()]).collect();
            if fits(&request.blocks) {
                request.blocks.iter().for_each(|block| next[block.index()] = number as NextUse);
            }
            uses
        })
        .collect();
    uses.reverse();
    uses
}

/// Invariant: every cached block is in `order` under its rank; entries of other ranks are out of date.
struct Cache {
    /// One a block of the trace; none where it is not cached.
    ranks: Vec<Option<Rank>>,
    len: usize,
    order: BinaryHeap<(Rank, BlockId)>,
}

impl Cache {
    fn has(&self, block: BlockId) -> bool {
        self.ranks[block.index()].is_some()
    }

    fn insert(&mut self, block: BlockId, rank: Rank) {
        self.ranks[block.index()] = Some(rank);
        self.order.push((rank, block));
        self.len += 1;
    }

    fn take(&mut self, block: BlockId) {
        self.ranks[block.index()] = None;
        self.len -= 1;
    }

    fn evict(&mut self) {
        loop {
            let (rank, block) = self.order.pop().expect("a cache over its capacity has blocks");
            if self.ranks[block.index()] == Some(rank) {
                return self.take(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::collections::HashMap;

    fn trace(requests: &[&[u64]]) -> Trace {
        let mut trace = Trace::default();
        requests.iter().for_each(|hashes| trace.push(0, hashes));
        trace
    }

    /// The most hits over every choice of what to keep after every request. A set of blocks is a bit mask.
    fn most_hits(trace: &Trace, capacity: u32) -> u64 {
        let mut best: HashMap<u32, u64> = HashMap::from([(0, 0)]);
        for request in trace.requests() {
            if request.blocks.len() > capacity as usize {
                continue;
            }
            let needed = request.blocks.iter().fold(0u32, |set, block| set | 1 << block.0);
            let mut after: HashMap<u32, u64> = HashMap::new();
            for (cached, hits) in best {
                let found = request.blocks.iter().take_while(|block| cached >> block.0 & 1 == 1).count();
                let others = cached & !needed;
                let mut kept = others;
                loop {
                    let set = needed | kept;
                    if set.count_ones() <= capacity {
                        let hits = hits + found as u64;
                        after.entry(set).and_modify(|most| *most = hits.max(*most)).or_insert(hits);
                    }
                    if kept == 0 {
                        break;
                    }
                    kept = (kept - 1) & others;
                }
            }
            best = after;
        }
        best.into_values().max().unwrap_or(0)
    }

    #[test]
    fn the_block_used_farthest_ahead_goes_first() {
        // With room for two, the third request must give up 1 or 2; 1 is wanted before 2.
        let trace = trace(&[&[1], &[2], &[3], &[1], &[2]]);
        assert_eq!([1, 2, 3].map(|capacity| optimal_hits(&trace, capacity)), [0, 1, 2]);
    }

    #[test]
    fn of_a_prefix_used_next_by_one_request_the_end_goes_first() {
        let trace = trace(&[&[1, 2, 3], &[9], &[1, 2, 3]]);
        assert_eq!(optimal_hits(&trace, 3), 2);
    }

    #[test]
    fn a_request_larger_than_the_cache_leaves_it_alone() {
        let trace = trace(&[&[1, 2], &[1, 2, 3, 4], &[1, 2]]);
        assert_eq!(optimal_hits(&trace, 3), 2);
    }

    #[test]
    fn no_choice_of_victims_finds_more() {
        let mut rng = Rng::with_seed(7);
        for case in 0..300 {
            let mut random = Trace::default();
            for _ in 0..rng.u32(2..9) {
                let hashes: Vec<u64> = (0..rng.u32(1..4)).map(|_| rng.u64(0..2)).collect();
                random.push(0, &hashes);
            }
            for capacity in 1..7 {
                let (found, most) = (optimal_hits(&random, capacity), most_hits(&random, capacity));
                assert_eq!(found, most, "case {case}, capacity {capacity}: {random:?}");
            }
            assert_eq!(optimal_hits(&random, 32), random.repeated_blocks(), "case {case}");
        }
    }
}
