//! Pieces as a kernel reads them.

use super::pieces::Piece;
use crate::memory::Plain;

/// Parts that are merged at once, as in `cu/parts.cuh`; more in groups of so many.
const GROUP: i32 = 16;

/// `Item` of `cu/work.cuh`, but for its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Item {
    pub(super) row: i32,
    pub(super) rows: i32,
    pub(super) position: i32,
    /// The number of its sequence; on the device where that one's page 0 would be among all pages.
    pub(super) table: i32,
    pub(super) tile0: i32,
    pub(super) tile1: i32,
    pub(super) first_part: i32,
    pub(super) part: i32,
    pub(super) parts: i32,
    pub(super) counter: i32,
    pub(super) next: i32,
    unused: i32,
}

// SAFETY: twelve numbers of four bytes.
unsafe impl Plain for Item {}

impl Item {
    /// Nothing to do.
    pub(super) const NONE: Self = Self {
        row: 0,
        rows: 0,
        position: 0,
        table: 0,
        tile0: 0,
        tile1: 0,
        first_part: 0,
        part: 0,
        parts: 0,
        counter: 0,
        next: 0,
        unused: 0,
    };

    /// As the device reads it, where the sequences' pages begin so.
    pub(crate) fn over(self, origins: &[i32]) -> Self {
        Self { table: origins[self.table as usize], ..self }
    }
}

/// The first item of every share where its block looks for it, each with the number of the next.
pub(super) fn linked(items: &[Item], starts: &[usize], shares: usize) -> Vec<Item> {
    let mut linked = vec![Item::NONE; shares];
    for (share, range) in starts.windows(2).enumerate() {
        let mut at = share;
        for (i, item) in items[range[0]..range[1]].iter().enumerate() {
            if i > 0 {
                linked[at].next = linked.len() as i32;
                at = linked.len();
                linked.push(*item);
            } else {
                linked[at] = *item;
            }
        }
    }
    linked
}

/// Items, and how many parts and counters there have to be.
pub(super) fn items(pieces: &[Piece]) -> (Vec<Item>, usize, usize) {
    let (mut items, mut first_part, mut counter) = (Vec::new(), 0, 0);
    for same in pieces.chunk_by(|a, b| a.work.row == b.work.row) {
        let parts = same.len() as i32;
        for (part, piece) in (0..).zip(same) {
            let w = piece.work;
            items.push(Item {
                row: w.row as i32,
                rows: w.rows as i32,
                position: w.position as i32,
                table: w.table,
                tile0: piece.tiles[0] as i32,
                tile1: piece.tiles[1] as i32,
                first_part,
                part,
                parts,
                counter,
                ..Item::NONE
            });
        }
        if parts > 1 {
            let groups = if parts > GROUP { (parts + GROUP - 1) / GROUP } else { 0 };
            first_part += parts + groups;
            counter += groups + 1;
        }
    }
    (items, first_part as usize, counter as usize)
}
