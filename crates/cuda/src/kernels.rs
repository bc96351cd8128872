//! The texts of `cu/` and how one becomes a program: options as `#define`s, then the text with its includes in place.

use crate::precision::Precision;
use crate::values::CudaBuf;
use octavo_backend::PageLayout;
use octavo_types::KvDtype;

/// One entry of a text, for one choice of options. Two that are equal are the same program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Kernel {
    /// Of the file, `cu/{name}.cu`, and of its entry, `octavo_{name}`.
    pub(crate) name: &'static str,
    args_bytes: usize,
    head: Option<HeadOptions>,
    /// May be launched before the kernel before it has ended, for which it waits itself.
    pub(crate) overlaps: bool,
    /// Of products of few rows: what is written is what a gate makes of them.
    gated: bool,
    /// Of products of few rows: stretches of columns, whose sums lie apart.
    cuts: Option<usize>,
    numbers: Option<NumberOptions>,
    product: Option<ProductOptions>,
    norm: Option<NormOptions>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) several: Option<SeveralOptions>,
    pub(crate) attention: Option<AttentionOptions>,
    chunk: Option<ChunkOptions>,
}

/// For kernels that know how keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HeadOptions {
    pub(crate) dim: usize,
    pub(crate) dtype: KvDtype,
}

/// Of kernels that would otherwise have code for every kind of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NumberOptions {
    /// Of those that have sixteen bits.
    pub(crate) short: Precision,
    /// They come by fours.
    pub(crate) fours: bool,
}

/// Of kernels that read a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ProductOptions {
    pub(crate) parts: usize,
    pub(crate) precision: Precision,
}

impl ProductOptions {
    pub(crate) const WHOLE: Self = Self { parts: 1, precision: Precision::F32 };

    pub(crate) fn of(product: &CudaBuf) -> Self {
        Self { parts: product.parts(), precision: product.precision() }
    }
}

/// Of `cu/norm.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NormOptions {
    /// Fours of columns that a thread keeps.
    pub(crate) kept: usize,
    /// Blocks on a multiprocessor at least: bounds registers and threads.
    pub(crate) min_blocks: usize,
    /// What is added is normed itself.
    pub(crate) before: bool,
    /// Of what is normed.
    pub(crate) precision: Precision,
}

impl NormOptions {
    /// Of a multiprocessor's blocks together.
    pub(crate) const MOST_THREADS: usize = 1024;

    /// The most threads of a block.
    pub(crate) fn most_threads(&self) -> u32 {
        (Self::MOST_THREADS / self.min_blocks) as u32
    }
}

/// Of `cu/stream.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamOptions {
    pub(crate) rows: usize,
    /// Sixteens of outputs of a unit.
    pub(crate) sixteens: usize,
    pub(crate) warps: usize,
    /// Chunks of columns that are copied ahead.
    pub(crate) depth: usize,
    pub(crate) min_blocks: usize,
}

impl StreamOptions {
    /// Columns of a chunk.
    pub(crate) const CHUNK: usize = 32;

    /// Bytes of shared memory.
    pub(crate) fn shared(&self) -> usize {
        // Of a warp, as in `cu/stream.cu`: a ring of chunks, and its sums, `LINE` numbers for every row, or every output.
        let tiles = self.rows.div_ceil(8);
        let chunk = 512 * (2 * self.sixteens + if tiles > 1 { tiles } else { 0 });
        let outputs = 16 * self.sixteens;
        let results = if tiles > 1 { self.rows * (outputs + 4) } else { outputs * 9 };
        self.warps * (self.depth * chunk + results * 4)
    }
}

/// Of `cu/several.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SeveralOptions {
    pub(crate) rows: usize,
    /// Sixteens of outputs of a unit.
    pub(crate) sixteens: usize,
    pub(crate) warps: usize,
    /// Chunks of weights that are copied ahead.
    pub(crate) depth: usize,
    /// Chunks of rows that are loaded at once.
    pub(crate) group: usize,
    /// Whether a block has one unit, and a warp one group of it.
    pub(crate) once: bool,
    pub(crate) min_blocks: usize,
}

impl SeveralOptions {
    /// Bytes of shared memory: a ring for each warp and its sums, `LINE` numbers for every row, which take the ring's
    /// place where a block has one unit.
    pub(crate) fn shared(&self, one_unit: bool) -> usize {
        let ring = self.warps * self.depth * 1024 * self.sixteens;
        let results = self.warps * self.rows * (16 * self.sixteens + 4) * 4;
        if one_unit { ring.max(results) } else { ring + results }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AttentionOptions {
    /// Columns of a block, in eights.
    pub(crate) blocks: usize,
    pub(crate) warps: usize,
    pub(crate) stages: usize,
    /// Blocks on a multiprocessor at least: bounds the registers.
    pub(crate) min_blocks: usize,
    pub(crate) paging: Paging,
    /// Query heads of a group.
    pub(crate) group: usize,
    pub(crate) kv_heads: usize,
}

/// How pages lie to tiles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Paging {
    /// A tile may lie in several pages.
    Small,
    /// A page is a tile.
    Tiles,
    /// A page is some tiles.
    Large,
}

/// Of `cu/attention_chunk.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkOptions {
    /// Strips of sixteen lines for each warp.
    pub strips: usize,
    pub warps: usize,
    /// Positions of a span.
    pub span: usize,
    pub stages: usize,
    pub min_blocks: usize,
    /// Half of the warps is behind the others by half a span.
    pub staggered: bool,
    /// Warps multiply in groups of four: see `cu/group.cuh`. Then all are staggered.
    pub grouped: bool,
}

impl Kernel {
    /// The entry of `cu/{name}.cu` that takes an `A`.
    pub(crate) const fn new<A>(name: &'static str) -> Self {
        Self {
            name,
            args_bytes: size_of::<A>(),
            overlaps: false,
            gated: false,
            cuts: None,
            head: None,
            numbers: None,
            product: None,
            norm: None,
            stream: None,
            several: None,
            attention: None,
            chunk: None,
        }
    }

    pub(crate) fn with_head(self, layout: &PageLayout) -> Self {
        Self { head: Some(HeadOptions { dim: layout.head_dim, dtype: layout.dtype }), ..self }
    }

    pub(crate) const fn overlapping(self) -> Self {
        Self { overlaps: true, ..self }
    }

    pub(crate) fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    pub(crate) fn in_parts(self, parts: usize) -> Self {
        Self { cuts: Some(parts), ..self }
    }

    pub(crate) fn with_numbers(self, numbers: NumberOptions) -> Self {
        Self { numbers: Some(numbers), ..self }
    }

    pub(crate) fn with_product(self, product: ProductOptions) -> Self {
        Self { product: Some(product), ..self }
    }

    pub(crate) fn with_norm(self, norm: NormOptions) -> Self {
        Self { norm: Some(norm), ..self }
    }

    pub(crate) fn with_stream(self, stream: StreamOptions) -> Self {
        Self { stream: Some(stream), ..self }
    }

    pub(crate) fn with_several(self, several: SeveralOptions) -> Self {
        Self { several: Some(several), ..self }
    }

    pub(crate) fn with_attention(self, attention: AttentionOptions) -> Self {
        Self { attention: Some(attention), ..self }
    }

    pub(crate) fn with_chunk(self, chunk: ChunkOptions) -> Self {
        Self { chunk: Some(chunk), ..self }
    }

    #[cfg(test)]
    pub(crate) fn args_bytes(&self) -> usize {
        self.args_bytes
    }

    pub(crate) fn entry(&self) -> String {
        format!("octavo_{}", self.name)
    }

    /// The whole text, options first.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.options() {
            text += &format!("#define {name} {value}\n");
        }
        expand(&format!("{}.cu", self.name), &mut Vec::new(), &mut text);
        text
    }

    /// Whether attention has as little code as can be. Steps are faster so, most likely because code is fetched at every
    /// launch. Over keys and values of a byte it is slower: it was measured at 1.48 and 1.38 times the tokens of those of
    /// two bytes, instead of 1.74 and 1.77.
    fn is_lean(&self) -> bool {
        self.head.is_some_and(|head| !matches!(head.dtype, KvDtype::Fp8 | KvDtype::Int8))
    }

    fn options(&self) -> Vec<(&'static str, usize)> {
        let mut options = vec![("ARGS_BYTES", self.args_bytes)];
        if let Some(head) = self.head {
            options.extend([("HEAD_DIM", head.dim), ("KV", codec_number(head.dtype))]);
        }
        options.extend(self.cuts.map(|parts| ("CUTS", parts)));
        if let Some(numbers) = self.numbers {
            options.extend([("SHORT", numbers.short as usize), ("WHOLE_FOURS", usize::from(numbers.fours))]);
        }
        if let Some(norm) = self.norm {
            options.extend([
                ("KEPT", norm.kept),
                ("MIN_BLOCKS", norm.min_blocks),
                ("BEFORE", usize::from(norm.before)),
                ("X_PRECISION", norm.precision as usize),
            ]);
        }
        if let Some(product) = self.product {
            options.extend([("PARTS", product.parts), ("PRODUCT", product.precision as usize)]);
        }
        if let Some(stream) = self.stream {
            options.extend([
                ("ROWS", stream.rows),
                ("SIXTEENS", stream.sixteens),
                ("WARPS", stream.warps),
                ("DEPTH", stream.depth),
                ("MIN_BLOCKS", stream.min_blocks),
                ("GATED", usize::from(self.gated)),
            ]);
        }
        if let Some(several) = self.several {
            options.extend([
                ("ROWS", several.rows),
                ("SIXTEENS", several.sixteens),
                ("WARPS", several.warps),
                ("DEPTH", several.depth),
                ("GROUP", several.group),
                ("ONCE", usize::from(several.once)),
                ("MIN_BLOCKS", several.min_blocks),
                ("GATED", usize::from(self.gated)),
            ]);
        }
        if let Some(attention) = self.attention {
            options.extend([
                ("BLOCKS", attention.blocks),
                ("WARPS", attention.warps),
                ("STAGES", attention.stages),
                ("MIN_BLOCKS", attention.min_blocks),
                ("SMALL_PAGES", usize::from(attention.paging == Paging::Small)),
                ("LEAN", usize::from(self.is_lean())),
                ("TILE_PAGES", usize::from(attention.paging == Paging::Tiles && self.is_lean())),
            ]);
        }
        if let Some(attention) = self.attention.filter(|_| self.is_lean()) {
            options.extend([("QUERIES", attention.group), ("KV_HEADS", attention.kv_heads)]);
        }
        if let Some(chunk) = self.chunk {
            options.extend([
                ("STRIPS", chunk.strips),
                ("WARPS", chunk.warps),
                ("SPAN", chunk.span),
                ("STAGES", chunk.stages),
                ("MIN_BLOCKS", chunk.min_blocks),
                ("STAGGERED", usize::from(chunk.staggered)),
                ("GROUPED", usize::from(chunk.grouped)),
            ]);
        }
        options
    }
}

/// As in `cu/codec.cuh`.
fn codec_number(dtype: KvDtype) -> usize {
    match dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Bf16 => 2,
        KvDtype::Fp8 => 3,
        KvDtype::Int8 => 4,
    }
}

macro_rules! texts {
    ($($file:literal)*) => { &[$(($file, include_str!(concat!("../cu/", $file)))),*] };
}

const TEXTS: &[(&str, &str)] = texts![
    "device.cuh" "number.cuh" "codec.cuh" "place.cuh" "tile.cuh" "work.cuh" "fetch.cuh" "parts.cuh" "attention.cuh" "attention_merge.cuh"
    "span.cuh" "group.cuh" "attention_chunk.cuh" "attention_warp.cuh" "attention_group.cuh" "attention_chunk.cu"
    "embed.cu" "norm.cu" "gate.cuh" "gated.cu" "convert.cu" "linear.cu" "product.cuh" "stream.cu" "several.cu" "add.cu" "angles.cu" "rotate.cu" "attention.cu"
    "choice.cuh" "peaks.cu" "choose.cu" "copy.cu" "move.cu" "zero.cu" "rows.cu" "fill.cu" "read.cu"
];

/// Appends a file, each file it includes once.
fn expand(file: &str, seen: &mut Vec<String>, out: &mut String) {
    let (_, text) = TEXTS.iter().find(|(name, _)| *name == file).expect("a file of cu/");
    seen.push(file.to_owned());
    for line in text.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(included) if seen.iter().any(|s| s == included) => {}
            Some(included) => expand(included, seen, out),
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_options_first_and_every_include_once() {
        let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: 64, dtype: KvDtype::Int8 };
        let text = Kernel::new::<[u64; 3]>("rotate").with_head(&layout).text();
        assert!(text.starts_with("#define ARGS_BYTES 24\n#define HEAD_DIM 64\n#define KV 4\n"), "{text}");
        assert!(!text.contains("#include"), "{text}");
        assert_eq!(text.matches("What the kernels ask of a GPU").count(), 1);
    }

    #[test]
    fn attention_is_told_its_heads_but_over_bytes() {
        let text = |dtype, paging| {
            let layout = PageLayout { layers: 1, kv_heads: 2, page_size: 16, head_dim: 64, dtype };
            let options = AttentionOptions {
                blocks: 1,
                warps: 4,
                stages: 2,
                min_blocks: 1,
                paging,
                group: 3,
                kv_heads: 2,
            };
            Kernel::new::<[u64; 3]>("attention").with_head(&layout).with_attention(options).text()
        };
        let lean = "#define LEAN 1\n#define TILE_PAGES 1\n#define QUERIES 3\n#define KV_HEADS 2\n";
        assert!(text(KvDtype::Bf16, Paging::Tiles).contains(lean));
        assert!(text(KvDtype::Bf16, Paging::Large).contains("#define LEAN 1\n#define TILE_PAGES 0\n"));
        for dtype in [KvDtype::Fp8, KvDtype::Int8] {
            let text = text(dtype, Paging::Tiles);
            assert!(text.contains("#define LEAN 0\n#define TILE_PAGES 0\n"));
            assert!(!text.contains("#define QUERIES 3"));
        }
    }
}
