use std::fmt;
use std::iter::Sum;
use std::num::NonZeroU32;
use std::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($int:ty), $one:literal, $many:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $int);

        impl $name {
            pub const ZERO: Self = Self(0);

            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map(Self)
            }
            pub fn checked_sub(self, other: Self) -> Option<Self> {
                self.0.checked_sub(other.0).map(Self)
            }
        }
        /// Panics on overflow, in release builds too: a count that wrapped would corrupt the cache in silence.
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                self.checked_add(other).expect(concat!(stringify!($name), " overflowed"))
            }
        }
        /// Panics below zero, in release builds too.
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.checked_sub(other).expect(concat!(stringify!($name), " fell below zero"))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Add::add)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.0, if self.0 == 1 { $one } else { $many })
            }
        }
    };
}

unit!(
    /// A number of tokens, or a position in a sequence.
    Tokens(u32), "token", "tokens"
);
unit!(
    /// A number of pages, or the index of a page within a sequence.
    Pages(u32), "page", "pages"
);
unit!(
    /// A number of bytes.
    Bytes(u64), "byte", "bytes"
);

impl Tokens {
    /// A length as a count of tokens; `None` above `u32::MAX`.
    pub fn of_len(len: usize) -> Option<Self> {
        u32::try_from(len).ok().map(Self)
    }
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl Pages {
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// Token slots a page has. Sixteen unless configured otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageSize(NonZeroU32);

impl PageSize {
    pub const DEFAULT: Self = Self(NonZeroU32::new(16).unwrap());

    /// `None` for a page of no tokens.
    pub fn new(tokens: u32) -> Option<Self> {
        NonZeroU32::new(tokens).map(Self)
    }
    pub fn tokens(self) -> Tokens {
        Tokens(self.0.get())
    }
    /// Pages that hold `n` tokens, the last one perhaps in part.
    pub fn pages_for(self, n: Tokens) -> Pages {
        Pages(n.0.div_ceil(self.0.get()))
    }
    /// Pages that `n` tokens fill to the last slot.
    pub fn full_pages(self, n: Tokens) -> Pages {
        Pages(n.0 / self.0.get())
    }
    /// Index of the page that position `at` lies in.
    pub fn page_of(self, at: Tokens) -> Pages {
        Pages(at.0 / self.0.get())
    }
    /// Slot of position `at` within its page.
    pub fn offset_of(self, at: Tokens) -> Tokens {
        Tokens(at.0 % self.0.get())
    }
    /// Tokens that `n` full pages hold; `None` above `u32::MAX`.
    pub fn tokens_in(self, n: Pages) -> Option<Tokens> {
        n.0.checked_mul(self.0.get()).map(Tokens)
    }
    pub fn as_usize(self) -> usize {
        self.0.get() as usize
    }
}

impl Default for PageSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_begun_by_its_first_token_and_full_at_its_last() {
        let size = PageSize::DEFAULT;
        let cases = [(0, 0, 0), (1, 1, 0), (15, 1, 0), (16, 1, 1), (17, 2, 1), (32, 2, 2), (100, 7, 6)];
        for (tokens, held, full) in cases {
            assert_eq!(size.pages_for(Tokens(tokens)), Pages(held), "{tokens} tokens");
            assert_eq!(size.full_pages(Tokens(tokens)), Pages(full), "{tokens} tokens");
        }
        assert_eq!((size.page_of(Tokens(31)), size.offset_of(Tokens(31))), (Pages(1), Tokens(15)));
        assert_eq!((size.page_of(Tokens(32)), size.offset_of(Tokens(32))), (Pages(2), Tokens(0)));
    }

    #[test]
    fn the_largest_counts_neither_wrap_nor_panic() {
        let size = PageSize::DEFAULT;
        assert_eq!(size.pages_for(Tokens(u32::MAX)), Pages(1 << 28));
        assert_eq!(size.tokens_in(Pages(1 << 28)), None);
        assert_eq!(PageSize::new(0), None);
    }

    #[test]
    #[should_panic(expected = "Pages fell below zero")]
    fn a_count_below_zero_panics_instead_of_wrapping() {
        let _ = Pages(1) - Pages(2);
    }

    #[test]
    #[should_panic(expected = "Pages overflowed")]
    fn a_count_above_its_type_panics_instead_of_wrapping() {
        let _ = Pages(u32::MAX) + Pages(1);
    }
}
