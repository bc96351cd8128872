use crate::aligned::Aligned;
use std::cell::RefCell;

thread_local! {
    /// Grows to the largest size asked for and stays: steps ask for the same sizes again and again.
    static SCRATCH: RefCell<Option<Aligned>> = const { RefCell::new(None) };
}

/// A number of four bytes.
///
/// # Safety
/// Every pattern of bits must be a value of the type.
pub(crate) unsafe trait Word: Copy + Send + Sync {}
// SAFETY: all 2³² patterns are values.
unsafe impl Word for f32 {}
// SAFETY: all 2³² patterns are values.
unsafe impl Word for i32 {}
// SAFETY: all 2³² patterns are values.
unsafe impl Word for u32 {}

/// Calls `body` with room for `len` values that last as long as the call; contents are undefined.
///
/// # Panics
/// If called from within `body`.
pub(crate) fn with_scratch<T: Word, R>(len: usize, body: impl FnOnce(&mut [T]) -> R) -> R {
    SCRATCH.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|room| room.bytes().len() < len * 4) {
            *kept = Some(Aligned::zeroed(len * 4));
        }
        let room = kept.as_mut().expect("made above").bytes_mut();
        // SAFETY: any bytes are words; the room starts on a page, so nothing is left before the first word.
        let (before, words, _) = unsafe { room.align_to_mut::<T>() };
        assert!(before.is_empty());
        body(&mut words[..len])
    })
}
