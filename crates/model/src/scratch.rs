use crate::ModelConfig;
use octavo_backend::{Backend, BackendError};

/// The buffers of a step, kept from step to step. In the comments: the columns.
pub(crate) struct Scratch<B: Backend> {
    /// The residual stream: hidden.
    pub x: B::Buf,
    /// What a norm made of it: hidden.
    pub normed: B::Buf,
    /// What attention or the MLP adds to it: hidden.
    pub delta: B::Buf,
    /// `[q | k | v]`.
    pub qkv: B::Buf,
    /// q heads * head dimension.
    pub attended: B::Buf,
    /// 2 * intermediate.
    pub gate_up: B::Buf,
    /// intermediate.
    pub gated: B::Buf,
    /// Cosines and sines for each of the model's ropes: head dimension.
    pub angles: Vec<B::Buf>,
    /// The rows that logits are wanted of: hidden.
    pub picked: B::Buf,
    /// vocabulary.
    pub logits: B::Buf,
}

impl<B: Backend> Scratch<B> {
    pub(crate) fn new(backend: &B, config: &ModelConfig, ropes: usize) -> Result<Self, BackendError> {
        let (hidden, heads) = (config.hidden(), config.heads());
        let buf = |cols| backend.buf(1, cols);
        Ok(Self {
            x: buf(hidden)?,
            normed: buf(hidden)?,
            delta: buf(hidden)?,
            qkv: buf(heads.qkv_cols())?,
            attended: buf(heads.q * heads.dim)?,
            gate_up: buf(2 * config.intermediate())?,
            gated: buf(config.intermediate())?,
            angles: (0..ropes).map(|_| buf(heads.dim)).collect::<Result<_, _>>()?,
            picked: buf(hidden)?,
            logits: buf(config.vocab())?,
        })
    }

    pub(crate) fn resize(&mut self, backend: &B, rows: usize, wanted: usize) -> Result<(), BackendError> {
        let all = [
            &mut self.x,
            &mut self.normed,
            &mut self.delta,
            &mut self.qkv,
            &mut self.attended,
            &mut self.gate_up,
            &mut self.gated,
        ];
        for buf in all.into_iter().chain(&mut self.angles) {
            backend.resize(buf, rows)?;
        }
        backend.resize(&mut self.picked, wanted)?;
        backend.resize(&mut self.logits, wanted)
    }
}
