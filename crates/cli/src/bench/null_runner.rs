//! A model that computes nothing: what is left is the engine.

use octavo_backend::BackendError;
use octavo_engine::{Batch, Logits, Runner};
use octavo_types::PageId;

/// Every token is as likely as any other of its vocabulary, but for one that wins.
#[derive(Debug)]
pub(super) struct NullRunner {
    row: Vec<f32>,
}

impl NullRunner {
    pub(super) fn new(vocab: usize, winner: usize) -> Self {
        let mut row = vec![0.0; vocab];
        row[winner] = 1.0;
        Self { row }
    }
}

impl Runner for NullRunner {
    fn finish(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        // Sampling without penalties leaves logits as they are: rows of the step before serve again.
        if logits.rows() != batch.wanted().len() {
            logits.clear(self.row.len());
            batch.wanted().iter().for_each(|_| logits.push(&self.row));
        }
        Ok(())
    }

    fn zero(&mut self, _: &[PageId]) -> Result<(), BackendError> {
        Ok(())
    }
    fn vocab(&self) -> usize {
        self.row.len()
    }
    fn device(&self) -> String {
        "nothing".into()
    }
}
