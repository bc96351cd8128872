//! The bytes of all pages: one allocation, by the book of [`PageLayout`].

use crate::FIRST_WITH_FP8;
use crate::device::Device;
use crate::memory::Memory;
use octavo_backend::{BackendError, Half, PageLayout};
use octavo_types::{KvDtype, PageId, Pages};
use std::sync::Arc;

/// The largest head that the attention kernel has registers for.
const MAX_HEAD_DIM: usize = 256;

#[derive(Debug)]
pub struct CudaArena {
    layout: PageLayout,
    pages: usize,
    memory: Memory,
}

/// Where the rows of one layer lie: `Place` of `cu/place.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Place {
    arena: u64,
    page_bytes: u64,
    rows: [u64; 2],
    parameters: [u64; 2],
    head_rows: u32,
    head_parameters: u32,
    page_size: u32,
    row_bytes: u32,
}

impl CudaArena {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        layout: PageLayout,
        pages: Pages,
    ) -> Result<Self, BackendError> {
        check(&layout, device.capability() >= FIRST_WITH_FP8)?;
        let bytes = layout.page_bytes() * pages.as_usize();
        let memory = Memory::new(device, bytes).map_err(|error| match error {
            BackendError::OutOfMemory(why) => BackendError::OutOfMemory(format!(
                "{pages} need {:.1} GiB on the device; choose a smaller pool ({why})",
                bytes as f64 / f64::from(1 << 30)
            )),
            other => other,
        })?;
        Ok(Self { layout, pages: pages.as_usize(), memory: memory.kept() })
    }

    pub(crate) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Panics if a page is not one of this arena.
    pub(crate) fn check_pages(&self, pages: impl IntoIterator<Item = PageId>) {
        for page in pages {
            assert!(page.index() < self.pages, "{page} of {} pages", self.pages);
        }
    }

    pub(crate) fn place(&self, layer: usize) -> Place {
        let l = &self.layout;
        let halves = [Half::Key, Half::Value];
        let short = |n: usize| u32::try_from(n).expect("a head's bytes of a page fit 32 bits");
        Place {
            arena: self.memory.address(),
            page_bytes: l.page_bytes() as u64,
            rows: halves.map(|half| l.rows_at(layer, half, 0) as u64),
            parameters: halves.map(|half| l.parameters_at(layer, half, 0) as u64),
            head_rows: short(l.page_size * l.row_bytes()),
            head_parameters: short(l.page_size * l.parameter_bytes()),
            page_size: short(l.page_size),
            row_bytes: short(l.row_bytes()),
        }
    }
}

/// What the kernels can do: rows of whole 16-byte units, at addresses that are multiples of that.
pub(crate) fn check(layout: &PageLayout, has_fp8: bool) -> Result<(), BackendError> {
    let refuse = |what: String, instead: &str| {
        Err(BackendError::Unsupported { what: format!("{what} on CUDA"), instead: instead.into() })
    };
    if !layout.head_dim.is_multiple_of(16) || layout.head_dim > MAX_HEAD_DIM {
        let what = format!("a head of {} dimensions", layout.head_dim);
        return refuse(what, "multiples of 16 up to 256 are; use --device cpu for this model");
    }
    if layout.dtype == KvDtype::Fp8 && !has_fp8 {
        let what = "an fp8 cache below compute capability 8.9".into();
        return refuse(what, "int8 takes the same room, f16 twice as much");
    }
    if !layout.page_bytes().is_multiple_of(16) {
        let what = format!("a page of {} bytes", layout.page_bytes());
        return refuse(what, "choose a page size that is a multiple of 16 tokens");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(head_dim: usize, page_size: usize, dtype: KvDtype) -> PageLayout {
        PageLayout { layers: 1, kv_heads: 1, page_size, head_dim, dtype }
    }

    #[test]
    fn what_the_kernels_cannot_do_is_refused_with_what_can_be_done_instead() {
        let refused = |layout, has_fp8| check(&layout, has_fp8).unwrap_err().to_string();
        assert!(refused(layout(72, 16, KvDtype::F16), true).contains("multiples of 16 up to 256"));
        assert!(refused(layout(512, 16, KvDtype::F16), true).contains("--device cpu"));
        assert!(refused(layout(16, 1, KvDtype::Int8), true).contains("a multiple of 16 tokens"));
        assert!(refused(layout(128, 16, KvDtype::Fp8), false).contains("int8 takes the same room"));
        assert!(check(&layout(128, 16, KvDtype::Fp8), true).is_ok());
        assert!(check(&layout(256, 16, KvDtype::F16), false).is_ok());
    }
}
