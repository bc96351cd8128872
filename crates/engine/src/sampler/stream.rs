//! Random numbers that depend on seed, choice and position alone.

/// The random stream of choice `choice` of a request. The first choice has the seed's own.
pub(super) fn stream(seed: u64, choice: u32) -> u64 {
    if choice == 0 { seed } else { mix(mix(seed) ^ u64::from(choice)) }
}

/// A number in [0, 1) that depends on the stream and the position alone.
pub(super) fn uniform(stream: u64, position: u32) -> f64 {
    // SplitMix64, keyed by stream and counted by position.
    let z = mix(stream ^ u64::from(position).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (z >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
