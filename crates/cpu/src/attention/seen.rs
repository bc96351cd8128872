//! What the rows of a task see of a block.

use super::arithmetic::slots_in;
use super::kernel::Work;
use super::tile::{BLOCK, TILE};
use crate::simd::Lanes;
use std::ops::Range;

/// Queries that see the same slots of a block.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Seen {
    pub(super) queries: Range<usize>,
    /// Of the block, at least one.
    pub(super) slots: Range<usize>,
    /// The same, by tiles.
    pub(super) lanes: [Lanes; BLOCK],
}

impl Seen {
    /// Those of block `block` of a task, in order.
    pub(super) fn of_block(work: &Work<'_>, block: usize, groups: &mut Vec<Self>) {
        groups.clear();
        let first = block * BLOCK * TILE;
        let seen = |row| {
            let seen = work.seen(row);
            let [start, end] = [seen.start, seen.end].map(|at| at.saturating_sub(first).min(BLOCK * TILE));
            start..end
        };
        // What a row sees begins and ends no sooner than what the row before it does.
        let step = if seen(0) == seen(work.rows - 1) { work.rows } else { 1 };
        for row in (0..work.rows).step_by(step) {
            let (slots, queries) = (seen(row), row * work.heads..(row + step) * work.heads);
            match groups.last_mut() {
                _ if slots.is_empty() => {}
                Some(group) if group.slots == slots => group.queries.end = queries.end,
                _ => groups.push(Self { queries, lanes: lanes(&slots), slots }),
            }
        }
    }
}

fn lanes(slots: &Range<usize>) -> [Lanes; BLOCK] {
    std::array::from_fn(|tile| {
        let Range { start, end } = slots_in(slots, tile);
        ((1u32 << end) - (1 << start.min(end))) as Lanes
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;
    use crate::attention::tile::HeadPages;
    use octavo_backend::{PageLayout, TableView};
    use octavo_types::{KvDtype, Pages};

    fn work(arena: &Arena, rows: usize, heads: usize, start: usize, window: usize) -> Work<'_> {
        Work {
            q: std::ptr::null(),
            q_stride: 0,
            out: std::ptr::null_mut(),
            out_stride: 0,
            rows,
            heads,
            dim: 64,
            start,
            window,
            scale: 1.0,
            // SAFETY: nothing is read.
            pages: unsafe { HeadPages::new(arena, 0, 0, TableView { first: 0, pages: &[] }) },
        }
    }

    #[test]
    fn every_query_has_the_slots_that_its_row_sees() {
        let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: 64, dtype: KvDtype::F16 };
        let arena = Arena::new(layout, Pages(1)).unwrap();
        let mut groups = Vec::new();
        for (rows, heads, start, window) in
            [(1, 4, 200, usize::MAX), (1, 1, 63, 5), (16, 4, 56, usize::MAX), (9, 7, 120, 20), (64, 1, 0, 64)]
        {
            let work = work(&arena, rows, heads, start, window);
            let tiles = work.tiles();
            for block in tiles.start / BLOCK..tiles.end.div_ceil(BLOCK) {
                Seen::of_block(&work, block, &mut groups);
                for query in 0..rows * heads {
                    let group = groups.iter().find(|group| group.queries.contains(&query));
                    for slot in 0..BLOCK * TILE {
                        let sees = work.seen(query / heads).contains(&(block * BLOCK * TILE + slot));
                        let lane = |group: &Seen| group.lanes[slot / TILE] & (1 << (slot % TILE)) != 0;
                        let what = format!("block {block}, slot {slot}, query {query} of {rows} rows");
                        assert_eq!(group.is_some_and(lane), sees, "{what}");
                        assert_eq!(group.is_some_and(|group| group.slots.contains(&slot)), sees, "{what}");
                    }
                }
            }
        }
        // Rows that see the same are computed together.
        Seen::of_block(&work(&arena, 8, 4, 64, usize::MAX), 0, &mut groups);
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].queries.clone(), groups[0].slots.clone()), (0..32, 0..64));
    }
}
