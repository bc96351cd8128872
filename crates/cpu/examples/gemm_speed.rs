//! How near do products come to what the machine can do? The shapes are those of Qwen3-0.6B; figures are the best of
//! several runs, beside both ceilings measured in the same run. `own ms` is the threads' own time divided by
//! their number: what else runs on the machine does not count, which makes it the measure for one thread.
//!
//! `gemm_speed [threads] [shape]`

use half::bf16;
use octavo_backend::{TensorRef, WeightDtype, WeightFormat};
use octavo_cpu::{Buf, Level, Matrix, Pool, ceiling, gemm};
use std::time::Instant;

/// More than the last cache holds: products of one row cycle through so many bytes of weights.
const CYCLED: usize = 192 << 20;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().expect("a number"));
    let pool = Pool::new(args.next().unwrap_or(2).try_into().expect("at least one thread"));
    let only = args.next();
    let (peak, bandwidth) = (ceiling::fma_peak(&pool), ceiling::read_bandwidth(&pool, CYCLED));
    println!("{} threads, {:?}: {peak:.0} GFLOP/s, {bandwidth:.1} GB/s", pool.threads(), Level::detect());
    println!(
        "{:>6} x {:<5} {:>6} {:>4} {:>9} {:>9} {:>8} {:>5} {:>7} {:>5}",
        "out", "in", "", "rows", "ms", "own ms", "GFLOP/s", "", "GB/s", ""
    );
    let shapes = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151_936, 1024)];
    for (_, (n, k)) in shapes.into_iter().enumerate().filter(|(i, _)| only.is_none_or(|only| only == *i)) {
        for format in [WeightFormat::AsStored, WeightFormat::Int8] {
            let size = if format == WeightFormat::Int8 { 1 } else { 2 };
            let copies = (CYCLED / (n * k * size)).max(1);
            let weights: Vec<Matrix> = (0..copies).map(|_| random(n, k, format, &pool)).collect();
            for m in [1, 2, 4, 8, 16, 64, 512] {
                let [wall, own] = measure(&pool, &weights, m);
                let seconds = if pool.threads() == 1 { own } else { wall };
                let flops = 2.0 * (m * n * k) as f64 / seconds / 1e9;
                let bytes = weights[0].bytes() as f64 / seconds / 1e9;
                println!(
                    "{n:>6} x {k:<5} {:>6} {m:>4} {:>9.3} {:>9.3} {flops:>8.1} {:>4.0}% {bytes:>7.1} {:>4.0}%",
                    if size == 1 { "int8" } else { "bf16" },
                    wall * 1e3,
                    own * 1e3,
                    100.0 * flops / peak,
                    100.0 * bytes / bandwidth
                );
            }
        }
    }
}

fn random(n: usize, k: usize, format: WeightFormat, pool: &Pool) -> Matrix {
    let bytes: Vec<u8> = (0..n * k).flat_map(|i| bf16::from_f32(noise(i)).to_le_bytes()).collect();
    let tensor = TensorRef::new(WeightDtype::Bf16, n, k, &bytes).expect("the right length");
    Matrix::pack(&[tensor], format, pool)
}

fn noise(i: usize) -> f32 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0
}

fn measure(pool: &Pool, weights: &[Matrix], m: usize) -> [f64; 2] {
    let (n, k) = (weights[0].rows(), weights[0].cols());
    let mut x = Buf::new(m, k);
    x.data_mut().iter_mut().enumerate().for_each(|(i, x)| *x = noise(i));
    let mut out = Buf::new(m, n);
    let mut best = [f64::INFINITY; 2];
    let begin = Instant::now();
    let mut runs = 0;
    while runs < 3 || (runs < 200 && begin.elapsed().as_secs_f64() < 0.5) {
        let start = [libc::CLOCK_MONOTONIC, libc::CLOCK_PROCESS_CPUTIME_ID].map(now);
        gemm(Level::detect(), pool, &weights[runs % weights.len()], &x, &mut out);
        best[0] = best[0].min(now(libc::CLOCK_MONOTONIC) - start[0]);
        best[1] = best[1].min((now(libc::CLOCK_PROCESS_CPUTIME_ID) - start[1]) / pool.threads() as f64);
        runs += 1;
    }
    best
}

fn now(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the time is there to be written.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
