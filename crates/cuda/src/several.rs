//! Products of several rows with many weights. Every unit reads all rows, which for units of few outputs is as much work
//! for the second-level cache as the weights are: here a warp has up to 80 outputs, and rows come into registers.

use crate::device::{Grid, Processors};
use crate::kernels::{Kernel, SeveralOptions, StreamOptions};
use crate::stream::{Cut, MOST_PARTS, RESERVED, StreamArgs};

pub(crate) const SEVERAL: Kernel = Kernel::new::<StreamArgs>("several").overlapping();

/// The most rows: a warp's sums are 16 numbers for each eight of rows and each sixteen of outputs, in registers.
const MOST_ROWS: usize = 32;
/// The fewest weights, in elements: with fewer, small blocks that leave room for the kernels around them are faster.
const LEAST_WEIGHTS: usize = 7 << 20;
/// Chunks of rows that a lane loads at once, and how many it may hold if they are all there are.
const GROUP: usize = 2;
const MOST_AT_ONCE: usize = 6;
/// Warps of a block of a small product, and the most chunks of each: where every block has a processor to itself, and
/// where some have to share one.
const ALONE_OF_SMALL: (usize, usize) = (8, 4);
const SHARING_OF_SMALL: (usize, usize) = (6, 6);
/// The most chunks of a warp that are copied ahead.
const DEEPEST: usize = 16;
/// Shared memory of a block that has a multiprocessor to itself: less than there is, so that blocks of the kernels that come
/// next find room beside it.
const ALONE: usize = 140 << 10;

// In eighths of what a chunk of a unit of 64 outputs takes a warp, by measurement of whole steps.
/// Sixteens of outputs of a unit, and the time of its chunk: 48 outputs take no less than 64.
const CHUNK_TIMES: [(usize, usize); 4] = [(2, 5), (3, 8), (4, 8), (5, 10)];
/// Starting and ending a unit.
const UNIT_TIME: usize = 4;
/// What a part takes others to add.
const PART_TIME: usize = 4;

/// How a product of many weights is cut, if it is one.
pub(crate) fn large(processors: Processors, [rows, outputs, cols]: [usize; 3]) -> Option<Cut> {
    if rows > MOST_ROWS || outputs * cols < LEAST_WEIGHTS {
        return None;
    }
    // What has a unit for every processor stays whole, and is faster in two smaller blocks on each; of parts, units of 80
    // outputs are slower than they seem.
    let is_whole = outputs.div_ceil(64) > processors.count;
    let (min_blocks, warps, most_parts) = if is_whole { (2, 4, 1) } else { (1, 8, MOST_PARTS) };
    let sixteens = CHUNK_TIMES.into_iter().filter(|(sixteens, _)| *sixteens < 5 || is_whole);
    let shapes = sixteens.flat_map(|(sixteens, time)| {
        (1..=most_parts).map(move |parts| (Shape { min_blocks, warps, sixteens, parts }, time))
    });
    let time = |(shape, time): &(Shape, usize)| {
        let rounds = shape.tiles(outputs).div_ceil(shape.most_blocks(processors.count));
        rounds * (shape.chunks(cols) * time + UNIT_TIME) + PART_TIME * shape.parts
    };
    let (best, _) = shapes.min_by_key(time).expect("some shape");
    best.cut(processors, [rows, outputs, cols])
}

/// A small product of which every block has one unit, and every warp few chunks of it: all of its weights and rows are on
/// their way at once.
pub(crate) fn small(processors: Processors, parts: usize, [rows, outputs, cols]: [usize; 3]) -> Option<Cut> {
    let shape = |warps| Shape { min_blocks: 2, warps, sixteens: 2, parts };
    // Of products in parts none was faster so.
    let share = parts == 1 && shape(1).tiles(outputs) > processors.count;
    let (warps, most_chunks) = if share { SHARING_OF_SMALL } else { ALONE_OF_SMALL };
    let shape = shape(warps);
    let is_one_unit = shape.tiles(outputs) <= shape.most_blocks(processors.count);
    if rows > MOST_ROWS || !is_one_unit || shape.chunks(cols) > most_chunks {
        return None;
    }
    let mut cut = shape.cut(processors, [rows, outputs, cols])?;
    // So much that more than two of its blocks do not come together on one multiprocessor while others have none.
    cut.grid.shared = (processors.shared / 2 - RESERVED) as u32;
    Some(cut)
}

#[derive(Clone, Copy)]
struct Shape {
    min_blocks: usize,
    warps: usize,
    sixteens: usize,
    parts: usize,
}

impl Shape {
    fn tiles(&self, outputs: usize) -> usize {
        outputs.div_ceil(16 * self.sixteens)
    }

    /// Blocks that a part may have.
    fn most_blocks(&self, processors: usize) -> usize {
        (self.min_blocks * processors / self.parts).max(1)
    }

    /// Chunks of a warp, of one unit.
    fn chunks(&self, cols: usize) -> usize {
        cols.div_ceil(StreamOptions::CHUNK).div_ceil(self.parts).div_ceil(self.warps)
    }

    /// `None` where two chunks of every warp do not fit.
    fn cut(&self, processors: Processors, [rows, outputs, cols]: [usize; 3]) -> Option<Cut> {
        let Self { min_blocks, warps, sixteens, parts, .. } = *self;
        let (tiles, chunks) = (self.tiles(outputs), self.chunks(cols));
        let blocks = tiles.min(self.most_blocks(processors.count));
        let one_unit = blocks == tiles;
        let ring =
            |depth| SeveralOptions { rows, sixteens, warps, depth, group: GROUP, once: false, min_blocks };
        let all = SeveralOptions { depth: chunks, group: chunks, once: true, ..ring(chunks) };
        let once = (one_unit && chunks <= MOST_AT_ONCE).then_some(all);
        let mut options = once.into_iter().chain((2..=DEEPEST).rev().map(ring));
        let room = if min_blocks == 1 { ALONE.min(processors.shared) } else { processors.shared };
        let fits = |o: &SeveralOptions| min_blocks * (o.shared(one_unit) + RESERVED) <= room;
        let options = options.find(fits)?;
        let grid = Grid::new(blocks * parts, 1, 32 * warps as u32);
        let grid = Grid { shared: options.shared(one_unit) as u32, ..grid };
        Some(Cut { kernel: SEVERAL.with_several(options), grid, parts, gate: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Product;
    use crate::emulated::emulated;
    use crate::memory::Memory;
    use crate::precision::Precision;
    use half::bf16;

    #[test]
    fn the_products_of_known_models_fill_the_device() {
        let cut = |outputs, cols| {
            let cut = large(Processors::MANY, [24, outputs, cols])?;
            Some((cut.parts, cut.grid.blocks[0], cut.grid.threads))
        };
        // Of Llama-3.2-3B, Qwen3-4B and Gemma-3-1B.
        assert_eq!(cut(16_384, 3072), Some((1, 256, 128)));
        assert_eq!(cut(5120, 3072), Some((3, 132, 256)));
        assert_eq!(cut(3072, 8192), Some((2, 128, 256)));
        assert_eq!(cut(19_456, 2560), Some((1, 244, 128)));
        assert_eq!(cut(6144, 2560), Some((1, 128, 256)));
        assert_eq!(cut(2560, 9728), Some((3, 120, 256)));
        assert_eq!(cut(13_824, 1152), Some((1, 216, 128)));
        assert_eq!(cut(1152, 6912), Some((3, 108, 256)));
        // Of Qwen3-0.6B.
        assert_eq!(cut(6144, 1024), None);
    }

    #[test]
    fn small_products_have_all_chunks_on_their_way_at_once() {
        let cut = |outputs, cols, parts| {
            let cut = small(Processors::MANY, parts, [24, outputs, cols])?;
            let options = cut.kernel.several.expect("its options");
            Some((options.once, options.warps, options.depth, cut.grid.blocks[0]))
        };
        // Of Qwen3-0.6B: queries, keys and values; gates, of whose blocks some share a processor; the way back in parts.
        assert_eq!(cut(4096, 1024, 1), Some((true, 8, 4, 128)));
        assert_eq!(cut(6144, 1024, 1), Some((true, 6, 6, 192)));
        assert_eq!(cut(1024, 3072, 4), Some((true, 8, 3, 128)));
        // Too many chunks for a warp, and more units than there are places for.
        assert_eq!((cut(4096, 1056, 1), cut(6144, 1184, 1), cut(8480, 1024, 1)), (None, None, None));
    }

    #[test]
    fn every_number_of_rows_fits_the_shared_memory() {
        for rows in 9..=MOST_ROWS {
            for (outputs, cols) in [(16_384, 3072), (3072, 3072), (1152, 6912), (151_936, 2560), (8, 1 << 20)]
            {
                let grid = large(Processors::MANY, [rows, outputs, cols]).expect("many weights").grid;
                assert!(
                    grid.shared as usize + RESERVED <= Processors::MANY.shared,
                    "{rows} {outputs} {cols}: {}",
                    grid.shared
                );
            }
        }
    }

    /// Numbers that bf16 holds.
    fn values(count: usize, seed: usize) -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 37 + seed) % 41) as f32 / 8.0 - 2.5)).collect()
    }

    /// Whether a product cut into this shape is right, on four processors.
    fn check(shape: Shape, [rows, outputs, cols]: [usize; 3]) -> SeveralOptions {
        let cuda = emulated(false);
        let (x, w) = (values(rows * cols, 3), values(outputs * cols, 11));
        let bits = |v: &[bf16]| v.iter().map(|x| u32::from(x.to_bits())).collect::<Vec<_>>();
        let packed = |v: &[bf16]| bits(v).chunks(2).map(|two| two[0] | two[1] << 16).collect::<Vec<u32>>();
        let [on_x, on_w] = [&x, &w].map(|v| Memory::of(&cuda.device, &packed(v)).unwrap());
        let out = Memory::zeroed(&cuda.device, shape.parts * rows * outputs * 4).unwrap();
        let four = Processors { count: 4, ..Processors::MANY };
        let cut = shape.cut(four, [rows, outputs, cols]).expect("room");
        let product = Product {
            x: on_x.address(),
            w: on_w.address(),
            out: out.address(),
            rows,
            outputs,
            cols,
            precision: Precision::Bf16,
            out_precision: Precision::F32,
            deterministic: false,
            most_parts: shape.parts,
            recurs: true,
        };
        // SAFETY: memory for these shapes was made above.
        unsafe { cuda.multiply_few(product, cut).unwrap() };
        let mut bytes = vec![0; out.bytes()];
        out.read(&mut bytes).unwrap();
        let got: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        for (row, output) in (0..rows).flat_map(|row| (0..outputs).map(move |output| (row, output))) {
            let pairs = x[row * cols..][..cols].iter().zip(&w[output * cols..][..cols]);
            let want: f32 = pairs.map(|(x, w)| x.to_f32() * w.to_f32()).sum();
            let parts = got.chunks(rows * outputs).map(|part| part[row * outputs + output]);
            let sum: f32 = parts.sum();
            assert!((sum - want).abs() < 0.01, "row {row}, output {output}: {sum}, not {want}");
        }
        cut.kernel.several.expect("its options")
    }

    #[test]
    fn a_product_in_any_shape_is_right() {
        let shape = Shape { min_blocks: 1, warps: 4, sixteens: 3, parts: 1 };
        // One unit a block, whose rows are loaded at once; more than that; several units; a stretch without a chunk for
        // every warp; outputs, columns and rows that fill no tile.
        let once = |options: SeveralOptions| options.once;
        assert!(once(check(shape, [24, 96, 256])));
        assert!(!once(check(shape, [24, 96, 1024])));
        assert!(!once(check(Shape { sixteens: 2, ..shape }, [11, 300, 200])));
        assert!(once(check(Shape { parts: 3, ..shape }, [32, 40, 200])));
        assert!(!once(check(Shape { parts: 2, warps: 8, sixteens: 5, ..shape }, [9, 404, 1288])));
    }
}
