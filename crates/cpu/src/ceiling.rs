//! What the machine can do at most, measured: the yardsticks for the kernels.

use crate::aligned::Aligned;
use crate::{Level, Pool};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Independent sums in flight: more than latency times throughput of any machine so far.
const CHAINS: usize = 12;
/// A run takes under a millisecond, so that among many some are not interrupted by other work on the machine.
const ROUNDS: usize = 200_000;
/// Bytes read in a run, for the same reason.
const PIECE: usize = 16 << 20;
const CHUNK: usize = 1 << 18;
/// How long runs are repeated.
const PATIENCE: Duration = Duration::from_millis(300);

/// The most f32 operations a second that all threads reach together, in GFLOP/s: fused multiply-adds on registers,
/// two operations each, best of many short runs.
pub fn fma_peak(pool: &Pool) -> f64 {
    let level = Level::detect();
    let threads = pool.threads();
    let seconds = shortest(|_| pool.run(threads, &|_| chain(level, ROUNDS)));
    let lanes = if level == Level::Avx512 { 16 } else { 8 };
    (threads * ROUNDS * CHAINS * lanes * 2) as f64 / seconds / 1e9
}

/// The most bytes a second that all threads read together, in GB/s, walking again and again through `bytes` of memory;
/// the best piece of 16 MiB counts. `bytes` should be many times the last cache.
pub fn read_bandwidth(pool: &Pool, bytes: usize) -> f64 {
    let mut memory = Aligned::zeroed(bytes.max(1).next_multiple_of(PIECE));
    pool.run_chunks(memory.bytes_mut(), CHUNK, &|_, chunk| chunk.fill(1));
    let (level, pieces, sum) = (Level::detect(), memory.bytes().as_chunks::<PIECE>().0, AtomicU64::new(0));
    let seconds = shortest(|run| {
        let piece = &pieces[run % pieces.len()];
        pool.run(PIECE / CHUNK, &|i| {
            sum.fetch_add(mix(level, &piece[i * CHUNK..][..CHUNK]), Ordering::Relaxed);
        });
    });
    black_box(sum.into_inner());
    PIECE as f64 / seconds / 1e9
}

/// Seconds of the shortest of many runs.
fn shortest(run: impl Fn(usize)) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    for i in 0.. {
        let start = Instant::now();
        run(i);
        best = best.min(start.elapsed().as_secs_f64());
        if begin.elapsed() > PATIENCE {
            break;
        }
    }
    best
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

/// Four streams, each asked for ahead of its use: what reads memory fastest on the machines tried.
#[inline(always)]
fn mix_in_lanes(bytes: &[u8]) -> u64 {
    const AHEAD: usize = 2048;
    let quarter = bytes.len() / 4;
    let mut lanes = [0_u64; 32];
    for at in (0..quarter).step_by(64) {
        for (stream, lanes) in lanes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let line = &bytes[stream * quarter + at..][..64];
            prefetch(line.as_ptr().wrapping_add(AHEAD));
            for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
                *lane ^= u64::from_ne_bytes(*word);
            }
        }
    }
    lanes.into_iter().fold(0, |sum, lane| sum ^ lane)
}

#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; no address is wrong.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
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
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn chain_256(rounds: usize) {
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        let mut sums = [_mm256_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_those_of_a_computer() {
        let pool = Pool::new(2.try_into().unwrap());
        assert!((0.01..1e6).contains(&fma_peak(&pool)));
        assert!((0.01..1e5).contains(&read_bandwidth(&pool, 40 << 20)));
    }
}
