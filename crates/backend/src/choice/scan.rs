//! Passes over all logits of a position. Each is written so that the compiler uses vector instructions, and its result
//! does not depend on which.

/// Logits looked at together.
const BLOCK: usize = 256;
/// Independent chains in a block: more than any machine has lanes.
const LANES: usize = 16;
/// Up to here the largest are kept in order while scanning; above, sorting everything is no slower.
const FEW: usize = 1024;

/// The token with the largest logit, the first of equals; none where every logit is NaN or minus infinity.
pub fn likeliest(logits: &[f32]) -> Option<u32> {
    let (mut max, mut at) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let largest = max_of(block);
        if largest > max {
            (max, at) = (largest, index * BLOCK);
        }
    }
    if max == f32::NEG_INFINITY {
        return None;
    }
    let found = logits[at..].iter().position(|logit| *logit == max);
    found.map(|offset| (at + offset) as u32)
}

/// The largest; minus infinity where there is none but NaN.
fn max_of(block: &[f32]) -> f32 {
    // As `maxps` does it: NaN never replaces a number.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = block.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *logit);
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |max, logit| larger(max, *logit))
}

/// The `k` largest values above `floor` with their tokens, largest first, of equals the lower token.
pub fn largest(values: &[f32], k: usize, floor: f32) -> Vec<(f32, u32)> {
    if k > FEW {
        return largest_of_many(values, k, floor);
    }
    let mut kept: Vec<(f32, u32)> = Vec::with_capacity(k.min(values.len()));
    let mut threshold = floor;
    for (index, block) in values.chunks(BLOCK).enumerate() {
        if k == 0 || max_of(block) <= threshold {
            continue;
        }
        for (token, &value) in (index * BLOCK..).zip(block) {
            if value > threshold {
                kept.truncate(k - 1);
                let at = kept.partition_point(|(other, _)| *other >= value);
                kept.insert(at, (value, token as u32));
                if kept.len() == k {
                    threshold = kept[k - 1].0;
                }
            }
        }
    }
    kept
}

fn largest_of_many(values: &[f32], k: usize, floor: f32) -> Vec<(f32, u32)> {
    let mut kept: Vec<(f32, u32)> = values.iter().copied().zip(0u32..).filter(|(v, _)| *v > floor).collect();
    let larger = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if k < kept.len() {
        kept.select_nth_unstable_by(k - 1, larger);
        kept.truncate(k);
    }
    kept.sort_unstable_by(larger);
    kept
}

/// The sum of `f` over all values, in an order that depends on their number alone.
pub fn sum_by(values: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut sum = 0.0;
    let mut block = [0.0; BLOCK];
    for values in values.chunks(BLOCK) {
        // Apart from the sum, so that neither runs out of registers.
        for (to, value) in block.iter_mut().zip(values) {
            *to = f(*value);
        }
        let mut lanes = [0f64; LANES];
        let chunks = block[..values.len()].chunks_exact(LANES);
        let rest: f64 = chunks.remainder().iter().map(|value| f64::from(*value)).sum();
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(*value);
            }
        }
        sum += lanes.into_iter().sum::<f64>() + rest;
    }
    sum
}

/// e to the power of `x`, for `x` at most 0: within two units in the last place, 0 below -87 and for NaN. The
/// library's is a call for each value; this one vectorises.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Adding it rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    // ln 2 in two parts, so that the first product is exact.
    let r = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let mantissa = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x > -87.0 { mantissa * power } else { 0.0 }
}
