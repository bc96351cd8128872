use crate::{Bytes, PageSize, Pages, Tokens};

/// How keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvDtype {
    F32,
    F16,
    Bf16,
    /// E4M3, with a scale a token and head.
    Fp8,
    /// With a scale and a zero point a token and head.
    Int8,
}

impl KvDtype {
    /// As options and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }
    /// Bytes of one head's key (or value) of one token, its quantisation parameters included.
    pub fn vector_bytes(self, head_dim: u32) -> u64 {
        let dim = u64::from(head_dim);
        match self {
            Self::F32 => 4 * dim,
            Self::F16 | Self::Bf16 => 2 * dim,
            Self::Fp8 | Self::Int8 => dim + self.parameter_bytes(),
        }
    }

    /// Bytes of the quantisation parameters of one such vector: an f32 scale for fp8, an f16 scale and an f16
    /// zero point for int8.
    pub fn parameter_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Fp8 | Self::Int8 => 4,
        }
    }
}

/// Layers that share one page table. All pages of all groups are equal, so that they share one pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerGroup {
    /// Indices into the model's layers, in order.
    pub layers: Vec<u32>,
    /// How many positions back these layers look, the own one included; `None` looks at all of them.
    pub window: Option<Tokens>,
}

/// Why a geometry cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("a model needs at least one layer")]
    NoLayers,
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("a sliding window must hold at least 1 token (layer {layer})")]
    EmptyWindow { layer: u32 },
    #[error("the model splits into {0} layer groups; at most 65535 are possible")]
    TooManyGroups(usize),
    #[error("a page would take more bytes than fit a 64-bit count")]
    TooLarge,
}

/// The geometry of the cache of one model. A value that exists is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvSpec {
    groups: Vec<LayerGroup>,
    layers_per_page: u32,
    kv_heads: u32,
    head_dim: u32,
    dtype: KvDtype,
    page_size: PageSize,
    page_bytes: Bytes,
}

impl KvSpec {
    /// `windows` has one entry a layer: `None` where the layer attends to everything.
    ///
    /// Layers of the same window are cut into groups of `g` layers, where `g` is the largest number that divides
    /// the count of each kind: then every group's page has the same size. One group of all layers for a model
    /// of one kind; for Gemma-3-1B (4 global layers, 22 local) `g` = 2, with 2 global and 11 local groups.
    pub fn new(
        windows: &[Option<Tokens>],
        kv_heads: u32,
        head_dim: u32,
        dtype: KvDtype,
        page_size: PageSize,
    ) -> Result<Self, SpecError> {
        if windows.is_empty() {
            return Err(SpecError::NoLayers);
        }
        for (name, value) in [("the number of KV heads", kv_heads), ("the head dimension", head_dim)] {
            if value == 0 {
                return Err(SpecError::Zero(name));
            }
        }
        let kinds = layers_by_window(windows)?;
        let layers_per_page = kinds.iter().map(|kind| kind.layers.len()).fold(0, gcd);
        let groups: Vec<LayerGroup> = kinds
            .iter()
            .flat_map(|kind| {
                kind.layers
                    .chunks(layers_per_page)
                    .map(|layers| LayerGroup { layers: layers.to_vec(), window: kind.window })
            })
            .collect();
        if groups.len() > usize::from(u16::MAX) {
            return Err(SpecError::TooManyGroups(groups.len()));
        }
        let layers_per_page = layers_per_page as u32;
        let page_bytes =
            [u64::from(layers_per_page), 2, u64::from(kv_heads), u64::from(page_size.tokens().0)]
                .into_iter()
                .try_fold(dtype.vector_bytes(head_dim), u64::checked_mul)
                .map(Bytes)
                .ok_or(SpecError::TooLarge)?;
        Ok(Self { groups, layers_per_page, kv_heads, head_dim, dtype, page_size, page_bytes })
    }

    /// A model whose layers all attend to everything.
    pub fn full_attention(
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
        dtype: KvDtype,
        page_size: PageSize,
    ) -> Result<Self, SpecError> {
        Self::new(&vec![None; layers as usize], kv_heads, head_dim, dtype, page_size)
    }

    /// The same geometry in pages of another size.
    pub fn with_page_size(&self, page_size: PageSize) -> Result<Self, SpecError> {
        let mut windows = vec![None; self.groups.iter().map(|group| group.layers.len()).sum()];
        for group in &self.groups {
            group.layers.iter().for_each(|&layer| windows[layer as usize] = group.window);
        }
        Self::new(&windows, self.kv_heads, self.head_dim, self.dtype, page_size)
    }

    pub fn groups(&self) -> &[LayerGroup] {
        &self.groups
    }
    /// The groups' windows, in order: all that the logical half of the cache needs to know of them.
    pub fn windows(&self) -> Vec<Option<Tokens>> {
        self.groups.iter().map(|group| group.window).collect()
    }
    pub fn layers_per_page(&self) -> u32 {
        self.layers_per_page
    }
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }
    /// Shape of one layer's keys, or values, within a page: `[kv_heads, page_size, head_dim]`.
    pub fn plane_shape(&self) -> [u32; 3] {
        [self.kv_heads, self.page_size.tokens().0, self.head_dim]
    }
    pub fn page_bytes(&self) -> Bytes {
        self.page_bytes
    }
    /// Whole pages that fit `budget`.
    pub fn pages_in(&self, budget: Bytes) -> Pages {
        Pages(u32::try_from(budget.0 / self.page_bytes.0).unwrap_or(u32::MAX))
    }
}

/// The distinct windows in the order of their first layer, each with its layers.
fn layers_by_window(windows: &[Option<Tokens>]) -> Result<Vec<LayerGroup>, SpecError> {
    let mut kinds: Vec<LayerGroup> = Vec::new();
    for (layer, &window) in (0u32..).zip(windows) {
        if window == Some(Tokens(0)) {
            return Err(SpecError::EmptyWindow { layer });
        }
        match kinds.iter_mut().find(|kind| kind.window == window) {
            Some(kind) => kind.layers.push(layer),
            None => kinds.push(LayerGroup { layers: vec![layer], window }),
        }
    }
    Ok(kinds)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_one_kind_is_one_group_of_all_layers() {
        let spec = KvSpec::full_attention(28, 8, 128, KvDtype::Bf16, PageSize::DEFAULT).unwrap();
        assert_eq!(spec.groups().len(), 1);
        assert_eq!(spec.layers_per_page(), 28);
        assert_eq!(spec.plane_shape(), [8, 16, 128]);
        // Llama-3.2-3B: 114 688 bytes a token.
        assert_eq!(spec.page_bytes(), Bytes(16 * 114_688));
    }

    #[test]
    fn gemma_3_1b_is_two_global_and_eleven_local_groups_of_two_layers() {
        let windows: Vec<_> =
            (0..26).map(|i| if (i + 1) % 6 == 0 { None } else { Some(Tokens(512)) }).collect();
        let spec = KvSpec::new(&windows, 1, 256, KvDtype::Bf16, PageSize::DEFAULT).unwrap();
        assert_eq!(spec.layers_per_page(), 2);
        assert_eq!(spec.groups().iter().filter(|g| g.window.is_none()).count(), 2);
        assert_eq!(spec.groups().iter().filter(|g| g.window == Some(Tokens(512))).count(), 11);
        let mut layers: Vec<u32> = spec.groups().iter().flat_map(|g| g.layers.clone()).collect();
        layers.sort_unstable();
        assert_eq!(layers, (0..26).collect::<Vec<_>>());
    }

    #[test]
    fn pages_of_another_size_change_nothing_else() {
        let windows: Vec<_> = (0..6).map(|i| (i % 3 != 0).then_some(Tokens(512))).collect();
        let new = |size| KvSpec::new(&windows, 2, 64, KvDtype::Int8, PageSize::new(size).unwrap()).unwrap();
        assert_eq!(new(16).with_page_size(PageSize::new(500).unwrap()), Ok(new(500)));
    }

    #[test]
    fn a_budget_in_bytes_holds_whole_pages_only() {
        let spec = KvSpec::full_attention(1, 1, 64, KvDtype::F16, PageSize::DEFAULT).unwrap();
        let page = spec.page_bytes().0;
        assert_eq!(page, 2 * 16 * 64 * 2);
        assert_eq!(spec.pages_in(Bytes(10 * page)), Pages(10));
        assert_eq!(spec.pages_in(Bytes(10 * page - 1)), Pages(9));
        assert_eq!(spec.pages_in(Bytes(0)), Pages(0));
        assert_eq!(spec.pages_in(Bytes(u64::MAX)), Pages(u32::MAX));
    }

    #[test]
    fn eight_bit_pages_take_about_half_of_sixteen_bit_ones() {
        let bytes = |dtype| {
            KvSpec::full_attention(28, 8, 128, dtype, PageSize::DEFAULT).unwrap().page_bytes().0 as f64
        };
        for dtype in [KvDtype::Fp8, KvDtype::Int8] {
            let share = bytes(dtype) / bytes(KvDtype::F16);
            assert!((0.5..0.52).contains(&share), "{dtype:?}: {share}");
        }
    }

    #[test]
    fn geometries_that_make_no_sense_are_refused() {
        let new =
            |windows: &[_], heads, dim| KvSpec::new(windows, heads, dim, KvDtype::F32, PageSize::DEFAULT);
        assert_eq!(new(&[], 1, 1).unwrap_err(), SpecError::NoLayers);
        assert_eq!(new(&[None], 0, 1).unwrap_err(), SpecError::Zero("the number of KV heads"));
        assert_eq!(new(&[None], 1, 0).unwrap_err(), SpecError::Zero("the head dimension"));
        assert_eq!(new(&[None, Some(Tokens(0))], 1, 1).unwrap_err(), SpecError::EmptyWindow { layer: 1 });
        assert_eq!(new(&[None; 64], u32::MAX, u32::MAX).unwrap_err(), SpecError::TooLarge);
    }
}
