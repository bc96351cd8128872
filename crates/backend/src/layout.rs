use octavo_types::{KvDtype, KvSpec};

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    Key,
    Value,
}

/// Where things lie within a page.
///
/// ```text
///   [layer][K|V][kv_head][slot][head_dim]        elements, densely
///   [layer][K|V][kv_head][slot][parameters]      at the end, for the quantised precisions only
/// ```
///
/// A page is one contiguous run of bytes; `layer` counts the layers of one group, not of the model. Within
/// `[slot][head_dim]` of a head's keys a back end may keep another order: what it is handed, and hands out, are rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLayout {
    pub layers: usize,
    pub kv_heads: usize,
    pub page_size: usize,
    pub head_dim: usize,
    pub dtype: KvDtype,
}

impl PageLayout {
    pub fn new(spec: &KvSpec) -> Self {
        let [kv_heads, page_size, head_dim] = spec.plane_shape().map(|n| n as usize);
        Self { layers: spec.layers_per_page() as usize, kv_heads, page_size, head_dim, dtype: spec.dtype() }
    }

    pub fn element_bytes(&self) -> usize {
        crate::codec::element_bytes(self.dtype)
    }

    /// Bytes of one head's key (or value) of one token, without parameters: the distance from slot to slot where they lie
    /// in rows.
    pub fn row_bytes(&self) -> usize {
        self.head_dim * self.element_bytes()
    }

    /// Bytes of the parameters of one row; 0 where there are none.
    pub fn parameter_bytes(&self) -> usize {
        self.dtype.parameter_bytes() as usize
    }

    fn vectors(&self) -> usize {
        self.layers * 2 * self.kv_heads * self.page_size
    }

    /// Offsets in the page are below it. Panics where it does not fit: who makes pages asks for it first.
    pub fn page_bytes(&self) -> usize {
        let row = self.head_dim.checked_mul(self.element_bytes());
        let row = row.and_then(|bytes| bytes.checked_add(self.parameter_bytes()));
        let parts = [self.layers, 2, self.kv_heads, self.page_size];
        let page = parts.into_iter().fold(row, |bytes, part| bytes?.checked_mul(part));
        page.unwrap_or_else(|| panic!("a page of {self:?} has more bytes than can be counted"))
    }

    /// Offset in the page of a head's `page_size` rows, densely.
    pub fn rows_at(&self, layer: usize, half: Half, head: usize) -> usize {
        self.plane(layer, half, head) * self.row_bytes()
    }

    /// Offset in the page of the parameters of slot 0 of a head; those of the other slots follow densely.
    pub fn parameters_at(&self, layer: usize, half: Half, head: usize) -> usize {
        self.vectors() * self.row_bytes() + self.plane(layer, half, head) * self.parameter_bytes()
    }

    /// Index of a head's slot 0 among all vectors of the page.
    fn plane(&self, layer: usize, half: Half, head: usize) -> usize {
        assert!(layer < self.layers && head < self.kv_heads, "layer {layer}, head {head} of {self:?}");
        ((layer * 2 + usize::from(half == Half::Value)) * self.kv_heads + head) * self.page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_types::PageSize;

    #[test]
    fn planes_tile_the_page_without_gap_or_overlap() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
            let spec = KvSpec::full_attention(3, 2, 96, dtype, PageSize::DEFAULT).unwrap();
            let layout = PageLayout::new(&spec);
            assert_eq!(layout.page_bytes() as u64, spec.page_bytes().0);
            let (mut rows, mut parameters) = (0, layout.vectors() * layout.row_bytes());
            for layer in 0..3 {
                for half in [Half::Key, Half::Value] {
                    for head in 0..2 {
                        assert_eq!(layout.rows_at(layer, half, head), rows);
                        assert_eq!(layout.parameters_at(layer, half, head), parameters);
                        rows += 16 * layout.row_bytes();
                        parameters += 16 * layout.parameter_bytes();
                    }
                }
            }
            assert_eq!(parameters, layout.page_bytes());
        }
    }

    #[test]
    #[should_panic = "has more bytes than can be counted"]
    fn a_page_beyond_the_address_space_is_refused() {
        let layout =
            PageLayout { layers: 1 << 62, kv_heads: 1, page_size: 2, head_dim: 1, dtype: KvDtype::F32 };
        layout.page_bytes();
    }
}
