//! `expected.json` of a fixture model: see `tools/make_fixtures.py`.

use base64::Engine;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
pub(crate) struct Expected {
    pub(crate) prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Position of the first row of logits.
    pub(crate) first_row: usize,
    logits: String,
    pub(crate) greedy: Vec<u32>,
}

impl Expected {
    pub(crate) fn read(dir: &Path) -> Self {
        serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap()
    }
}

impl Prompt {
    /// The logits of the rows from `first_row` on.
    pub(crate) fn logits(&self, vocab: usize) -> Vec<Vec<f32>> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.logits).unwrap();
        let (values, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        let values: Vec<f32> = values.iter().map(|&value| f32::from_le_bytes(value)).collect();
        let rows: Vec<Vec<f32>> = values.chunks(vocab).map(<[f32]>::to_vec).collect();
        assert_eq!(rows.len(), self.tokens.len() - self.first_row);
        rows
    }
}
