//! What the machine can do at most, measured: the yardsticks for the kernels.

use crate::aligned::Aligned;
use crate::{Level, Pool};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Independent sums in flight: more than latency times throughput of any machine so far.
const CHAINS: usize = 12;
/// Multiply-adds of each chain in a part: some tens of microseconds.
const ROUNDS: usize = 20_000;
/// Parts a thread takes one after another, so that one that is interrupted does less of them.
const PARTS: usize = 16;
/// Bytes in a part, for the same reason.
const CHUNK: usize = 1 << 18;

/// The most f32 operations a second that all threads reach together, in GFLOP/s: fused multiply-adds on registers,
/// two operations each. It is the mean over at least `patience`: give it the time of what it is compared with, so that
/// other work on the machine slows both alike.
pub fn fma_peak(pool: &Pool, patience: Duration) -> f64 {
    let (level, parts) = (Level::detect(), pool.threads() * PARTS);
    let seconds = mean(patience, || pool.run(parts, &|_| chain(level, ROUNDS)));
    let lanes = if level == Level::Avx512 { 16 } else { 8 };
    (parts * ROUNDS * CHAINS * lanes * 2) as f64 / seconds / 1e9
}

/// The most operations a second of products with weights in bf16, in GFLOP/s: dot products of bf16 on registers, four
/// operations a lane, or [`fma_peak`] where the machine has none.
pub fn bf16_peak(pool: &Pool, patience: Duration) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if crate::gemm::has_dots(Level::detect()) {
        let parts = pool.threads() * PARTS;
        // SAFETY: just asked for.
        let seconds = mean(patience, || pool.run(parts, &|_| unsafe { x86::dots(ROUNDS) }));
        return (parts * ROUNDS * CHAINS * 16 * 4) as f64 / seconds / 1e9;
    }
    fma_peak(pool, patience)
}

/// Memory to be read as fast as it can be. It should have many times the bytes of the last cache.
#[derive(Debug)]
pub struct Memory(Aligned);

impl Memory {
    /// At least `bytes`, all of them written.
    pub fn new(pool: &Pool, bytes: usize) -> Self {
        let mut memory = Aligned::zeroed(bytes.max(1).next_multiple_of(CHUNK));
        pool.run_chunks(memory.bytes_mut(), CHUNK, &|_, chunk| chunk.fill(1));
        Self(memory)
    }

    /// The most bytes a second that all threads read together, in GB/s: the mean over at least `patience`, as in
    /// [`fma_peak`].
    pub fn read_bandwidth(&self, pool: &Pool, patience: Duration) -> f64 {
        let (level, chunks, sum) =
            (Level::detect(), self.0.bytes().as_chunks::<CHUNK>().0, AtomicU64::new(0));
        let seconds = mean(patience, || {
            pool.run(chunks.len(), &|i| {
                sum.fetch_add(mix(level, &chunks[i]), Ordering::Relaxed);
            });
        });
        black_box(sum.into_inner());
        size_of_val(chunks) as f64 / seconds / 1e9
    }
}

/// Seconds of a run.
fn mean(patience: Duration, run: impl Fn()) -> f64 {
    let begin = Instant::now();
    for runs in 1.. {
        run();
        let took = begin.elapsed();
        if took >= patience {
            return took.as_secs_f64() / f64::from(runs);
        }
    }
    unreachable!("time passes")
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

/// Reads all of it, in order, and asks for nothing ahead: what reads memory fastest on the machines tried.
fn mix(level: Level, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the level was detected on this machine.
        Level::Avx512 => return unsafe { x86::mix_512(bytes) },
        // SAFETY: the level was detected on this machine.
        Level::Avx2 => return unsafe { x86::mix_256(bytes) },
        Level::Portable => {}
    }
    let _ = level;
    bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word))
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

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn dots(rounds: usize) {
        // SAFETY: the types differ in name alone.
        let [x, y]: [__m512bh; 2] =
            [0.999, 0.001_f32].map(|value| unsafe { std::mem::transmute(_mm512_set1_ps(black_box(value))) });
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn mix_512(bytes: &[u8]) -> u64 {
        let sum = bytes.as_chunks::<64>().0.iter().fold(_mm512_setzero_si512(), |sum, line| {
            // SAFETY: a line has as many bytes.
            _mm512_xor_si512(sum, unsafe { _mm512_loadu_si512(line.as_ptr().cast()) })
        });
        _mm512_reduce_or_epi64(sum) as u64
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn mix_256(bytes: &[u8]) -> u64 {
        let sum = bytes.as_chunks::<32>().0.iter().fold(_mm256_setzero_si256(), |sum, half| {
            // SAFETY: half a line has as many bytes.
            _mm256_xor_si256(sum, unsafe { _mm256_loadu_si256(half.as_ptr().cast()) })
        });
        // SAFETY: the same bytes; all of them, or the compiler would read no others.
        let words: [u64; 4] = unsafe { std::mem::transmute(sum) };
        words.into_iter().fold(0, |sum, word| sum ^ word)
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
        let patience = Duration::from_millis(20);
        assert!((0.01..1e6).contains(&fma_peak(&pool, patience)));
        assert!((0.01..1e6).contains(&bf16_peak(&pool, patience)));
        assert!((0.01..1e5).contains(&Memory::new(&pool, 40 << 20).read_bandwidth(&pool, patience)));
    }
}
