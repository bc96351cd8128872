use crate::ModelConfig;
use crate::scratch::{Scratch, Stream};
use octavo_backend::{AttentionSpec, Backend, BackendError, Choice, NormSpec, Rows, TableView};

/// One layer's weights, and where its keys and values lie.
pub(crate) struct Layer<B: Backend> {
    /// Index of its rope among the model's.
    pub rope: usize,
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
    pub ropes: Vec<Turning>,
}

/// The step as the layers see it.
pub(crate) struct Batch<'a, B: Backend> {
    pub rows: Rows<'a>,
    /// For each layer group, a table for each span.
    pub tables: &'a [&'a [TableView<'a>]],
    pub arena: &'a mut B::Arena,
    /// The rows that logits are wanted of.
    pub wanted: &'a [u32],
    /// Whether those are all rows, in order.
    pub every: bool,
    /// How the token after each of them is chosen; empty where none is.
    pub choices: &'a [Choice],
}

impl<B: Backend> Decoder<B> {
    /// From tokens to logits, which are left in `scratch`.
    pub(crate) fn step(
        &self,
        backend: &B,
        s: &mut Scratch<B>,
        mut batch: Batch<'_, B>,
    ) -> Result<(), BackendError> {
        let (last, others) = self.layers.split_last().expect("a model has a layer");
        self.start(backend, s, batch.rows)?;
        for (layer, next) in others.iter().zip(&self.layers[1..]) {
            self.store(backend, s, layer, &mut batch)?;
            self.attend(backend, s, layer, &batch)?;
            self.conclude(backend, &mut s.all, layer, &next.input_norm)?;
        }
        self.store(backend, s, last, &mut batch)?;
        if batch.wanted.is_empty() {
            return Ok(());
        }
        self.attend(backend, s, last, &batch)?;
        let stream = if batch.every {
            &mut s.all
        } else {
            backend.pick_rows(&s.all.x, batch.wanted, &mut s.wanted.x)?;
            backend.pick_rows(&s.all.attended, batch.wanted, &mut s.wanted.attended)?;
            &mut s.wanted
        };
        self.conclude(backend, stream, last, &self.final_norm)?;
        backend.linear(self.head.as_ref().unwrap_or(&self.embedding), &stream.normed, &mut s.logits)?;
        match batch.choices {
            [] => Ok(()),
            choices => backend.choose(&s.logits, choices),
        }
    }

    fn norm<'a>(&self, weight: &'a B::Vector) -> NormSpec<'a, B::Vector> {
        NormSpec { weight, eps: self.config.norm_eps() }
    }

    fn attention_spec(&self, layer: &Layer<B>) -> AttentionSpec {
        AttentionSpec {
            heads: self.config.heads(),
            scale: self.config.attention_scale(),
            window: layer.place.window,
            layer: layer.place.layer,
        }
    }

    /// Angles, embeddings, and the first norm.
    fn start(&self, backend: &B, s: &mut Scratch<B>, rows: Rows<'_>) -> Result<(), BackendError> {
        for (rope, angles) in self.ropes.iter().zip(&mut s.angles) {
            backend.angles(rows.spans, &rope.inv_freq, rope.scale, angles)?;
        }
        backend.embed(&self.embedding, rows.tokens, self.embedding_scale, &mut s.all.x)?;
        backend.rms_norm(&s.all.x, self.norm(&self.layers[0].input_norm), &mut s.all.normed)
    }

    /// From `normed`, the layer's input, to queries in `qkv`, and keys and values in the pages.
    fn store(
        &self,
        backend: &B,
        s: &mut Scratch<B>,
        layer: &Layer<B>,
        batch: &mut Batch<'_, B>,
    ) -> Result<(), BackendError> {
        let spec = self.attention_spec(layer);
        let norms = layer.head_norms.as_ref().map(|[q, k]| [self.norm(q), self.norm(k)]);
        let angles = &s.angles[layer.rope];
        let tables = batch.tables[layer.place.group];
        backend.linear(&layer.qkv, &s.all.normed, &mut s.qkv)?;
        backend.rotate_and_store(&mut s.qkv, norms, angles, &spec, batch.rows, tables, batch.arena)
    }

    /// From queries to `attended`.
    fn attend(
        &self,
        backend: &B,
        s: &mut Scratch<B>,
        layer: &Layer<B>,
        batch: &Batch<'_, B>,
    ) -> Result<(), BackendError> {
        let spec = self.attention_spec(layer);
        let tables = batch.tables[layer.place.group];
        backend.attention(&s.qkv, &spec, batch.rows, tables, batch.arena, &mut s.all.attended)
    }

    /// From `x` and `attended` to the layer's output in `x`, and in `normed` what the norm that comes `next` makes of it.
    fn conclude(
        &self,
        backend: &B,
        s: &mut Stream<B>,
        layer: &Layer<B>,
        next: &B::Vector,
    ) -> Result<(), BackendError> {
        let after_attention = layer.after_attention.as_ref().map(|weight| self.norm(weight));
        let after_mlp = layer.after_mlp.as_ref().map(|weight| self.norm(weight));
        let before_mlp = self.norm(&layer.before_mlp);
        backend.linear_short(&layer.o, &s.attended, &mut s.delta)?;
        backend.add_rms_norm(&mut s.x, &s.delta, after_attention, before_mlp, &mut s.normed)?;
        let act = self.config.activation();
        backend.linear_gated(act, &layer.gate_up, &s.normed, &mut s.gate_up, &mut s.gated)?;
        backend.linear_short(&layer.down, &s.gated, &mut s.delta)?;
        backend.add_rms_norm(&mut s.x, &s.delta, after_mlp, self.norm(next), &mut s.normed)
    }
}
