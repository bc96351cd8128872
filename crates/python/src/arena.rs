//! The bytes of a cache, shared with Python.

use crate::dtype;
use crate::errors;
use crate::ints::{Ints, positive};
use crate::tensor::CacheTensor;
use numpy::{IntoPyArray, PyArray3, PyReadonlyArray3, ndarray};
use octavo_backend::{PageLayout, TableView};
use octavo_cpu::Level;
use octavo_types::{KvSpec, PageId, PageSize, Pages, SlotId, Tokens};
use pyo3::exceptions::{PyIndexError, PyMemoryError};
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An arena, and where it lies for those who look at it without asking.
///
/// The lock is for what this crate does. Python's own arrays over the memory know no lock: whoever writes to a page
/// while another thread uses it sees some of both, as with any two arrays that share memory. What is decided here
/// never depends on what the pages hold.
pub(crate) struct SharedArena {
    arena: RwLock<octavo_cpu::Arena>,
    layout: PageLayout,
    pages: usize,
    base: Base,
}

struct Base(*mut u8);
// SAFETY: an address. Whoever reads or writes through it does so outside of this crate, and keeps the arena alive.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

impl SharedArena {
    pub(crate) fn new(spec: &KvSpec, pages: Pages) -> PyResult<Arc<Self>> {
        let layout = PageLayout::new(spec);
        // One array has keys and values, so they lie alike.
        let mut arena = octavo_cpu::Arena::in_rows(layout, pages).map_err(errors::backend)?;
        let base = Base(arena.as_mut_ptr());
        Ok(Arc::new(Self { arena: RwLock::new(arena), layout, pages: pages.as_usize(), base }))
    }

    pub(crate) fn layout(&self) -> &PageLayout {
        &self.layout
    }
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.0
    }

    // A kernel that panicked left numbers behind, and nothing else: the arena is as good as before.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, octavo_cpu::Arena> {
        self.arena.read().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, octavo_cpu::Arena> {
        self.arena.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_layer(&self, layer: i64) -> PyResult<usize> {
        let layers = self.layout.layers;
        match usize::try_from(layer) {
            Ok(layer) if layer < layers => Ok(layer),
            _ => Err(PyIndexError::new_err(format!("layer {layer} of {layers}"))),
        }
    }

    pub(crate) fn check_page(&self, page: i64) -> PyResult<PageId> {
        match u32::try_from(page) {
            Ok(page) if (page as usize) < self.pages => Ok(PageId(page)),
            _ => Err(PyIndexError::new_err(format!("block {page} of {}", self.pages))),
        }
    }

    fn check_slot(&self, slot: i64) -> PyResult<SlotId> {
        let slots = self.pages as u64 * self.layout.page_size as u64;
        match u64::try_from(slot) {
            Ok(slot) if slot < slots => Ok(SlotId(slot)),
            _ => Err(PyIndexError::new_err(format!("slot {slot} of {slots}"))),
        }
    }

    /// Encodes rows, each `[slots, kv_heads, head_dim]`, into one layer's slots.
    pub(crate) fn store(
        &self,
        py: Python<'_>,
        layer: i64,
        slots: &[i64],
        keys: &PyReadonlyArray3<'_, f32>,
        values: &PyReadonlyArray3<'_, f32>,
    ) -> PyResult<()> {
        let layer = self.check_layer(layer)?;
        let slots = slots.iter().map(|slot| self.check_slot(*slot)).collect::<PyResult<Vec<_>>>()?;
        let keys = self.rows("keys", keys, slots.len())?;
        let values = self.rows("values", values, slots.len())?;
        py.detach(|| octavo_cpu::scatter(Level::detect(), &mut self.write(), layer, &slots, [keys, values]));
        Ok(())
    }

    fn rows<'a>(&self, name: &str, array: &'a PyReadonlyArray3<'_, f32>, rows: usize) -> PyResult<&'a [f32]> {
        let (PageLayout { kv_heads, head_dim, .. }, got) = (self.layout, array.as_array().dim());
        if got != (rows, kv_heads, head_dim) {
            return Err(errors::value(format!(
                "{name} have shape {got:?}: for {rows} slots they must have {:?}",
                (rows, kv_heads, head_dim)
            )));
        }
        array.as_slice().map_err(|_| errors::value(format!("{name} must be contiguous")))
    }

    /// Keys and values of some positions of one layer, each `[len, kv_heads, head_dim]`, decoded.
    pub(crate) fn load<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        pages: &[PageId],
        positions: Range<u32>,
    ) -> PyResult<[Bound<'py, PyArray3<f32>>; 2]> {
        let (len, PageLayout { kv_heads, head_dim, .. }) = (positions.len(), self.layout);
        let table = TableView { first: 0, pages };
        let both = py.detach(|| octavo_cpu::gather(&self.read(), layer, table, positions));
        let [keys, values] =
            both.map(|rows| ndarray::Array3::from_shape_vec((len, kv_heads, head_dim), rows));
        let array = |rows: Result<ndarray::Array3<f32>, _>| rows.map(|rows| rows.into_pyarray(py));
        Ok([array(keys).map_err(errors::runtime)?, array(values).map_err(errors::runtime)?])
    }
}

/// The geometry of a cache that a page table is enough for.
/// Far more than any model has.
const MOST_LAYERS: u32 = 1 << 16;

/// Refuses what the books of so many blocks find no room for; memory that is not there would end the process.
pub(crate) fn room_for_books(blocks: Pages, bytes_each: usize) -> PyResult<()> {
    let bytes = blocks.as_usize().saturating_mul(bytes_each);
    Vec::<u8>::new()
        .try_reserve_exact(bytes)
        .map_err(|_| PyMemoryError::new_err(format!("no memory for the books of {} blocks", blocks.0)))
}

pub(crate) fn spec(
    block_size: i64,
    num_layers: i64,
    num_kv_heads: i64,
    head_dim: i64,
    dtype: &str,
) -> PyResult<KvSpec> {
    let size = PageSize::new(positive("block_size", block_size)?).expect("at least 1");
    let layers = positive("num_layers", num_layers)?;
    if layers > MOST_LAYERS {
        return Err(errors::value(format!("num_layers is {layers}: there can be at most {MOST_LAYERS}")));
    }
    KvSpec::full_attention(
        layers,
        positive("num_kv_heads", num_kv_heads)?,
        positive("head_dim", head_dim)?,
        dtype::parse(dtype)?,
        size,
    )
    .map_err(errors::spec)
}

/// Blocks, and slots that an int32 can name.
pub(crate) fn blocks(num_blocks: i64, block_size: PageSize) -> PyResult<Pages> {
    let blocks = positive("num_blocks", num_blocks)?;
    let slots = u64::from(blocks) * u64::from(block_size.tokens().0);
    if slots > i32::MAX as u64 {
        return Err(errors::value(format!("{slots} slots are more than an int32 can name")));
    }
    let blocks = Pages(blocks);
    room_for_books(blocks, 128)?;
    Ok(blocks)
}

/// Memory for the keys and values of `num_blocks` blocks.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Arena(pub(crate) Arc<SharedArena>);

#[pymethods]
impl Arena {
    #[new]
    fn new(
        num_blocks: i64,
        block_size: i64,
        num_layers: i64,
        num_kv_heads: i64,
        head_dim: i64,
        dtype: &str,
    ) -> PyResult<Self> {
        let spec = spec(block_size, num_layers, num_kv_heads, head_dim, dtype)?;
        let blocks = blocks(num_blocks, spec.page_size())?;
        Ok(Self(SharedArena::new(&spec, blocks)?))
    }

    /// `(num_blocks, block_size, num_layers, num_kv_heads, head_dim)`.
    #[getter]
    fn geometry(&self) -> [usize; 5] {
        let layout = self.0.layout();
        [self.0.pages(), layout.page_size, layout.layers, layout.kv_heads, layout.head_dim]
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.layout().dtype.name()
    }

    fn tensor(&self) -> CacheTensor {
        CacheTensor::layered(&self.0)
    }

    fn write(
        &self,
        py: Python<'_>,
        layer: i64,
        slots: Ints,
        keys: PyReadonlyArray3<'_, f32>,
        values: PyReadonlyArray3<'_, f32>,
    ) -> PyResult<()> {
        self.0.store(py, layer, &slots.0, &keys, &values)
    }

    /// Positions `start..start + count` of a table of blocks, decoded.
    fn read<'py>(
        &self,
        py: Python<'py>,
        layer: i64,
        table: Ints,
        start: i64,
        count: i64,
    ) -> PyResult<[Bound<'py, PyArray3<f32>>; 2]> {
        let pages = table.0.iter().map(|page| self.0.check_page(*page)).collect::<PyResult<Vec<_>>>()?;
        let (start, count) = (crate::ints::tokens("start", start)?, crate::ints::tokens("count", count)?);
        let room = pages.len() as u64 * self.0.layout().page_size as u64;
        match start.checked_add(count) {
            Some(Tokens(end)) if u64::from(end) <= room => {
                self.0.load(py, self.0.check_layer(layer)?, &pages, start.0..end)
            }
            _ => Err(PyIndexError::new_err(format!(
                "positions {} to {} of {room}",
                start.0,
                u64::from(start.0) + u64::from(count.0)
            ))),
        }
    }

    /// Copies whole blocks, one after another.
    fn copy_blocks(&self, py: Python<'_>, pairs: Vec<(i64, i64)>) -> PyResult<()> {
        let slots = self.0.layout().page_size;
        let copies = pairs
            .iter()
            .map(|(from, to)| Ok((self.0.check_page(*from)?, self.0.check_page(*to)?, slots)))
            .collect::<PyResult<Vec<_>>>()?;
        py.detach(|| octavo_cpu::copy_pages(&mut self.0.write(), &copies));
        Ok(())
    }
}
