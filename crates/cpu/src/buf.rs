/// Activations on the CPU: `[rows, cols]`, row-major, f32.
#[derive(Debug, Clone, Default)]
pub struct Buf {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Buf {
    pub fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }
    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Contents are undefined afterwards.
    pub fn resize(&mut self, rows: usize) {
        self.rows = rows;
        self.data.resize(rows * self.cols, 0.0);
    }
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }
    pub fn data(&self) -> &[f32] {
        &self.data
    }
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }
}
