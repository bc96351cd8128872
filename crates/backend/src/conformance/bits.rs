//! The same bits, however a row is run.

use super::Tolerance;
use super::compare::same;
use super::dense::gated;
use super::linear::{KINDS, product, weights};
use super::transfer::{buf, download, keeps_weights, upload, vector};
use super::world::{DTYPES, PAGE_SIZES, Shape, World, heads};
use crate::{Activation, Backend, NormSpec, Random};
use octavo_types::KvDtype;

/// What a batch of rows becomes, for rows of a given width.
type Op<'a> = (String, usize, Box<dyn Fn(&[f32]) -> Vec<f32> + 'a>);

pub fn dense_rows_alone_equal_rows_in_a_batch<B: Backend>(backend: &B, _: Tolerance) {
    const ROWS: usize = 70;
    for (name, cols, run) in ops(backend) {
        let x = Random::new(12).short_values(ROWS * cols, 3.0);
        let all = run(&x);
        let width = all.len() / ROWS;
        for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 32, 33, 64] {
            for first in [0, 1, ROWS - rows] {
                let case = format!("{name}: rows {first}..{} of {ROWS}", first + rows);
                let part = run(&x[first * cols..][..rows * cols]);
                same(&case, &part, &all[first * width..][..rows * width]);
            }
        }
    }
}

fn ops<'a, B: Backend>(backend: &'a B) -> Vec<Op<'a>> {
    let mut ops: Vec<Op<'a>> = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| keeps_weights(backend, kind.1)) {
        for (outputs, cols, short) in [(70, 96, false), (33, 100, true), (16, 257, false)] {
            let name = format!("linear {kind:?} of {cols} to {outputs}");
            let run =
                move |x: &[f32]| product(backend, &weights(kind, &[outputs], cols), kind.1, x, cols, short);
            ops.push((name, cols, Box::new(run)));
        }
    }
    for cols in [64, 100] {
        let weight = vector(backend, &Random::new(13).short_values(cols, 1.0));
        let run = move |x: &[f32]| add_norm(backend, &weight, x, cols);
        ops.push((format!("add_rms_norm of {cols}"), cols, Box::new(run)));
    }
    for act in [Activation::Silu, Activation::Gelu] {
        ops.push((format!("gated {act:?}"), 2 * 50, Box::new(move |x| gated(backend, act, 50, x))));
    }
    ops
}

/// `x` and its norm, side by side, after `x` was added to itself normed.
fn add_norm<B: Backend>(backend: &B, weight: &B::Vector, x: &[f32], cols: usize) -> Vec<f32> {
    let rows = x.len() / cols;
    let (mut sum, delta) = (upload(backend, rows, cols, x), upload(backend, rows, cols, x));
    let mut out = buf(backend, rows, cols);
    let norm = NormSpec { weight, eps: 1e-6 };
    backend.add_rms_norm(&mut sum, &delta, Some(norm), norm, &mut out).unwrap();
    let (sum, out) = (download(backend, &sum), download(backend, &out));
    sum.chunks(cols).zip(out.chunks(cols)).flat_map(|(a, b)| [a, b].concat()).collect()
}

fn shapes() -> Vec<Shape> {
    let shape = |heads, dtype, window| Shape { heads, dtype, page_size: 16, window, turn: true, fine: false };
    let mut shapes: Vec<_> = DTYPES.iter().map(|&dtype| shape(heads(6, 2, 64), dtype, None)).collect();
    shapes.push(shape(heads(6, 2, 64), KvDtype::F16, Some(20)));
    shapes.push(shape(heads(4, 1, 128), KvDtype::Bf16, None));
    shapes.push(shape(heads(2, 2, 96), KvDtype::Int8, Some(33)));
    shapes.push(shape(heads(8, 1, 256), KvDtype::F16, None));
    shapes
}

const SEED: u64 = 41;
const LEN: usize = 75;

/// The results of one sequence, fed in chunks of these sizes.
fn alone<B: Backend>(backend: &B, shape: Shape, map: u64, chunks: &[usize]) -> Vec<f32> {
    let mut world = World::new(backend, shape, &[(SEED, LEN)], map);
    for &rows in chunks {
        world.step(&[(0, rows)]);
    }
    world.sequences[0].out.clone()
}

pub fn attention_alone_equals_attention_in_a_batch<B: Backend>(backend: &B, _: Tolerance) {
    for shape in shapes() {
        let want = alone(backend, shape, 1, &[40, 34, 1]);
        let mut world = World::new(backend, shape, &[(7, 90), (SEED, LEN), (8, 33), (9, 64)], 2);
        world.step(&[(0, 50), (1, 40)]);
        world.step(&[(2, 31), (0, 1), (1, 34), (3, 0)]);
        world.step(&[(3, 64), (1, 1), (2, 1), (0, 1)]);
        same(&format!("alone and in a batch, {shape:?}"), &world.sequences[1].out, &want);
    }
}

pub fn one_chunk_equals_many<B: Backend>(backend: &B, _: Tolerance) {
    for shape in shapes() {
        let want = alone(backend, shape, 1, &[LEN]);
        let even = |size: usize| (0..LEN).step_by(size).map(|at| size.min(LEN - at)).collect::<Vec<_>>();
        for chunks in [even(1), even(3), even(16), even(17), vec![1, 47, 2, 16, 9], vec![64, 0, 10, 1]] {
            let got = alone(backend, shape, 1, &chunks);
            same(&format!("one chunk and {chunks:?}, {shape:?}"), &got, &want);
        }
    }
}

pub fn where_pages_lie_and_how_large_they_are_does_not_matter<B: Backend>(backend: &B, _: Tolerance) {
    for shape in shapes() {
        let want = alone(backend, shape, 1, &[60, 15]);
        for page_size in PAGE_SIZES {
            for map in [2, 3] {
                let shape = Shape { page_size, ..shape };
                let got = alone(backend, shape, map, &[60, 15]);
                same(&format!("page map {map}, {shape:?}"), &got, &want);
            }
        }
    }
}

pub fn pages_that_left_the_window_do_not_matter<B: Backend>(backend: &B, _: Tolerance) {
    for page_size in PAGE_SIZES {
        for window in [1, 16, 23, 1000] {
            let window = Some(window);
            let shape = Shape {
                heads: heads(4, 2, 64),
                dtype: KvDtype::F16,
                page_size,
                window,
                turn: true,
                fine: false,
            };
            let want = alone(backend, shape, 1, &[60, 14, 1]);
            let mut world = World::new(backend, shape, &[(SEED, LEN)], 1);
            world.hold_all = true;
            for rows in [60, 14, 1] {
                world.step(&[(0, rows)]);
            }
            same(&format!("with pages before the window, {shape:?}"), &world.sequences[0].out, &want);
        }
    }
}
