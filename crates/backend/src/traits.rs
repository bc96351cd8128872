use crate::{Choice, PageLayout, Pass, Rows, Span, Step, TableView, TensorRef, WeightFormat};
use octavo_types::{PageId, Pages, SlotId};

/// Why an operation could not be done.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("{what} is not supported here: {instead}")]
    Unsupported { what: String, instead: String },
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("the device failed: {0}")]
    Device(String),
    /// Nothing that is asked of it from here on will be done.
    #[error("the device is lost, and only a new process can use it again: {0}")]
    Lost(String),
}

impl BackendError {
    fn no_choosing() -> Self {
        Self::Unsupported { what: "choosing tokens on the device".into(), instead: "read the logits".into() }
    }
}

/// Query and key-value heads of an attention layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    pub q: usize,
    pub kv: usize,
    pub dim: usize,
}

impl Heads {
    /// Columns of a fused `[q | k | v]` row.
    pub fn qkv_cols(&self) -> usize {
        (self.q + 2 * self.kv) * self.dim
    }
    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.q / self.kv
    }
}

/// `y = x / sqrt(mean(x²) + eps) * w`.
#[derive(Debug)]
pub struct NormSpec<'a, V> {
    /// As multiplied: for models that store `w - 1` the loader has added the one.
    pub weight: &'a V,
    pub eps: f32,
}

impl<V> Clone for NormSpec<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for NormSpec<'_, V> {}

/// What a gate does to its half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    Silu,
    /// The tanh approximation.
    Gelu,
}

/// Attention of one layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionSpec {
    pub heads: Heads,
    /// Multiplies every score.
    pub scale: f32,
    /// Positions a token sees, its own included; `None` sees all.
    pub window: Option<u32>,
    /// The layer within its group's page.
    pub layer: usize,
}

/// What a model needs of a device. Matrices are row-major, one row a token of the batch; `_cols` in a comment is the
/// width of a buffer. A shape that does not fit is a bug of the caller and panics.
pub trait Backend: Send {
    /// Activations: `[rows, cols]`.
    type Buf: Send;
    /// Weights `[out, in]`, kept as the device likes them.
    type Matrix: Send + Sync;
    /// Weights of a norm.
    type Vector: Send + Sync;
    /// The bytes of all pages.
    type Arena: Send;

    fn name(&self) -> String;
    /// Whether operations return before they are carried out, so that whoever calls them can do something else
    /// until it reads a result.
    fn works_meanwhile(&self) -> bool {
        false
    }

    // Memory.
    fn buf(&self, rows: usize, cols: usize) -> Result<Self::Buf, BackendError>;
    /// Changes the number of rows, keeping the columns; contents are undefined. Cheap up to the largest size so far.
    fn resize(&self, buf: &mut Self::Buf, rows: usize) -> Result<(), BackendError>;
    /// The parts one below the other as one matrix: they have equal columns and types.
    fn matrix(&self, parts: &[TensorRef<'_>], format: WeightFormat) -> Result<Self::Matrix, BackendError>;
    /// One row; `plus` is added to each element.
    fn vector(&self, values: TensorRef<'_>, plus: f32) -> Result<Self::Vector, BackendError>;
    /// Room for `pages`, committed as it is first touched where the device can. What it holds at first is undefined.
    fn arena(&self, layout: PageLayout, pages: Pages) -> Result<Self::Arena, BackendError>;
    /// The buffer's rows, all of them, in place of what `out` held.
    fn read(&self, buf: &Self::Buf, out: &mut Vec<f32>) -> Result<(), BackendError>;

    // Steps. A device may record what the operations of a step launch and replay it for later steps of the same
    // kind. Whoever runs a model asks `step_rows`, sizes the buffers, calls `begin`, and then calls the operations
    // and `end` for as long as it is told to.
    /// The rows that the step's buffers must have: its own, or more where it is filled up to a recorded size. The
    /// results of rows beyond its own are undefined.
    fn step_rows(&self, step: &Step<'_, Self::Arena>) -> usize {
        step.rows.tokens.len()
    }
    fn begin(&self, step: &Step<'_, Self::Arena>) -> Result<Pass, BackendError> {
        let _ = step;
        Ok(Pass::Run)
    }
    /// The operations have been called, and `ran` is how that went.
    fn end(&self, ran: Result<(), BackendError>) -> Result<Pass, BackendError> {
        ran.map(|()| Pass::Done)
    }

    /// Whether the first step of a kind takes longer than those after it: something is compiled, measured or recorded.
    fn warms_up(&self) -> bool {
        false
    }
    /// From `true` on, operations are not run: the device notes what they will need, and gets all of it ready when that
    /// ends, with `false`. Results in between are undefined, and so is what they wrote to afterwards.
    fn rehearse(&self, begins: bool) -> Result<(), BackendError> {
        let _ = begins;
        Ok(())
    }

    // Choosing, where the device does it.
    /// Whether the three operations below are there; where not, whoever runs the model chooses from the logits.
    fn chooses(&self) -> bool {
        false
    }
    /// Starts choosing a token for each row of `logits`; rows beyond the `choices` get any.
    fn choose(&self, logits: &Self::Buf, choices: &[Choice]) -> Result<(), BackendError> {
        let _ = (logits, choices);
        Err(BackendError::no_choosing())
    }
    /// The first `count` tokens of the last `choose`: exactly those of [`Choice::of`], or `None` where only the
    /// whole row tells, or there is none.
    fn chosen(&self, count: usize) -> Result<Vec<Option<u32>>, BackendError> {
        let _ = count;
        Err(BackendError::no_choosing())
    }
    /// One row of a buffer, in place of what `out` held.
    fn read_row(&self, buf: &Self::Buf, row: usize, out: &mut Vec<f32>) -> Result<(), BackendError> {
        let _ = (buf, row, out);
        Err(BackendError::no_choosing())
    }

    // Computing.
    /// `out[i] = table[tokens[i]] * scale`.
    fn embed(
        &self,
        table: &Self::Matrix,
        tokens: &[u32],
        scale: f32,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError>;
    fn rms_norm(
        &self,
        x: &Self::Buf,
        norm: NormSpec<'_, Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError>;
    /// `x += delta`, or `x += norm(delta)` where `before` is given; then `out = norm(x)`.
    fn add_rms_norm(
        &self,
        x: &mut Self::Buf,
        delta: &Self::Buf,
        before: Option<NormSpec<'_, Self::Vector>>,
        norm: NormSpec<'_, Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError>;
    /// `out = x · wᵀ`.
    fn linear(&self, w: &Self::Matrix, x: &Self::Buf, out: &mut Self::Buf) -> Result<(), BackendError>;
    /// The same for what `gated` or `add_rms_norm` reads, where a back end may keep fewer bits of a result.
    fn linear_short(&self, w: &Self::Matrix, x: &Self::Buf, out: &mut Self::Buf) -> Result<(), BackendError> {
        self.linear(w, x, out)
    }
    /// `gate_up` is `[gate | up]`; `out = act(gate) * up`, half as wide.
    fn gated(&self, act: Activation, gate_up: &Self::Buf, out: &mut Self::Buf) -> Result<(), BackendError>;
    /// `gated` of `x · wᵀ`, for which `gate_up` is room: what it holds afterwards is undefined.
    fn linear_gated(
        &self,
        act: Activation,
        w: &Self::Matrix,
        x: &Self::Buf,
        gate_up: &mut Self::Buf,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        self.linear_short(w, x, gate_up)?;
        self.gated(act, gate_up, out)
    }
    /// The rows of `x` listed in `rows`, in that order.
    fn pick_rows(&self, x: &Self::Buf, rows: &[u32], out: &mut Self::Buf) -> Result<(), BackendError>;

    // Attention.
    /// Cosines and sines of every row's position, `[rows, 2 * inv_freq.len()]`, once a step for all layers:
    /// `scale * cos(position * inv_freq[i])`, then the sines. The product of position and frequency is rounded to f32.
    fn angles(
        &self,
        spans: &[Span],
        inv_freq: &[f32],
        scale: f32,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError>;
    /// For every row of `qkv` (`[q | k | v]`): norms each query and key head where norms are given, rotates them
    /// (first half against second half of the head), leaves the queries in place, and encodes keys and values into
    /// the pages. What the columns of keys and values hold afterwards is undefined.
    #[allow(clippy::too_many_arguments, reason = "one fused kernel, and these are its operands")]
    fn rotate_and_store(
        &self,
        qkv: &mut Self::Buf,
        norms: Option<[NormSpec<'_, Self::Vector>; 2]>,
        angles: &Self::Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut Self::Arena,
    ) -> Result<(), BackendError>;
    /// `out = softmax(q · kᵀ * scale) · v` for every row and query head, over the stored positions from the start of
    /// the window up to the row's own; `out` is `[rows, heads.q * heads.dim]`.
    fn attention(
        &self,
        qkv: &Self::Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &Self::Arena,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError>;

    // Pages.
    /// `(from, to, slots)`: copies the first `slots` of `from` to `to`, in all layers, one copy after another. What
    /// the other slots of `to` hold afterwards is undefined.
    fn copy_pages(
        &self,
        arena: &mut Self::Arena,
        copies: &[(PageId, PageId, usize)],
    ) -> Result<(), BackendError>;
    fn zero_pages(&self, arena: &mut Self::Arena, pages: &[PageId]) -> Result<(), BackendError>;
    /// Keys, then values, of one layer of a table, decoded, in token order: each `[len, kv_heads, head_dim]`, where
    /// `len` is that of `positions`. Exactly what [`codec::decode`](crate::codec::decode) gives.
    fn gather(
        &self,
        arena: &Self::Arena,
        layer: usize,
        table: TableView<'_>,
        positions: std::ops::Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError>;
    /// Encodes keys and values as they are, each `[slots.len(), kv_heads, head_dim]`, into one layer's `slots`, in
    /// order: where two rows have the same slot the later one stays. Exactly the bytes that
    /// [`codec::encode`](crate::codec::encode) gives.
    fn scatter(
        &self,
        arena: &mut Self::Arena,
        layer: usize,
        slots: &[SlotId],
        kv: [&[f32]; 2],
    ) -> Result<(), BackendError>;
}
