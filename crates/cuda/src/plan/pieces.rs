//! Rows and the tiles they see, cut into pieces, and pieces dealt to shares.

use super::{PlanKey, TILE};
use octavo_backend::Span;

/// What part of a share may be moved to a neighbour so that a work stays whole.
pub(super) const SLACK: u64 = 16;

/// Rows of one sequence that one block takes, against all tiles they see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) position: u32,
    /// The number of its sequence.
    pub(super) table: i32,
    pub(super) tiles: [u32; 2],
}

impl Work {
    pub(super) fn tiles(&self) -> u32 {
        self.tiles[1] - self.tiles[0]
    }
}

/// The rows of the spans that are wanted, at most `most` together.
pub(super) fn work_of(
    key: &PlanKey,
    spans: &[Span],
    most: usize,
    wanted: impl Fn(&Span) -> bool,
) -> Vec<Work> {
    let mut work = Vec::new();
    for (span, table) in spans.iter().zip(0..) {
        if !wanted(span) {
            continue;
        }
        for first in (0..span.rows).step_by(most) {
            let rows = most.min(span.rows - first);
            let position = span.start + first as u32;
            let tiles = [key.first_seen(position) / TILE, (position + rows as u32).div_ceil(TILE)];
            work.push(Work { row: span.first_row + first, rows, position, table, tiles });
        }
    }
    // The longest first: what is left at the end is short.
    work.sort_by_key(|w| std::cmp::Reverse(w.tiles()));
    work
}

/// Tiles of one work; all of them, or a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) work: Work,
    pub(super) tiles: [u32; 2],
}

/// How works are cut into pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cuts {
    /// Where a tile's number is a multiple: bits may not depend on the batch.
    At(u32),
    /// Each work by itself, into equal parts of at most so many tiles.
    Parts(u32),
    /// All works, laid end to end, into so many lengths.
    Even(usize),
}

pub(super) fn cut(work: &[Work], cuts: Cuts) -> Vec<Piece> {
    match cuts {
        Cuts::Even(shares) => even(work, shares),
        Cuts::At(tiles) => each(work, |range| ranges(range, tiles, true)),
        Cuts::Parts(tiles) => each(work, |range| ranges(range, tiles, false)),
    }
}

fn each<R: Iterator<Item = [u32; 2]>>(work: &[Work], ranges: impl Fn([u32; 2]) -> R) -> Vec<Piece> {
    work.iter().flat_map(|w| ranges(w.tiles).map(|tiles| Piece { work: *w, tiles })).collect()
}

/// Cut where a share's end falls, unless a work's end is so near that merging would cost more than waiting.
pub(super) fn even(work: &[Work], shares: usize) -> Vec<Piece> {
    let total: u64 = work.iter().map(|w| u64::from(w.tiles())).sum();
    let end = |share: u64| share * total / shares as u64;
    let slack = (total / shares as u64 / SLACK).max(1) as u32;
    let (mut pieces, mut before) = (Vec::new(), 0u64);
    for w in work {
        let mut at = 0;
        while at < w.tiles() {
            let share = (before + u64::from(at)) * shares as u64 / total;
            let mut next = share + 1;
            let mut to = end(next).saturating_sub(before) as u32;
            while to <= at + slack {
                next += 1;
                to = end(next).saturating_sub(before) as u32;
            }
            if to + slack >= w.tiles() {
                to = w.tiles();
            }
            pieces.push(Piece { work: *w, tiles: [w.tiles[0] + at, w.tiles[0] + to] });
            at = to;
        }
        before += u64::from(w.tiles());
    }
    pieces
}

/// Where each share's pieces start, and the last one's end: pieces in order, each in the share that its middle is in.
pub(super) fn starts(pieces: &[Piece], shares: usize) -> Vec<usize> {
    if pieces.len() <= shares {
        return (0..=pieces.len()).collect();
    }
    let tiles = |p: &Piece| u64::from(p.tiles[1] - p.tiles[0]);
    let total: u64 = pieces.iter().map(tiles).sum();
    let (mut starts, mut before) = (vec![0; shares + 1], 0);
    for piece in pieces {
        let share = (2 * before + tiles(piece)) * shares as u64 / (2 * total);
        starts[(share as usize).min(shares - 1) + 1] += 1;
        before += tiles(piece);
    }
    for share in 0..shares {
        starts[share + 1] += starts[share];
    }
    starts
}

/// Ranges of about `part` tiles: of equal length, or cut at its multiples where bits may not depend on the range.
pub(super) fn ranges([from, to]: [u32; 2], part: u32, fixed: bool) -> impl Iterator<Item = [u32; 2]> {
    let step = (to - from).div_ceil((to - from).div_ceil(part));
    let from_at = move |at: u32| {
        let end = if fixed { (at / part + 1) * part } else { at + step };
        (at < to).then_some([at, end.min(to)])
    };
    std::iter::successors(from_at(from), move |range| from_at(range[1]))
}
