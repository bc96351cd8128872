use crate::scratch::Scratch;
use crate::{ModelConfig, RopeKind};
use octavo_backend::{AttentionSpec, Backend, BackendError, NormSpec, Rows, TableView};

/// One layer's weights, and where its keys and values lie.
pub(crate) struct Layer<B: Backend> {
    pub rope: RopeKind,
    pub place: Place,
    pub input_norm: B::Vector,
    pub qkv: B::Matrix,
    pub head_norms: Option<[B::Vector; 2]>,
    pub o: B::Matrix,
    pub after_attention: Option<B::Vector>,
    pub before_mlp: B::Vector,
    pub gate_up: B::Matrix,
    pub down: B::Matrix,
    pub after_mlp: Option<B::Vector>,
}

/// Where a layer's keys and values lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The layer group whose page tables it uses.
    pub group: usize,
    /// The layer within that group's pages.
    pub layer: usize,
    pub window: Option<u32>,
}

/// Angles a position of one of the model's ropes.
pub(crate) struct Turning {
    pub kind: RopeKind,
    pub inv_freq: Vec<f32>,
    pub scale: f32,
}

/// The weights of a model, and the arithmetic of a step over them. There is one for all architectures: see
/// [`Block`](crate::block::Block) for what differs.
pub(crate) struct Decoder<B: Backend> {
    pub config: ModelConfig,
    pub embedding: B::Matrix,
    pub embedding_scale: f32,
    pub layers: Vec<Layer<B>>,
    pub final_norm: B::Vector,
    /// `None` where the embedding is the head.
    pub head: Option<B::Matrix>,
    /// Those that some layer uses.
    pub ropes: Vec<Turning>,
}

impl<B: Backend> Decoder<B> {
    /// From tokens to the logits of the rows in `wanted`, which are left in `scratch`.
    pub(crate) fn step(
        &self,
        backend: &B,
        scratch: &mut Scratch<B>,
        rows: Rows<'_>,
        tables: &[&[TableView<'_>]],
        arena: &mut B::Arena,
        wanted: &[u32],
    ) -> Result<(), BackendError> {
        self.start(backend, scratch, rows)?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.attention(backend, scratch, layer, rows, tables[layer.place.group], arena)?;
            let next = self.layers.get(i + 1).map_or(&self.final_norm, |next| &next.input_norm);
            self.mlp(backend, scratch, layer, next)?;
        }
        self.logits(backend, scratch, wanted)
    }

    fn norm<'a>(&self, weight: &'a B::Vector) -> NormSpec<'a, B::Vector> {
        NormSpec { weight, eps: self.config.norm_eps() }
    }

    /// Angles, embeddings, and the first norm.
    fn start(&self, backend: &B, s: &mut Scratch<B>, rows: Rows<'_>) -> Result<(), BackendError> {
        for (rope, angles) in self.ropes.iter().zip(&mut s.angles) {
            backend.angles(rows.spans, &rope.inv_freq, rope.scale, angles)?;
        }
        backend.embed(&self.embedding, rows.tokens, self.embedding_scale, &mut s.x)?;
        backend.rms_norm(&s.x, self.norm(&self.layers[0].input_norm), &mut s.normed)
    }

    /// From `normed`, the layer's input, to `normed`, the MLP's.
    fn attention(
        &self,
        backend: &B,
        s: &mut Scratch<B>,
        layer: &Layer<B>,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut B::Arena,
    ) -> Result<(), BackendError> {
        let spec = AttentionSpec {
            heads: self.config.heads(),
            scale: self.config.attention_scale(),
            window: layer.place.window,
            layer: layer.place.layer,
        };
        let head_norms = layer.head_norms.as_ref().map(|[q, k]| [self.norm(q), self.norm(k)]);
        let angles = &s.angles[self.rope_of(layer)];
        backend.linear(&layer.qkv, &s.normed, &mut s.qkv)?;
        backend.rotate_and_store(&mut s.qkv, head_norms, angles, &spec, rows, tables, arena)?;
        backend.attention(&s.qkv, &spec, rows, tables, arena, &mut s.attended)?;
        backend.linear(&layer.o, &s.attended, &mut s.delta)?;
        let after = layer.after_attention.as_ref().map(|weight| self.norm(weight));
        backend.add_rms_norm(&mut s.x, &s.delta, after, self.norm(&layer.before_mlp), &mut s.normed)
    }

    fn rope_of(&self, layer: &Layer<B>) -> usize {
        self.ropes.iter().position(|rope| rope.kind == layer.rope).expect("made from the layers")
    }

    /// From `normed`, the MLP's input, to `normed`, that of whatever comes `next`.
    fn mlp(
        &self,
        backend: &B,
        s: &mut Scratch<B>,
        layer: &Layer<B>,
        next: &B::Vector,
    ) -> Result<(), BackendError> {
        backend.linear(&layer.gate_up, &s.normed, &mut s.gate_up)?;
        backend.gated(self.config.activation(), &s.gate_up, &mut s.gated)?;
        backend.linear(&layer.down, &s.gated, &mut s.delta)?;
        let after = layer.after_mlp.as_ref().map(|weight| self.norm(weight));
        backend.add_rms_norm(&mut s.x, &s.delta, after, self.norm(next), &mut s.normed)
    }

    fn logits(&self, backend: &B, s: &mut Scratch<B>, wanted: &[u32]) -> Result<(), BackendError> {
        if wanted.is_empty() {
            return Ok(());
        }
        backend.pick_rows(&s.normed, wanted, &mut s.picked)?;
        backend.linear(self.head.as_ref().unwrap_or(&self.embedding), &s.picked, &mut s.logits)
    }
}
