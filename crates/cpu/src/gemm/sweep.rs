use super::PANEL;
use crate::{Buf, Matrix, Pool};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
use std::ops::Range;

/// Bytes of activations that a thread works on at a time, and beside which a panel still fits its second-level cache.
const BLOCK_BYTES: usize = 384 << 10;
/// How far ahead of the weights in use the next ones are asked for, where a panel is read but once.
const AHEAD: usize = 2048;
/// A thread takes at most so many panels at a time, so that all finish together.
const MOST_PANELS: usize = 64;
/// And at least so many of its share: nobody asked for the first of them ahead.
const FEWEST_PANELS: usize = 8;

/// Rows of activations cut into tiles of nearly equal height, none higher than a kernel can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowTiles {
    rows: usize,
    count: usize,
}

impl RowTiles {
    pub(crate) fn new(rows: usize, highest: usize) -> Self {
        Self { rows, count: rows.div_ceil(highest) }
    }
    pub(crate) fn count(&self) -> usize {
        self.count
    }
    pub(crate) fn rows(&self, tile: usize) -> Range<usize> {
        self.rows * tile / self.count..self.rows * (tile + 1) / self.count
    }
    pub(crate) fn highest(&self) -> usize {
        self.rows.div_ceil(self.count.max(1))
    }
}

/// Neighbouring panels, as a kernel walks them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    /// Those to multiply with.
    pub(crate) bytes: &'a [u8],
    pub(crate) count: usize,
    /// Bytes from the weights in use to those to ask for: until so near the end of the panel that they would lie
    /// beyond it, and after that.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "plain loops ask for nothing ahead"))]
    pub(crate) ahead: [usize; 2],
    /// What a tile asks for of the next panel.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "plain loops ask for nothing ahead"))]
    pub(crate) share: Share,
}

/// Where several tiles go through a panel, each asks for its share of the next one on its way: memory is then read
/// all the time, not by one tile for all.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "plain loops ask for nothing ahead"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Where it begins, in bytes from the first weight.
    pub(crate) from: usize,
    pub(crate) tiles: usize,
}

impl Share {
    /// Bytes to go on in it for `bytes` gone on in the panel.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.tiles)
    }
}

/// One product: who multiplies which tile with which panels, and when.
///
/// A thread takes some panels, then blocks of row tiles that fit its cache beside a panel, and multiplies each panel
/// with each tile of the block. Which thread does what cannot be seen in the results.
#[derive(Debug)]
pub(crate) struct Sweep<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) tiles: RowTiles,
    /// Bytes of activations of a row.
    pub(crate) row_bytes: usize,
    /// Panels that a kernel takes at once.
    pub(crate) step: usize,
}

impl Sweep<'_> {
    /// Calls `kernel(tile, panels, result)` for all tiles and panels; the result is `[rows of the tile][panels][32]`.
    pub(crate) fn run(
        &self,
        pool: &Pool,
        out: &mut Buf,
        kernel: &(impl Fn(usize, Panels<'_>, &mut [f32]) + Sync),
    ) {
        let panels = self.matrix.rows().div_ceil(PANEL);
        let chunk = self.panels_at_a_time(panels, pool.threads());
        let target =
            Target { start: out.data_mut().as_mut_ptr(), cols: self.matrix.rows(), rows: out.rows() };
        pool.run(panels.div_ceil(chunk), &|part| {
            self.chunk(part * chunk..panels.min((part + 1) * chunk), &target, kernel);
        });
    }

    /// Some for each thread several times over, or fewer than a kernel could take at once where there are few.
    fn panels_at_a_time(&self, panels: usize, threads: usize) -> usize {
        match panels.div_ceil(threads) {
            fair if fair < self.step => fair,
            fair => {
                fair.div_ceil(4).max(fair.min(FEWEST_PANELS)).next_multiple_of(self.step).min(MOST_PANELS)
            }
        }
    }

    fn chunk(&self, panels: Range<usize>, target: &Target, kernel: &impl Fn(usize, Panels<'_>, &mut [f32])) {
        let mut result = [0.0; 16 * PANEL];
        let block = (BLOCK_BYTES / (self.row_bytes * self.tiles.highest()).max(1)).max(1);
        for from in (0..self.tiles.count()).step_by(block) {
            let to = self.tiles.count().min(from + block);
            let mut panel = panels.start;
            while panel < panels.end {
                let count = if panels.end - panel >= self.step { self.step } else { 1 };
                for tile in from..to {
                    let rows = self.tiles.rows(tile);
                    let result = &mut result[..rows.len() * count * PANEL];
                    target.fetch(rows.clone(), panel * PANEL, count * PANEL);
                    kernel(tile, self.panels(panel, count, (tile - from, to - from)), result);
                    target.write(rows, panel * PANEL, count * PANEL, result);
                }
                panel += count;
            }
        }
    }

    /// For one tile of several.
    fn panels(&self, first: usize, count: usize, (tile, tiles): (usize, usize)) -> Panels<'_> {
        let panel = self.matrix.panel_bytes();
        let bytes = &self.matrix.panels()[first * panel..][..count * panel];
        let ahead = if tiles == 1 { [AHEAD, AHEAD + (count - 1) * panel] } else { [AHEAD, 0] };
        let from = if tiles == 1 { 0 } else { count * panel + panel * tile / tiles };
        let share = Share { from, tiles };
        Panels { bytes, count, ahead, share }
    }
}

/// The output, of which each thread writes the columns of its own panels.
struct Target {
    start: *mut f32,
    rows: usize,
    cols: usize,
}

// SAFETY: an address; `write` says why no two threads write the same element.
unsafe impl Sync for Target {}

impl Target {
    /// Asks for what [`write`](Self::write) will write: rows lie far apart, and every line of them has to come from
    /// somewhere first.
    fn fetch(&self, rows: Range<usize>, column: usize, width: usize) {
        const LINE: usize = 64 / size_of::<f32>();
        for at in
            rows.flat_map(|row| (column..column + width).step_by(LINE).map(move |c| row * self.cols + c))
        {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint; it never faults.
            unsafe {
                _mm_prefetch::<_MM_HINT_ET0>(self.start.wrapping_add(at).cast());
            }
        }
    }

    fn write(&self, rows: Range<usize>, column: usize, width: usize, result: &[f32]) {
        let kept = width.min(self.cols - column);
        assert!(rows.end <= self.rows && result.len() == rows.len() * width);
        for (row, values) in rows.zip(result.chunks_exact(width)) {
            let (panels, rest) = values[..kept].as_chunks::<PANEL>();
            // SAFETY: row and columns lie within the output, which `Sweep::run` borrows mutably; panels are dealt
            // to one thread each, so no other writes these columns.
            unsafe {
                let to = self.start.add(row * self.cols + column);
                for (i, panel) in panels.iter().enumerate() {
                    to.add(i * PANEL).cast::<[f32; PANEL]>().write_unaligned(*panel);
                }
                std::ptr::copy_nonoverlapping(rest.as_ptr(), to.add(kept - rest.len()), rest.len());
            }
        }
    }
}
