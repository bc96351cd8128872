use crate::ModelConfig;
use octavo_backend::{Backend, BackendError};

/// The buffers of a step, kept from step to step. In the comments: the columns.
pub(crate) struct Scratch<B: Backend> {
    /// All rows of the step.
    pub all: Stream<B>,
    /// The rows that logits are wanted of: after the last attention the others have done their part.
    pub wanted: Stream<B>,
    /// `[q | k | v]`.
    pub qkv: B::Buf,
    /// Cosines and sines for each of the model's ropes: head dimension.
    pub angles: Vec<B::Buf>,
    /// vocabulary.
    pub logits: B::Buf,
}

/// What flows from layer to layer.
pub(crate) struct Stream<B: Backend> {
    /// The residual stream: hidden.
    pub x: B::Buf,
    /// What a norm made of it: hidden.
    pub normed: B::Buf,
    /// What attention or the MLP adds to it: hidden.
    pub delta: B::Buf,
    /// q heads * head dimension.
    pub attended: B::Buf,
    /// 2 * intermediate.
    pub gate_up: B::Buf,
    /// intermediate.
    pub gated: B::Buf,
}

impl<B: Backend> Scratch<B> {
    pub(crate) fn new(backend: &B, config: &ModelConfig, ropes: usize) -> Result<Self, BackendError> {
        let heads = config.heads();
        let buf = |cols| backend.buf(1, cols);
        Ok(Self {
            all: Stream::new(backend, config)?,
            wanted: Stream::new(backend, config)?,
            qkv: buf(heads.qkv_cols())?,
            angles: (0..ropes).map(|_| buf(heads.dim)).collect::<Result<_, _>>()?,
            logits: buf(config.vocab())?,
        })
    }

    pub(crate) fn resize(&mut self, backend: &B, rows: usize, wanted: usize) -> Result<(), BackendError> {
        self.all.resize(backend, rows)?;
        self.wanted.resize(backend, wanted)?;
        backend.resize(&mut self.qkv, rows)?;
        self.angles.iter_mut().try_for_each(|angles| backend.resize(angles, rows))?;
        backend.resize(&mut self.logits, wanted)
    }
}

impl<B: Backend> Stream<B> {
    fn new(backend: &B, config: &ModelConfig) -> Result<Self, BackendError> {
        let (hidden, heads) = (config.hidden(), config.heads());
        let buf = |cols| backend.buf(1, cols);
        Ok(Self {
            x: buf(hidden)?,
            normed: buf(hidden)?,
            delta: buf(hidden)?,
            attended: buf(heads.q * heads.dim)?,
            gate_up: buf(2 * config.intermediate())?,
            gated: buf(config.intermediate())?,
        })
    }

    fn resize(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        let Self { x, normed, delta, attended, gate_up, gated } = self;
        [x, normed, delta, attended, gate_up, gated].into_iter().try_for_each(|buf| backend.resize(buf, rows))
    }
}
