//! Activations and weights in device memory.

use crate::device::Device;
use crate::memory::Memory;
use crate::precision::Precision;
use half::bf16;
use octavo_backend::{BackendError, TensorRef, WeightDtype};
use std::cell::Cell;
use std::sync::Arc;

/// Activations `[rows, cols]`, in the precision of whatever wrote them last.
#[derive(Debug)]
pub struct CudaBuf {
    rows: usize,
    cols: usize,
    precision: Precision,
    /// Of a product's sums, one after another: a value is what they add up to.
    parts: Cell<usize>,
    memory: Memory,
}

impl CudaBuf {
    pub(crate) fn new(device: &Arc<dyn Device>, rows: usize, cols: usize) -> Result<Self, BackendError> {
        Ok(Self {
            rows,
            cols,
            precision: Precision::F32,
            parts: Cell::new(1),
            memory: Memory::new(device, rows * cols * 4)?.kept(),
        })
    }

    /// Doubles what it has where that is not enough.
    pub(crate) fn resize(&mut self, device: &Arc<dyn Device>, rows: usize) -> Result<(), BackendError> {
        let need = rows * self.cols * 4;
        if need > self.memory.bytes() {
            self.memory = Memory::new(device, need.max(2 * self.memory.bytes()))?.kept();
        }
        self.rows = rows;
        Ok(())
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }
    /// Where to write all of it in `precision`.
    pub(crate) fn overwrite(&mut self, precision: Precision) -> u64 {
        self.precision = precision;
        self.parts.set(1);
        self.memory.address()
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts.get()
    }
    /// From here on; there is room for them.
    pub(crate) fn set_parts(&self, parts: usize) {
        assert!(
            parts * self.rows * self.cols * self.precision.bytes() <= self.memory.bytes(),
            "room for {parts} parts"
        );
        self.parts.set(parts);
    }
    /// Room for so many parts, whose contents are undefined.
    pub(crate) fn make_room(&mut self, device: &Arc<dyn Device>, parts: usize) -> Result<(), BackendError> {
        let need = parts * self.rows * self.cols * 4;
        if need > self.memory.bytes() {
            self.memory = Memory::new(device, need)?.kept();
        }
        Ok(())
    }

    pub(crate) fn read(&self, out: &mut Vec<f32>) -> Result<(), BackendError> {
        let mut bytes = vec![0; self.rows * self.cols * self.precision.bytes()];
        self.memory.read(&mut bytes)?;
        self.precision.widen(&bytes, out);
        Ok(())
    }

    pub(crate) fn read_row(&self, row: usize, out: &mut Vec<f32>) -> Result<(), BackendError> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let mut bytes = vec![0; self.cols * self.precision.bytes()];
        self.memory.read_at(row * bytes.len(), &mut bytes)?;
        self.precision.widen(&bytes, out);
        Ok(())
    }
}

/// Weights `[rows, cols]`, row-major, in sixteen bits.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) precision: Precision,
    pub(crate) memory: Memory,
}

impl CudaMatrix {
    pub(crate) fn new(device: &Arc<dyn Device>, parts: &[TensorRef<'_>]) -> Result<Self, BackendError> {
        let first = parts.first().expect("a matrix has at least one part");
        let (cols, precision) = (first.cols(), Precision::of_weights(first.dtype()));
        let rows = parts.iter().map(TensorRef::rows).sum();
        let memory = Memory::new(device, rows * cols * precision.bytes())?.kept();
        let mut at = 0;
        for part in parts {
            assert_eq!((part.cols(), part.dtype()), (cols, first.dtype()), "parts differ");
            let bytes = narrowed(part);
            memory.write(at, bytes.as_deref().unwrap_or(part.bytes()))?;
            at += part.rows() * cols * precision.bytes();
        }
        Ok(Self { rows, cols, precision, memory })
    }
}

/// f32 as bf16; `None` where the bytes are right as they are.
fn narrowed(part: &TensorRef<'_>) -> Option<Vec<u8>> {
    let narrow = |&b: &[u8; 4]| bf16::from_f32(f32::from_le_bytes(b)).to_le_bytes();
    (part.dtype() == WeightDtype::F32).then(|| part.bytes().as_chunks().0.iter().flat_map(narrow).collect())
}

/// Weights of a norm, in f32.
#[derive(Debug)]
pub struct CudaVector {
    pub(crate) len: usize,
    pub(crate) memory: Memory,
}

impl CudaVector {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        values: TensorRef<'_>,
        plus: f32,
    ) -> Result<Self, BackendError> {
        assert_eq!(values.rows(), 1, "a vector has one row");
        let widened: Vec<f32> = (0..values.cols()).map(|col| values.get(0, col) + plus).collect();
        Ok(Self { len: widened.len(), memory: Memory::of(device, &widened)?.kept() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::CudaArena;
    use crate::emulated::Emulated;
    use octavo_backend::PageLayout;
    use octavo_types::{KvDtype, Pages};

    #[test]
    fn whatever_recordings_may_use_is_a_move_when_it_goes() {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        let weights = TensorRef::new(WeightDtype::F32, 1, 4, &[0; 16]).unwrap();
        let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: 16, dtype: KvDtype::F16 };
        let mut buf = CudaBuf::new(&device, 2, 4).unwrap();
        let mut chosen = None;
        let mut moves = Vec::new();
        let mut note = || moves.push(device.moves());
        buf.resize(&device, 1).unwrap();
        note();
        buf.resize(&device, 3).unwrap();
        note();
        buf.make_room(&device, 4).unwrap();
        note();
        Memory::at_least(&mut chosen, &device, 4).unwrap();
        Memory::at_least(&mut chosen, &device, 8).unwrap();
        note();
        drop(buf);
        note();
        drop(CudaMatrix::new(&device, &[weights]).unwrap());
        note();
        drop(CudaVector::new(&device, weights, 0.0).unwrap());
        note();
        drop(CudaArena::new(&device, layout, Pages(1)).unwrap());
        note();
        drop(Memory::new(&device, 8).unwrap());
        note();
        assert_eq!(moves, [0, 1, 2, 3, 4, 5, 6, 7, 7], "the last is none of those");
    }
}
