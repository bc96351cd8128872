//! Pools of all kinds, and rows to put into them.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use octavo_backend::{Random, Reference, codec};
use octavo_cpu::{Cpu, Level};
use octavo_engine::{CachePool, Gathered, KvPool};
use octavo_types::{KvDtype, KvSpec, PageSize, Pages, SeqId, Tokens};
use std::num::NonZeroUsize;

pub const LAYERS: usize = 3;
pub const HEADS: usize = 2;
pub const DIM: usize = 8;
/// Numbers of one token's keys in one layer.
pub const WIDTH: usize = HEADS * DIM;
pub const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];

pub fn spec(dtype: KvDtype) -> KvSpec {
    KvSpec::full_attention(LAYERS as u32, HEADS as u32, DIM as u32, dtype, PageSize::DEFAULT).unwrap()
}

pub fn cpu() -> Cpu {
    Cpu::new(NonZeroUsize::new(2).unwrap(), Level::detect())
}

/// The same memory four times: twelve pages of 16 and four slots of 48, on two devices.
pub fn pools(dtype: KvDtype) -> Vec<(&'static str, Box<dyn CachePool>)> {
    let spec = spec(dtype);
    let (pages, slots, longest) = (Pages(12), 4, Tokens(48));
    vec![
        ("paged, reference", Box::new(KvPool::paged(Reference, spec.clone(), pages).unwrap()) as _),
        ("contiguous, reference", Box::new(KvPool::contiguous(Reference, &spec, slots, longest).unwrap())),
        ("paged, CPU", Box::new(KvPool::paged(cpu(), spec.clone(), pages).unwrap())),
        ("contiguous, CPU", Box::new(KvPool::contiguous(cpu(), &spec, slots, longest).unwrap())),
    ]
}

/// Keys and values of `tokens` for one layer, other ones for every seed.
pub fn rows(seed: u64, tokens: usize) -> [Vec<f32>; 2] {
    let mut random = Random::new(seed);
    [2.0, 1.0].map(|range| random.values(tokens * WIDTH, range))
}

/// What a row is once it was stored.
pub fn recoded(dtype: KvDtype, rows: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; DIM * codec::element_bytes(dtype)];
    let mut params = vec![0; dtype.parameter_bytes() as usize];
    let mut out = vec![0.0; rows.len()];
    for (row, out) in rows.chunks(DIM).zip(out.chunks_mut(DIM)) {
        codec::encode(dtype, row, &mut bytes, &mut params);
        codec::decode(dtype, &bytes, &params, out);
    }
    out
}

/// Prefills `tokens` in all layers, layer `l` with the rows of `seed + l`; what the last layer read.
pub fn prefill(pool: &mut dyn CachePool, slot: SeqId, seed: u64, tokens: usize) -> Gathered {
    let mut view = pool.prefill_view(slot).unwrap();
    let mut read = None;
    for layer in 0..LAYERS {
        let [keys, values] = rows(seed + layer as u64, tokens);
        read = Some(view.update(layer, &keys, &values).unwrap());
    }
    view.advance(Tokens(tokens as u32)).unwrap();
    read.unwrap()
}

/// One token of every slot in all layers; what the last layer read.
pub fn decode(pool: &mut dyn CachePool, slots: &[SeqId], seed: u64) -> Gathered {
    let mut view = pool.decode_view(slots).unwrap();
    let mut read = None;
    for layer in 0..LAYERS {
        let [keys, values] = rows(seed + layer as u64, slots.len());
        read = Some(view.update(layer, &keys, &values).unwrap());
    }
    view.advance(Tokens(1)).unwrap();
    read.unwrap()
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
