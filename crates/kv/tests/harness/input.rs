/// Bytes read as small numbers. Past the end everything reads as 0.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `n`, which is 1 to 256.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        u32::from(self.byte()) % n
    }

    pub(super) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Any number, and those beside powers of two and at the ends more often than others.
    pub(super) fn u64(&mut self) -> u64 {
        let power = 1u64 << self.below(64);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX - u64::from(self.byte()),
            2 => power,
            3 => power - 1,
            4 => power.saturating_add(1),
            5 => u64::from(self.byte()),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    /// As `u64`, in the lower or the upper half of its bits.
    pub(super) fn u32(&mut self) -> u32 {
        let wide = self.u64();
        if wide > u64::from(u32::MAX) { (wide >> 32) as u32 } else { wide as u32 }
    }
}
