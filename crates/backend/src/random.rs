/// A small deterministic generator (SplitMix64): the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of `0..below`; `below` is not 0.
    pub fn below(&mut self, below: usize) -> usize {
        (self.next_u64() % below as u64) as usize
    }

    /// A multiple of 2⁻²³ in `-1.0..1.0`.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `len` numbers in `-size..size`.
    pub fn values(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * size).collect()
    }

    /// The same, each exact in bf16 and never zero: whatever precision a back end computes in, it holds them.
    pub fn short_values(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let x = half::bf16::from_f32(self.unit() * size).to_f32();
                if x == 0.0 { size / 2.0 } else { x }
            })
            .collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
