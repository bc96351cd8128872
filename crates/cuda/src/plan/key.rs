//! The heads and their storage, and what follows from them for kernels: options, and shared memory.

use super::pieces::Work;
use super::{Program, TILE};
use crate::kernels::{AttentionOptions, ChunkOptions, Paging};
use octavo_backend::{AttentionSpec, PageLayout};

/// Lines from which rows are a chunk: fewer are better off with the kernel for few columns.
const CHUNK_LINES: usize = 33;
/// The fewest tiles that are worth a part of a chunk.
const LEAST_CHUNK_PART: u32 = 32;
/// `GROUP_EIGHT` of `cu/group.cuh`.
const GROUP_UNIT: usize = 1024;
/// What a block takes beyond rings and results.
pub(super) const RESERVED: usize = 1536;
/// From the rings to the results.
const BETWEEN: usize = 16;

/// What, beside the tables, a plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) window: u32,
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) element_bytes: usize,
    pub(crate) deterministic: bool,
    /// The device multiplies by groups of warps.
    pub(crate) groups: bool,
    pub(crate) tuning: Tuning,
}

/// What is chosen by measurement; 0 is for what [`PlanKey`] and `Load` choose.
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
    /// Parts of a product of few rows.
    pub product_parts: usize,
}

impl PlanKey {
    pub(crate) fn new(
        spec: &AttentionSpec,
        layout: &PageLayout,
        deterministic: bool,
        groups: bool,
        tuning: Tuning,
    ) -> Self {
        Self {
            window: spec.window.unwrap_or(0),
            kv_heads: spec.heads.kv,
            group: spec.heads.group(),
            head_dim: spec.heads.dim,
            element_bytes: layout.element_bytes(),
            deterministic,
            groups,
            tuning,
        }
    }

    pub(super) fn first_seen(&self, position: u32) -> u32 {
        if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) }
    }

    /// Eights of columns for rows of decoding, and for chunks.
    pub(super) fn blocks(&self) -> [usize; 2] {
        let narrow = self.group.div_ceil(8);
        [narrow, narrow.max(if self.head_dim > 128 { 2 } else { 4 })]
    }

    /// For blocks that may have so many bytes of shared memory.
    pub(super) fn options(
        &self,
        blocks: usize,
        paging: Paging,
        measured: Tuning,
        shared: usize,
    ) -> AttentionOptions {
        let stage = self.stage_bytes();
        let rest = |warps, blocks| BETWEEN + self.results_bytes(warps, 8 * blocks) + RESERVED;
        let fits =
            |warps: usize, stages: usize, blocks| warps * stages * stage + rest(warps, blocks) <= shared;
        // A smaller device than the one it was measured on.
        let measured =
            if fits(measured.warps, measured.stages, blocks) { measured } else { Tuning::default() };
        let asked = self.tuning;
        let or = |chosen: usize, usual: usize| if chosen == 0 { usual } else { chosen };
        // The order of sums depends on the warps.
        let widest = if self.deterministic { self.blocks()[1] } else { blocks };
        let usual = [4, 2].into_iter().find(|&warps| fits(warps, 2, widest)).unwrap_or(1);
        let warps = or(or(asked.warps, measured.warps), usual);
        let most = shared.saturating_sub(rest(warps, blocks)) / stage / warps;
        let usual = if blocks > 2 { most.min(3) } else { (most / 2).clamp(2, 6).min(most) };
        let stages = or(or(asked.stages, measured.stages), usual).clamp(2, most.max(2));
        let at_once = shared / (warps * stages * stage + self.results_bytes(warps, self.group) + RESERVED);
        let usual = if blocks > 1 { 1 } else { at_once.clamp(1, 2) };
        let min_blocks = or(or(asked.min_blocks, measured.min_blocks), usual);
        let (group, kv_heads) = (self.group, self.kv_heads);
        AttentionOptions { blocks, warps, stages, min_blocks, paging, group, kv_heads }
    }

    /// Not where bits may not depend on the batch, and not for f32 in heads over 128: there the ring has but two stages,
    /// which no GPU has been seen to get right.
    pub(super) fn has_chunks(&self) -> bool {
        !self.deterministic && (self.head_dim <= 128 || self.element_bytes < 4)
    }

    pub(super) fn chunk_lines(&self) -> usize {
        if self.tuning.chunk_lines > 0 { self.tuning.chunk_lines } else { CHUNK_LINES }
    }

    /// By measurement: where the registers suffice, more warps.
    pub(super) fn chunk(&self, shared: usize) -> ChunkOptions {
        let (large, quantised) = (self.head_dim > 128, self.element_bytes == 1);
        if self.groups && self.element_bytes == 2 && matches!(self.head_dim, 64 | 128) {
            let usual =
                ChunkOptions { warps: 8, span: 128, staggered: true, grouped: true, ..ChunkOptions::PLAIN };
            return self.tuning.chunk.unwrap_or(usual);
        }
        let mut usual = ChunkOptions {
            warps: if large { 8 } else { 12 },
            span: if self.head_dim * self.element_bytes.max(2) > 256 { 32 } else { 64 },
            stages: if quantised { 2 } else { 3 },
            staggered: !quantised,
            ..ChunkOptions::PLAIN
        };
        while self.shared_bytes(&Program::Chunk(usual), 0) + RESERVED > shared {
            usual = match usual.stages {
                2 => ChunkOptions { span: usual.span / 2, ..usual },
                _ => ChunkOptions { stages: 2, staggered: false, ..usual },
            };
        }
        self.tuning.chunk.unwrap_or(usual)
    }

    /// Tiles of a part of a chunk: all, unless there are fewer blocks than the device has room for.
    pub(super) fn chunk_part(&self, chunks: &[Work], room: usize) -> u32 {
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
        // `COLUMN_STRIDE` of `cu/attention_merge.cuh`.
        warps * columns * (self.head_dim + 4) * 4
    }

    fn stage_bytes(&self) -> usize {
        self.positions_bytes(TILE as usize)
    }

    pub(super) fn shared_bytes(&self, program: &Program, columns: usize) -> usize {
        match program {
            // The rings, `RING_BYTES` of `cu/attention_merge.cuh`, and the warps' results.
            Program::Columns(o) => {
                o.warps * o.stages * self.stage_bytes() + BETWEEN + self.results_bytes(o.warps, columns)
            }
            // The ring; where the rows of two spans lie; the queries, or what it takes to begin at a unit of the groups'.
            Program::Chunk(o) => {
                let rest = if o.grouped { GROUP_UNIT } else { o.lines() * self.head_dim * 2 };
                o.stages * self.positions_bytes(o.span) + 2 * o.span * 8 + rest
            }
        }
    }
}

impl ChunkOptions {
    const PLAIN: Self =
        Self { strips: 1, warps: 8, span: 64, stages: 3, min_blocks: 1, staggered: false, grouped: false };

    /// Lines of a block: rows times heads of a group.
    pub(super) fn lines(&self) -> usize {
        16 * self.strips * self.warps
    }
}
