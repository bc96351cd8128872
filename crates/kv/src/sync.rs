//! The atomics of the page pool, from `std` or, under `--cfg loom`, from the model checker. Unit tests watch them.

#[cfg(not(any(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(all(test, not(loom)))]
pub(crate) use watched::{AtomicU32, AtomicU64};

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::Ordering;

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

/// The atomics of `std`, for tests that count how often a call touches them or do something in between.
#[cfg(all(test, not(loom)))]
pub(crate) mod watched {
    use std::cell::{Cell, RefCell};
    use std::ops::Deref;
    use std::sync::atomic;

    type Interruption = (u64, Box<dyn FnOnce()>);

    thread_local! {
        static TOUCHES: Cell<u64> = const { Cell::new(0) };
        static INTERRUPTION: RefCell<Option<Interruption>> = const { RefCell::new(None) };
    }

    /// How often this thread touches an atomic in `work`.
    pub(crate) fn touches(work: impl FnOnce()) -> u64 {
        let before = TOUCHES.get();
        work();
        TOUCHES.get() - before
    }

    /// Does `work`, and `other` right before it touches an atomic for the `n`th time, counted from 0.
    pub(crate) fn interrupted(n: u64, other: impl FnOnce() + 'static, work: impl FnOnce()) {
        INTERRUPTION.set(Some((TOUCHES.get() + n, Box::new(other))));
        work();
        assert!(INTERRUPTION.take().is_none(), "there was no touch {n}");
    }

    fn touch() {
        let now = TOUCHES.replace(TOUCHES.get() + 1);
        let due = INTERRUPTION.with_borrow_mut(|interruption| interruption.take_if(|(at, _)| *at == now));
        if let Some((_, other)) = due {
            other();
        }
    }

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            #[derive(Debug)]
            pub(crate) struct $name(atomic::$name);

            impl $name {
                pub(crate) fn new(value: $int) -> Self {
                    Self(atomic::$name::new(value))
                }
            }

            impl Deref for $name {
                type Target = atomic::$name;
                fn deref(&self) -> &Self::Target {
                    touch();
                    &self.0
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}
