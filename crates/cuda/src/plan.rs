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

use crate::batch::Tables;
use crate::kernels::{AttentionOptions, ChunkOptions};
use crate::load::Load;
use crate::memory::Plain;
use octavo_backend::{AttentionSpec, PageLayout, Span};

/// Positions of a tile.
const TILE: u32 = 16;
/// Tiles of a part where bits may not depend on the batch.
const FIXED_PART: u32 = 32;
/// Parts that are merged at once, as in `cu/parts.cuh`; more in groups of so many.
const GROUP: i32 = 16;
/// Lines from which rows are a chunk: fewer are better off with the kernel for few columns.
const CHUNK_LINES: usize = 33;
/// The fewest tiles that are worth a part of a chunk.
const LEAST_CHUNK_PART: u32 = 32;
/// What part of a share may be moved to a neighbour so that a work stays whole.
const SLACK: u64 = 16;
/// Shared memory that a block may have; a multiprocessor has 1 KiB more.
const SHARED: usize = 227 << 10;
/// What a block takes beyond rings and results.
const RESERVED: usize = 1536;

/// What, beside the tables, a plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) window: u32,
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) element_bytes: usize,
    pub(crate) deterministic: bool,
    pub(crate) tuning: Tuning,
}

/// What is chosen by measurement; 0 is for what this file and `Load` choose.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tuning {
    /// Tiles of a part; the largest number leaves sequences whole.
    pub part_tiles: u32,
    /// Even shares for each key-value head.
    pub shares: usize,
    pub warps: usize,
    pub stages: usize,
    pub min_blocks: usize,
    /// Lines (rows times heads of a group) from which a span of rows is a chunk.
    pub chunk_lines: usize,
    pub chunk: Option<ChunkOptions>,
}

impl PlanKey {
    pub(crate) fn new(
        spec: &AttentionSpec,
        layout: &PageLayout,
        deterministic: bool,
        tuning: Tuning,
    ) -> Self {
        Self {
            window: spec.window.unwrap_or(0),
            kv_heads: spec.heads.kv,
            group: spec.heads.group(),
            head_dim: spec.heads.dim,
            element_bytes: layout.element_bytes(),
            deterministic,
            tuning,
        }
    }

    fn first_seen(&self, position: u32) -> u32 {
        if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) }
    }

    /// Eights of columns for rows of decoding, and for chunks.
    fn blocks(&self) -> [usize; 2] {
        let narrow = self.group.div_ceil(8);
        [narrow, narrow.max(if self.head_dim > 128 { 2 } else { 4 })]
    }

    fn options(&self, blocks: usize, small_pages: bool, measured: Tuning) -> AttentionOptions {
        let asked = self.tuning;
        let stage = self.stage_bytes();
        let or = |chosen: usize, usual: usize| if chosen == 0 { usual } else { chosen };
        let four = 8 * stage + self.results_bytes(4, 8 * blocks) + RESERVED <= SHARED;
        let warps = or(or(asked.warps, measured.warps), if four { 4 } else { 2 });
        let room = SHARED - self.results_bytes(warps, 8 * blocks) - RESERVED;
        let most = room / stage / warps;
        let usual = if blocks > 2 { most.min(3) } else { (most / 2).clamp(2, 6).min(most) };
        let stages = or(or(asked.stages, measured.stages), usual).clamp(2, most.max(2));
        let fits = SHARED / (warps * stages * stage + self.results_bytes(warps, self.group) + RESERVED);
        let min_blocks =
            or(or(asked.min_blocks, measured.min_blocks), if blocks > 1 { 1 } else { fits.clamp(1, 2) });
        AttentionOptions { blocks, warps, stages, min_blocks, small_pages }
    }

    /// Not where bits may not depend on the batch, and not for f32 in heads over 128: there a GPU's results were off by
    /// a few per cent, which the emulation does not show.
    fn has_chunks(&self) -> bool {
        !self.deterministic && (self.head_dim <= 128 || self.element_bytes < 4)
    }

    fn chunk_lines(&self) -> usize {
        if self.tuning.chunk_lines > 0 { self.tuning.chunk_lines } else { CHUNK_LINES }
    }

    /// By measurement: where the registers suffice, more warps.
    fn chunk(&self) -> ChunkOptions {
        let (large, quantised) = (self.head_dim > 128, self.element_bytes == 1);
        let mut usual = ChunkOptions {
            strips: 1,
            warps: if large { 8 } else { 12 },
            span: if self.head_dim * self.element_bytes.max(2) > 256 { 32 } else { 64 },
            stages: if quantised { 2 } else { 3 },
            min_blocks: 1,
            staggered: !quantised,
        };
        while self.shared_bytes(&Program::Chunk(usual), 0) + RESERVED > SHARED {
            usual = match usual.stages {
                2 => ChunkOptions { span: usual.span / 2, ..usual },
                _ => ChunkOptions { stages: 2, staggered: false, ..usual },
            };
        }
        self.tuning.chunk.unwrap_or(usual)
    }

    /// Tiles of a part of a chunk: all, unless there are fewer blocks than the device has room for.
    fn chunk_part(&self, chunks: &[Work], room: usize) -> u32 {
        if self.tuning.part_tiles > 0 {
            return self.tuning.part_tiles;
        }
        if chunks.len() * self.kv_heads >= room {
            return u32::MAX;
        }
        let tiles: usize = chunks.iter().map(|w| w.tiles() as usize).sum();
        ((tiles * self.kv_heads).div_ceil(room) as u32).max(LEAST_CHUNK_PART)
    }

    /// Keys and values of so many positions, with parameters, in shared memory, as in `cu/tile.cuh`.
    fn positions_bytes(&self, positions: usize) -> usize {
        let units = self.head_dim * self.element_bytes / 16;
        let units = if units.is_multiple_of(8) { units } else { units | 1 };
        2 * positions * (16 * units + if self.element_bytes == 1 { 4 } else { 0 })
    }

    fn results_bytes(&self, warps: usize, columns: usize) -> usize {
        warps * columns * (self.head_dim + 2) * 4
    }

    fn stage_bytes(&self) -> usize {
        self.positions_bytes(TILE as usize)
    }

    fn shared_bytes(&self, program: &Program, columns: usize) -> usize {
        match program {
            // The rings, `RING_BYTES` of `cu/attention_merge.cuh`, and the warps' results.
            Program::Columns(o) => {
                o.warps * o.stages * self.stage_bytes() + 16 + self.results_bytes(o.warps, columns)
            }
            // The ring, where the rows of two spans lie, the queries.
            Program::Chunk(o) => {
                o.stages * self.positions_bytes(o.span) + 2 * o.span * 8 + o.lines() * self.head_dim * 2
            }
        }
    }
}

impl ChunkOptions {
    /// Lines of a block: rows times heads of a group.
    fn lines(&self) -> usize {
        16 * self.strips * self.warps
    }
}

/// `Item` of `cu/attention.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Item {
    row: i32,
    rows: i32,
    position: i32,
    table: i32,
    tile0: i32,
    tile1: i32,
    first_part: i32,
    part: i32,
    parts: i32,
    counter: i32,
    next: i32,
    unused: i32,
}

// SAFETY: twelve numbers of four bytes.
unsafe impl Plain for Item {}

impl Item {
    /// Nothing to do.
    const NONE: Self = Self {
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
}

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
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) shape: Shape,
    /// The first of every share, then the others.
    pub(crate) items: Vec<Item>,
    /// Parts that are merged, of all items, with groups of them; 0 where none is.
    pub(crate) parts: usize,
    /// For items of several parts: one for each group of them, one for all.
    pub(crate) counters: usize,
}

/// The host's half of attention: no address, nothing of the device.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) launches: Vec<Launch>,
}

/// Rows of one sequence that one block takes, against all tiles they see.
#[derive(Clone, Copy, Debug)]
struct Work {
    row: usize,
    rows: usize,
    position: u32,
    table: i32,
    tiles: [u32; 2],
}

impl Work {
    fn tiles(&self) -> u32 {
        self.tiles[1] - self.tiles[0]
    }
}

impl Plan {
    pub(crate) fn new(processors: usize, key: PlanKey, tables: &Tables) -> Self {
        let [narrow, wide] = key.blocks();
        let small_pages = !tables.page_size.is_multiple_of(TILE as usize);
        let lines = |span: &Span| span.rows * key.group;
        let is_chunk = |span: &Span| key.has_chunks() && span.rows > 1 && lines(span) >= key.chunk_lines();
        let chunk = key.chunk();
        let decoding = work_of(&key, tables, 8 * narrow / key.group, |span| span.rows == 1);
        let few = work_of(&key, tables, 8 * wide / key.group, |span| span.rows > 1 && !is_chunk(span));
        let chunks = work_of(&key, tables, chunk.lines() / key.group, is_chunk);
        let mut launches = Vec::new();
        if !decoding.is_empty() {
            let load = Load::new(decoding.iter().map(Work::tiles), key.kv_heads);
            let free = narrow == 1 && !key.deterministic;
            let measured = if free { load.tuning(&key, processors) } else { Tuning::default() };
            let options = key.options(narrow, small_pages, measured);
            let shares = (processors * options.min_blocks / key.kv_heads).max(1);
            let cuts = match (key.deterministic, key.tuning.part_tiles) {
                (true, 0) => Cuts::At(FIXED_PART),
                (true, tiles) => Cuts::At(tiles),
                (false, 0) if key.tuning.shares > 0 => Cuts::Even(key.tuning.shares),
                (false, 0) => load.cuts(shares, processors),
                (false, tiles) => Cuts::Parts(tiles),
            };
            launches.push(Launch::new(&key, Program::Columns(options), shares, &cut(&decoding, cuts)));
        }
        if !few.is_empty() {
            let options = key.options(wide, small_pages, Tuning::default());
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

/// The rows of the spans that are wanted, at most `most` together.
fn work_of(key: &PlanKey, tables: &Tables, most: usize, wanted: impl Fn(&Span) -> bool) -> Vec<Work> {
    let mut work = Vec::new();
    for (span, table) in tables.spans.iter().zip(tables.origins()) {
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
struct Piece {
    work: Work,
    tiles: [u32; 2],
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

fn cut(work: &[Work], cuts: Cuts) -> Vec<Piece> {
    match cuts {
        Cuts::Even(shares) => even(work, shares),
        Cuts::At(tiles) => each(work, |range| ranges(range, tiles, true)),
        Cuts::Parts(tiles) => each(work, |range| ranges(range, tiles, false)),
    }
}

fn each(work: &[Work], ranges: impl Fn([u32; 2]) -> Vec<[u32; 2]>) -> Vec<Piece> {
    let pieces =
        |w: &Work| ranges(w.tiles).into_iter().map(|tiles| Piece { work: *w, tiles }).collect::<Vec<_>>();
    work.iter().flat_map(pieces).collect()
}

/// Cut where a share's end falls, unless a work's end is so near that merging would cost more than waiting.
fn even(work: &[Work], shares: usize) -> Vec<Piece> {
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
fn starts(pieces: &[Piece], shares: usize) -> Vec<usize> {
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

/// The first item of every share where its block looks for it, each with the number of the next.
fn linked(items: &[Item], starts: &[usize], shares: usize) -> Vec<Item> {
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
fn items(pieces: &[Piece]) -> (Vec<Item>, usize, usize) {
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

/// Ranges of about `part` tiles: of equal length, or cut at its multiples where bits may not depend on the range.
fn ranges([from, to]: [u32; 2], part: u32, fixed: bool) -> Vec<[u32; 2]> {
    let mut ranges = Vec::new();
    let mut at = from;
    let step = (to - from).div_ceil((to - from).div_ceil(part));
    while at < to {
        let end = if fixed { (at / part + 1) * part } else { at + step };
        ranges.push([at, end.min(to)]);
        at = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_backend::TableView;
    use octavo_types::PageId;

    #[test]
    fn ranges_cover_the_tiles_once_and_in_order() {
        for (from, to, part, fixed) in
            [(0, 1, 32, true), (5, 100, 32, true), (0, 256, 16, false), (3, 50, 7, false)]
        {
            let ranges = ranges([from, to], part, fixed);
            assert_eq!((ranges[0][0], ranges[ranges.len() - 1][1]), (from, to));
            assert!(ranges.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{ranges:?}");
            assert!(ranges.iter().all(|r| r[0] < r[1] && r[1] - r[0] <= part), "{ranges:?}");
            assert!(!fixed || ranges.iter().skip(1).all(|r| r[0] % part == 0), "{ranges:?}");
        }
    }

    fn work(tiles: &[u32]) -> Vec<Work> {
        let of =
            |(row, &n): (usize, &u32)| Work { row, rows: 1, position: 16 * n - 1, table: 0, tiles: [0, n] };
        tiles.iter().enumerate().map(of).collect()
    }

    /// Tiles of each share.
    fn dealt(pieces: &[Piece], shares: usize) -> Vec<u32> {
        let starts = starts(pieces, shares);
        let tiles = |p: &Piece| p.tiles[1] - p.tiles[0];
        starts.windows(2).map(|s| pieces[s[0]..s[1]].iter().map(tiles).sum()).collect()
    }

    #[test]
    fn even_shares_cover_every_tile_once_and_differ_by_little() {
        for (tiles, shares) in [
            (vec![256; 64], 66),
            (vec![64; 256], 33),
            (vec![2048; 8], 33),
            (vec![12_500], 132),
            (vec![500, 100, 30, 7, 1, 1], 5),
        ] {
            let work = work(&tiles);
            let pieces = even(&work, shares);
            for (w, own) in work.iter().zip(pieces.chunk_by(|a, b| a.work.row == b.work.row)) {
                assert_eq!((own[0].tiles[0], own[own.len() - 1].tiles[1]), (0, w.tiles[1]));
                assert!(own.windows(2).all(|pair| pair[0].tiles[1] == pair[1].tiles[0]), "{own:?}");
            }
            let (dealt, mean) = (dealt(&pieces, shares), tiles.iter().sum::<u32>() / shares as u32);
            let most = dealt.iter().max().unwrap();
            assert!(*most <= mean + 2 * (mean / SLACK as u32).max(1) + 1, "{dealt:?} of {tiles:?}");
        }
    }

    #[test]
    fn whole_sequences_are_dealt_in_order() {
        let pieces = cut(&work(&[9, 4, 3, 2, 1, 1]), Cuts::Parts(u32::MAX));
        assert_eq!(starts(&pieces, 2), [0, 1, 6]);
        assert_eq!(dealt(&pieces, 2), [9, 11]);
    }

    #[test]
    fn a_block_finds_all_items_of_its_share() {
        let pieces = cut(&work(&[9, 4, 3, 2, 1, 1]), Cuts::Parts(u32::MAX));
        let linked = linked(&items(&pieces).0, &starts(&pieces, 2), 2);
        let mut rows = Vec::new();
        for share in 0..2 {
            let (mut at, mut own) = (share, Vec::new());
            loop {
                own.push(linked[at].row);
                at = linked[at].next as usize;
                if at == 0 {
                    break;
                }
            }
            rows.push(own);
        }
        assert_eq!(rows, [vec![0], vec![1, 2, 3, 4, 5]]);
    }

    /// Decoding, a few rows, a chunk; short and long, alone and many.
    #[test]
    fn no_block_asks_for_more_shared_memory_than_there_is() {
        let pages: Vec<PageId> = (0..3000).map(PageId).collect();
        for head_dim in (16..=256).step_by(16) {
            for group in 1..=crate::MAX_GROUP {
                for (element_bytes, kv_heads, deterministic, page_size) in
                    [1, 2, 4].into_iter().flat_map(|bytes| {
                        [
                            (bytes, 1, false, 16),
                            (bytes, 8, false, 16),
                            (bytes, 2, true, 16),
                            (bytes, 2, false, 4),
                        ]
                    })
                {
                    let tuning = Tuning::default();
                    let key = PlanKey {
                        window: 0,
                        kv_heads,
                        group,
                        head_dim,
                        element_bytes,
                        deterministic,
                        tuning,
                    };
                    for (batch, rows, start) in
                        [(1, 1, 3000), (200, 1, 700), (80, 1, 9000), (3, 2, 50), (2, 300, 0)]
                    {
                        let span = |i| Span { first_row: i * rows, rows, start };
                        let spans: Vec<Span> = (0..batch).map(span).collect();
                        let tables = vec![TableView { first: 0, pages: &pages }; batch];
                        let plan = Plan::new(132, key, &Tables::new(page_size, &spans, &tables));
                        for shape in plan.shapes() {
                            assert!(shape.shared + RESERVED <= SHARED, "{shape:?} of {key:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn chunks_in_f32_of_wide_heads_are_left_to_the_kernel_for_few_columns() {
        let pages: Vec<PageId> = (0..20).map(PageId).collect();
        let is_chunk = |head_dim, element_bytes| {
            let key = PlanKey {
                window: 0,
                kv_heads: 1,
                group: 2,
                head_dim,
                element_bytes,
                deterministic: false,
                tuning: Tuning::default(),
            };
            let tables = Tables::new(
                16,
                &[Span { first_row: 0, rows: 300, start: 0 }],
                &[TableView { first: 0, pages: &pages }],
            );
            let plan = Plan::new(132, key, &tables);
            plan.shapes().all(|shape| matches!(shape.program, Program::Chunk(_)))
        };
        assert!(is_chunk(128, 4) && is_chunk(256, 2) && is_chunk(256, 1));
        assert!(!is_chunk(256, 4) && !is_chunk(144, 4));
    }

    #[test]
    fn a_launch_looks_the_same_whatever_the_lengths() {
        let key = PlanKey {
            window: 0,
            kv_heads: 8,
            group: 3,
            head_dim: 128,
            element_bytes: 2,
            deterministic: false,
            tuning: Tuning::default(),
        };
        let plan = |context: u32| {
            let spans: Vec<_> =
                (0..24).map(|i| Span { first_row: i, rows: 1, start: context + i as u32 }).collect();
            let pages: Vec<PageId> = (0..context / 16 + 4).map(PageId).collect();
            let tables = vec![TableView { first: 0, pages: &pages }; 24];
            Plan::new(132, key, &Tables::new(16, &spans, &tables))
        };
        let shapes = |context| plan(context).shapes().collect::<Vec<_>>();
        assert_eq!(shapes(300), shapes(1500));
        assert_ne!(plan(300).launches[0].items, plan(1500).launches[0].items);
    }
}
