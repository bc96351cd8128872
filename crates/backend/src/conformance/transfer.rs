//! Numbers into a back end and out of it again.

use crate::{Backend, BackendError, TensorRef, WeightDtype, WeightFormat};
use half::{bf16, f16};

/// A weight in a file: what [`TensorRef`] borrows from.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    dtype: WeightDtype,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Tensor {
    pub(super) fn new(dtype: WeightDtype, rows: usize, cols: usize, values: &[f32]) -> Self {
        let bytes = match dtype {
            WeightDtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            WeightDtype::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            WeightDtype::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        };
        Self { dtype, rows, cols, bytes }
    }

    pub(super) fn view(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype, self.rows, self.cols, &self.bytes)
            .expect("as many bytes as the shape needs")
    }
}

pub(super) fn vector<B: Backend>(backend: &B, values: &[f32]) -> B::Vector {
    backend.vector(Tensor::new(WeightDtype::F32, 1, values.len(), values).view(), 0.0).unwrap()
}

pub(super) fn buf<B: Backend>(backend: &B, rows: usize, cols: usize) -> B::Buf {
    backend.buf(rows, cols).unwrap()
}

/// A buffer of these values: the embeddings of the tokens `0..rows` in a table that has them as its rows.
pub(super) fn upload<B: Backend>(backend: &B, rows: usize, cols: usize, values: &[f32]) -> B::Buf {
    assert_eq!(values.len(), rows * cols);
    let mut out = buf(backend, rows, cols);
    if rows > 0 {
        let table = Tensor::new(WeightDtype::F32, rows, cols, values);
        let table = backend.matrix(&[table.view()], WeightFormat::AsStored).unwrap();
        let tokens: Vec<u32> = (0..rows as u32).collect();
        backend.embed(&table, &tokens, 1.0, &mut out).unwrap();
    }
    out
}

pub(super) fn download<B: Backend>(backend: &B, buf: &B::Buf) -> Vec<f32> {
    let mut out = vec![f32::NAN; 3];
    backend.read(buf, &mut out).unwrap();
    out
}

/// Whether activations keep all bits of an f32.
pub(super) fn keeps_f32<B: Backend>(backend: &B) -> bool {
    let x = [1.0f32.next_up()];
    download(backend, &upload(backend, 1, 1, &x)) == x
}

/// Whether the back end keeps weights in this format; one that does not says so and names another.
pub(super) fn keeps_weights<B: Backend>(backend: &B, format: WeightFormat) -> bool {
    let one = Tensor::new(WeightDtype::Bf16, 1, 1, &[1.0]);
    match backend.matrix(&[one.view()], format) {
        Ok(_) => true,
        Err(BackendError::Unsupported { .. }) if format != WeightFormat::AsStored => false,
        Err(error) => panic!("weights in {format:?}: {error}"),
    }
}
