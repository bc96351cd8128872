//! The atomics of the page pool, from `std` or, under `--cfg loom`, from the model checker.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;
#[cfg(loom)]
pub(crate) use model::{AtomicU32, AtomicU64};

/// Loom's atomics, made to explore what loom by itself leaves out.
///
/// Loom remembers one last access to each atomic. A thread that loads a value and then swaps it, as every loop
/// here does, hides behind its own load that another thread read the value before; loom then never tries the
/// two the other way round (tokio-rs/loom, issues 166 and 392), and half of the schedules that matter are
/// missing. So every operation here is preceded by a read-modify-write of a companion, which no load can hide.
/// The companion is relaxed: it orders the schedules that loom tries, not the memory that threads see.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::{self, Ordering};

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            #[derive(Debug)]
            pub(crate) struct $name {
                value: atomic::$name,
                companion: atomic::AtomicU8,
            }

            impl $name {
                pub(crate) fn new(value: $int) -> Self {
                    Self { value: atomic::$name::new(value), companion: atomic::AtomicU8::new(0) }
                }
                fn value(&self) -> &atomic::$name {
                    self.companion.swap(0, Ordering::Relaxed);
                    &self.value
                }
                pub(crate) fn load(&self, order: Ordering) -> $int {
                    self.value().load(order)
                }
                pub(crate) fn store(&self, value: $int, order: Ordering) {
                    self.value().store(value, order);
                }
                pub(crate) fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.value().compare_exchange(current, new, success, failure)
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    impl AtomicU32 {
        /// A load and a swap that other threads can come between, as in hardware.
        pub(crate) fn fetch_update(
            &self,
            success: Ordering,
            failure: Ordering,
            mut update: impl FnMut(u32) -> Option<u32>,
        ) -> Result<u32, u32> {
            let mut current = self.load(failure);
            while let Some(new) = update(current) {
                match self.compare_exchange(current, new, success, failure) {
                    Ok(_) => return Ok(current),
                    Err(now) => current = now,
                }
            }
            Err(current)
        }
        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.value().swap(value, order)
        }
        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.value().fetch_add(value, order)
        }
        pub(crate) fn fetch_max(&self, value: u32, order: Ordering) -> u32 {
            self.value().fetch_max(value, order)
        }
    }
}
