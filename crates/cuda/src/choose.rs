//! Tokens chosen where the logits lie.

use crate::backend::{Cuda, Only};
use crate::device::Grid;
use crate::kernels::Kernel;
use crate::memory::{Memory, Plain, launch};
use crate::precision::Precision;
use crate::steps::Need;
use crate::values::CudaBuf;
use octavo_backend::{BackendError, Choice};

pub(crate) const PEAKS: Kernel = Kernel::new::<PeaksArgs>("peaks").overlapping();
pub(crate) const CHOOSE: Kernel = Kernel::new::<ChooseArgs>("choose").overlapping();

/// Logits that are worth a block of their own.
const LEAST_PART: usize = 2048;
/// `OPEN` of `cu/choose.cu`.
const OPEN: u32 = u32::MAX;

#[repr(C)]
struct PeaksArgs {
    logits: u64,
    peaks: u64,
    vocab: u32,
    part: u32,
    fours: i32,
    unused: i32,
}

#[repr(C)]
struct ChooseArgs {
    logits: u64,
    peaks: u64,
    choices: u64,
    tokens: u64,
    vocab: u32,
    parts: u32,
}

/// `Choice` of `cu/choose.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct PlainChoice(pub(crate) Choice);
// SAFETY: eight bytes and four times four, in that order: no padding.
unsafe impl Plain for PlainChoice {}

/// Where results go; grows.
#[derive(Debug, Default)]
pub(crate) struct Choosing {
    peaks: Option<Memory>,
    tokens: Option<Memory>,
}

impl Cuda {
    pub(crate) fn run_choose(&self, logits: &CudaBuf, choices: &[Choice]) -> Result<(), BackendError> {
        assert_eq!(logits.precision(), Precision::F32, "logits are results of a product");
        assert_eq!(logits.rows(), self.padded(choices.len()), "a choice a row");
        self.settle(logits)?;
        let there = self.input(Need::Choices, logits.rows(), &plain(choices))?;
        let rows = there.count;
        let vocab = logits.cols();
        let most = vocab.div_ceil(LEAST_PART).max(1);
        let parts = (8 * self.device.processors().count).div_ceil(logits.rows().max(1)).clamp(1, most);
        let mut choosing = self.choosing.borrow_mut();
        let peaks = Memory::at_least(&mut choosing.peaks, &self.device, logits.rows() * parts * 8)?;
        let tokens = Memory::at_least(&mut choosing.tokens, &self.device, logits.rows() * 4)?;
        let fours = vocab.is_multiple_of(4);
        let part = (if fours { vocab / 4 } else { vocab }).div_ceil(parts) as u32;
        let (vocab, logits) = (vocab as u32, logits.address());
        let args = PeaksArgs { logits, peaks, vocab, part, fours: i32::from(fours), unused: 0 };
        if self.left_out(Only::Kernel("choose")) {
            return Ok(());
        }
        // SAFETY: a block a part of a row, each of which has its place in `peaks`.
        unsafe { launch(&*self.device, PEAKS, Grid::new(parts, rows, 256), &args)? };
        let args = ChooseArgs { logits, peaks, choices: there.address, tokens, vocab, parts: parts as u32 };
        // SAFETY: a block a row, with a choice and a place for its token.
        unsafe { launch(&*self.device, CHOOSE, Grid::new(rows, 1, 512), &args) }
    }

    pub(crate) fn read_chosen(&self, count: usize) -> Result<Vec<Option<u32>>, BackendError> {
        let choosing = self.choosing.borrow();
        let mut bytes = vec![0; count * 4];
        let tokens = choosing.tokens.as_ref().expect("something was chosen");
        tokens.read(&mut bytes)?;
        // Nothing is read, and so waited for, of none.
        if count > 0 {
            self.steps.borrow_mut().waited();
        }
        let token = |&b: &[u8; 4]| Some(u32::from_le_bytes(b)).filter(|token| *token != OPEN);
        Ok(bytes.as_chunks().0.iter().map(token).collect())
    }
}

fn plain(choices: &[Choice]) -> Vec<PlainChoice> {
    choices.iter().map(|choice| PlainChoice(*choice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::emulated;
    use crate::memory::bytes_of;
    use octavo_backend::Backend;

    /// In parts that are not equally long.
    #[test]
    fn the_last_token_of_a_large_vocabulary_is_found() {
        let cuda = emulated(false);
        for vocab in [3 * LEAST_PART - 100, 3 * LEAST_PART - 101] {
            let mut logits = cuda.buf(1, vocab).unwrap();
            let mut values = vec![0f32; vocab];
            values[vocab - 1] = 1.0;
            // SAFETY: there is room for all of them.
            unsafe { cuda.device.upload(logits.overwrite(Precision::F32), bytes_of(&values)).unwrap() };
            cuda.choose(&logits, &[Choice::LIKELIEST]).unwrap();
            assert_eq!(cuda.chosen(1).unwrap(), [Some(vocab as u32 - 1)]);
        }
    }

    #[test]
    fn parts_of_logits_are_added_before_a_token_is_chosen() {
        let cuda = emulated(false);
        let mut logits = cuda.buf(1, 4).unwrap();
        logits.make_room(&cuda.device, 2).unwrap();
        let to = logits.overwrite(Precision::F32);
        logits.set_parts(2);
        // SAFETY: room for both was made.
        unsafe { cuda.device.upload(to, bytes_of(&[3f32, 2.0, 0.0, 0.0, -3.0, 0.0, 1.0, 0.0])).unwrap() };
        cuda.choose(&logits, &[Choice::LIKELIEST]).unwrap();
        assert_eq!(cuda.chosen(1).unwrap(), [Some(1)]);
    }
}
