//! How attention over a batch is cut into work for blocks: which rows, which tiles.
//!
//! *Work* is some rows of one sequence against all tiles they see. It is cut into *pieces*, ranges of tiles, and
//! pieces are dealt to *shares*, one after another; a block has one share and one key-value head. Where a work has
//! several pieces (*parts*), the block that finishes the last of them merges them.
//!
//! *Planning is apart from launching*, so that a captured launch can be replayed for other lengths. A [`Plan`] is
//! made on the host alone. Each of its launches has
//!
//! - a [`Shape`]: program, shared memory, grid. When decoding it depends on the heads, the number of rows and, by a
//!   few steps, on how long the contexts are; never on which tiles a block reads. Blocks without work leave at once.
//! - [`Item`]s, the pieces: a block finds its first by its number, and in each the number of the next. Copied to an
//!   address that stays the same, they are all that differs from one step to the next, beside the page numbers.
//!
//! What else a launch needs stays where it is: parts and counters lie in `Scratch` (`attention.rs`), whose addresses
//! change only when [`Plan::room`] is more than ever before, and counters are zero again when a launch ends. So a
//! graph may be replayed if the shapes are those it was captured with and the scratch has not moved since.

mod items;
mod key;
mod pieces;
#[cfg(test)]
mod tests;

use crate::device::Processors;
use crate::kernels::{AttentionOptions, ChunkOptions, Paging};
use crate::load::Load;
pub(crate) use items::Item;
use items::{items, linked};
pub(crate) use key::PlanKey;
pub use key::Tuning;
use octavo_backend::Span;
pub(crate) use pieces::Cuts;
use pieces::{Piece, Work, cut, starts, work_of};

/// Positions of a tile.
const TILE: u32 = 16;
/// Tiles of a part where bits may not depend on the batch.
const FIXED_PART: u32 = 32;

/// What a launch looks like whatever the lengths: part of what a captured graph is kept for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Shape {
    pub(crate) program: Program,
    /// Bytes of shared memory.
    pub(crate) shared: usize,
    /// Blocks for each key-value head.
    pub(crate) shares: usize,
    /// The most columns of an item.
    pub(crate) columns: usize,
}

/// Which kernel, and its options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Program {
    Columns(AttentionOptions),
    Chunk(ChunkOptions),
}

impl Program {
    pub(crate) fn warps(&self) -> usize {
        match self {
            Self::Columns(options) => options.warps,
            Self::Chunk(options) => options.warps,
        }
    }

    /// Columns, or lines, of a part that is merged.
    fn columns(&self) -> usize {
        match self {
            Self::Columns(options) => 8 * options.blocks,
            Self::Chunk(options) => options.lines(),
        }
    }
}

/// One launch: all items have the same options.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) shape: Shape,
    /// The first of every share, then the others.
    pub(crate) items: Vec<Item>,
    /// Parts that are merged, of all items, with groups of them; 0 where none is.
    pub(crate) parts: usize,
    /// For items of several parts: one for each group of them, one for all.
    pub(crate) counters: usize,
}

/// The host's half of attention: no address, nothing of the device, no page. It depends on how long the sequences are,
/// so that it can be made before their pages are known, and serves every layer group that has the same key.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) launches: Vec<Launch>,
}

impl Plan {
    pub(crate) fn new(processors: Processors, key: PlanKey, page_size: usize, spans: &[Span]) -> Self {
        let Processors { count: processors, shared } = processors;
        let [narrow, wide] = key.blocks();
        let paging = match page_size as u32 {
            TILE => Paging::Tiles,
            size if size.is_multiple_of(TILE) => Paging::Large,
            _ => Paging::Small,
        };
        let lines = |span: &Span| span.rows * key.group;
        let is_chunk = |span: &Span| key.has_chunks() && span.rows > 1 && lines(span) >= key.chunk_lines();
        let chunk = key.chunk(shared);
        let decoding = work_of(&key, spans, 8 * narrow / key.group, |span| span.rows == 1);
        let few = work_of(&key, spans, 8 * wide / key.group, |span| span.rows > 1 && !is_chunk(span));
        let chunks = work_of(&key, spans, chunk.lines() / key.group, is_chunk);
        let mut launches = Vec::new();
        if !decoding.is_empty() {
            let load = Load::new(decoding.iter().map(Work::tiles), key.kv_heads);
            let free = narrow == 1 && !key.deterministic;
            let measured = if free { load.tuning(&key, processors) } else { Tuning::default() };
            let options = key.options(narrow, paging, measured, shared);
            let shares = (processors * options.min_blocks / key.kv_heads).max(1);
            let cuts = match (key.deterministic, key.tuning.part_tiles) {
                (true, 0) => Cuts::At(FIXED_PART),
                (true, tiles) => Cuts::At(tiles),
                (false, 0) if key.tuning.shares > 0 => Cuts::Even(key.tuning.shares),
                (false, 0) => load.cuts(&key, shares, processors),
                (false, tiles) => Cuts::Parts(tiles),
            };
            launches.push(Launch::new(&key, Program::Columns(options), shares, &cut(&decoding, cuts)));
        }
        if !few.is_empty() {
            let options = key.options(wide, paging, Tuning::default(), shared);
            let part = if key.tuning.part_tiles == 0 { FIXED_PART } else { key.tuning.part_tiles };
            let pieces = cut(&few, if key.deterministic { Cuts::At(part) } else { Cuts::Parts(u32::MAX) });
            launches.push(Launch::new(&key, Program::Columns(options), pieces.len(), &pieces));
        }
        if !chunks.is_empty() {
            let part = key.chunk_part(&chunks, processors * chunk.min_blocks);
            let pieces = cut(&chunks, Cuts::Parts(part));
            launches.push(Launch::new(&key, Program::Chunk(chunk), pieces.len(), &pieces));
        }
        Self { launches }
    }

    pub(crate) fn shapes(&self) -> impl Iterator<Item = Shape> {
        self.launches.iter().map(|launch| launch.shape)
    }

    /// What the launches need of the scratch, one after another.
    pub(crate) fn room(&self, kv_heads: usize, dim: usize) -> Room {
        let of = |launch: &Launch| {
            let columns = launch.parts * kv_heads * launch.shape.program.columns();
            Room { sums: columns * dim * 4, weights: columns * 8, counters: launch.counters * kv_heads * 4 }
        };
        self.launches.iter().map(of).fold(Room::default(), Room::max)
    }
}

/// Bytes of scratch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Room {
    pub(crate) sums: usize,
    pub(crate) weights: usize,
    pub(crate) counters: usize,
}

impl Room {
    fn max(self, other: Self) -> Self {
        Self {
            sums: self.sums.max(other.sums),
            weights: self.weights.max(other.weights),
            counters: self.counters.max(other.counters),
        }
    }
}

impl Launch {
    fn new(key: &PlanKey, program: Program, shares: usize, pieces: &[Piece]) -> Self {
        let (items, parts, counters) = items(pieces);
        let items = linked(&items, &starts(pieces, shares), shares);
        let columns = key.group * pieces.iter().map(|piece| piece.work.rows).max().unwrap_or(0);
        let shape = Shape { program, shared: key.shared_bytes(&program, columns), shares, columns };
        Self { shape, items, parts, counters }
    }
}
