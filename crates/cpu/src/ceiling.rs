//! What the machine can do at most, measured: the yardsticks for the kernels.

use crate::aligned::Aligned;
use crate::{Level, Pool};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Independent sums in flight: more than latency times throughput of any machine so far.
const CHAINS: usize = 12;
const ROUNDS: usize = 2_000_000;

/// The most f32 operations a second that all threads reach together, in GFLOP/s: fused multiply-adds on registers,
/// two operations each, best of several runs.
pub fn fma_peak(pool: &Pool) -> f64 {
    let level = Level::detect();
    let threads = pool.threads();
    let seconds = best_of(7, || pool.run(threads, &|_| chain(level, ROUNDS)));
    let lanes = if level == Level::Avx512 { 16 } else { 8 };
    (threads * ROUNDS * CHAINS * lanes * 2) as f64 / seconds / 1e9
}

/// The most bytes a second that all threads read together from `bytes` of memory, in GB/s, best of several runs.
/// `bytes` should be many times the last cache.
pub fn read_bandwidth(pool: &Pool, bytes: usize) -> f64 {
    let chunk = 1 << 20;
    let mut memory = Aligned::zeroed(bytes.next_multiple_of(chunk));
    pool.run_chunks(memory.bytes_mut(), chunk, &|_, chunk| chunk.fill(1));
    let (level, memory, sum) = (Level::detect(), memory.bytes(), AtomicU64::new(0));
    let seconds = best_of(7, || {
        pool.run(memory.len() / chunk, &|i| {
            sum.fetch_add(mix(level, &memory[i * chunk..][..chunk]), Ordering::Relaxed);
        });
    });
    black_box(sum.into_inner());
    memory.len() as f64 / seconds / 1e9
}

fn best_of(runs: usize, body: impl Fn()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        body();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

fn chain(level: Level, rounds: usize) {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the level was detected on this machine.
        Level::Avx512 => return unsafe { x86::chain_512(rounds) },
        // SAFETY: the level was detected on this machine.
        Level::Avx2 => return unsafe { x86::chain_256(rounds) },
        Level::Portable => {}
    }
    let _ = level;
    let (mut sums, x, y) = ([[1.0_f32; 8]; CHAINS], black_box(0.999), black_box(0.001));
    for _ in 0..rounds {
        for sum in sums.as_flattened_mut() {
            *sum = sum.mul_add(x, y);
        }
    }
    black_box(sums);
}

crate::lanes::by_level! {
    /// Reads all of it.
    fn mix(bytes: &[u8]) -> u64 = mix_in_lanes
}

#[inline(always)]
fn mix_in_lanes(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; 64];
    for block in bytes.as_chunks::<512>().0 {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane ^= u64::from_ne_bytes(*word);
        }
    }
    lanes.into_iter().fold(0, |sum, lane| sum ^ lane)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, black_box};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn chain_512(rounds: usize) {
        let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|sum| _mm512_fmadd_ps(sum, x, y));
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn chain_256(rounds: usize) {
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        let mut sums = [_mm256_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            sums = sums.map(|sum| _mm256_fmadd_ps(sum, x, y));
        }
        black_box(sums);
    }
}
