/// How a weight lies in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightDtype {
    F32,
    F16,
    Bf16,
}

impl WeightDtype {
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How a matrix is kept for computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WeightFormat {
    #[default]
    AsStored,
    /// Widened at load; products then round nothing but their sums.
    F32,
    /// Quantised at load: eight bits a weight, a scale for each group of inputs of each output.
    Int8,
}

/// A matrix `[rows, cols]` as it lies in a file, little-endian and row-major. A vector has one row.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    dtype: WeightDtype,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> TensorRef<'a> {
    /// `None` if the bytes are not as many as the shape needs.
    pub fn new(dtype: WeightDtype, rows: usize, cols: usize, bytes: &'a [u8]) -> Option<Self> {
        let need = rows.checked_mul(cols)?.checked_mul(dtype.bytes())?;
        (bytes.len() == need).then_some(Self { dtype, rows, cols, bytes })
    }
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }
    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn cols(&self) -> usize {
        self.cols
    }
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
    /// The element at (`row`, `col`), widened.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of [{}, {}]", self.rows, self.cols);
        let at = (row * self.cols + col) * self.dtype.bytes();
        let b = |i: usize| self.bytes[at + i];
        match self.dtype {
            WeightDtype::F32 => f32::from_le_bytes([b(0), b(1), b(2), b(3)]),
            WeightDtype::F16 => half::f16::from_le_bytes([b(0), b(1)]).to_f32(),
            WeightDtype::Bf16 => half::bf16::from_le_bytes([b(0), b(1)]).to_f32(),
        }
    }
}
