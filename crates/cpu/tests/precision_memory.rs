//! What the same tokens take in memory at each precision, measured. Alone in its process, so that nothing else
//! allocates meanwhile.
#![cfg(target_os = "linux")]

use octavo_backend::{Backend, PageLayout};
use octavo_cpu::{Cpu, Level};
use octavo_types::{KvDtype, KvSpec, PageSize, Pages, SlotId};
use std::num::NonZeroUsize;

const LAYERS: u32 = 16;
const KV_HEADS: u32 = 4;
const HEAD_DIM: u32 = 128;
const TOKENS: u64 = 2048;

/// Bytes of memory that back this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 = statm.split(' ').nth(1).expect("its second field").parse().expect("a number");
    pages * 4096
}

/// By how much resident memory grows while the tokens are stored, in an arena of four times their size.
fn grown(cpu: &Cpu, dtype: KvDtype, keys: &[f32], slots: &[SlotId]) -> u64 {
    let spec = KvSpec::full_attention(LAYERS, KV_HEADS, HEAD_DIM, dtype, PageSize::DEFAULT).unwrap();
    let pages = Pages(4 * TOKENS as u32 / 16);
    let before = resident();
    let mut arena = cpu.arena(PageLayout::new(&spec), pages).unwrap();
    for layer in 0..LAYERS as usize {
        cpu.scatter(&mut arena, layer, slots, [keys, keys]).unwrap();
    }
    resident() - before
}

#[test]
fn measured_memory_of_fp8_and_int8_is_half_of_f16_and_their_parameters() {
    let cpu = Cpu::new(NonZeroUsize::MIN, Level::detect());
    let width = u64::from(KV_HEADS * HEAD_DIM);
    let keys: Vec<f32> = (0..TOKENS * width).map(|i| (i % 97) as f32 - 48.0).collect();
    let slots: Vec<SlotId> = (0..TOKENS).map(SlotId).collect();
    let f16 = grown(&cpu, KvDtype::F16, &keys, &slots);
    let data = TOKENS * u64::from(LAYERS) * 2 * width * 2;
    // The operating system backs up to 2 MiB at a time.
    assert!(f16.abs_diff(data) < 4 << 20, "{f16} bytes for {data}");
    for dtype in [KvDtype::Fp8, KvDtype::Int8] {
        let share = grown(&cpu, dtype, &keys, &slots) as f64 / f16 as f64;
        // A byte an element, and four a vector of 128.
        let expected = (128.0 + 4.0) / 256.0;
        assert!((share - expected).abs() < 0.05, "{dtype:?}: {share}, expected {expected}");
    }
}
