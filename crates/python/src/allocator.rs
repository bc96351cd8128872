//! Blocks by id.

use crate::arena;
use crate::errors;
use crate::ints::Ints;
use crate::manager::Shared;
use numpy::{IntoPyArray, PyArray1, PyArrayMethods};
use octavo_kv::BlockAllocator as Blocks;
use octavo_types::{PageId, Pages};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

/// Manages allocation of KV cache blocks.
///
/// A free list with O(1) allocation and release, and reference counts for sharing. Every method may be called from
/// any thread; none takes a lock.
///
/// >>> allocator = BlockAllocator(num_blocks=10)
/// >>> block = allocator.allocate()
/// >>> allocator.num_free
/// 9
/// >>> allocator.free(block)
/// >>> allocator.free(block)
/// Traceback (most recent call last):
///     ...
/// RuntimeError: Block 0 not allocated
/// >>> allocator.free(allocator.allocate(4))
/// >>> allocator.get_stats()["peak_blocks"]
/// 4
#[pyclass(frozen, subclass, module = "octavo.kv_cache")]
pub(crate) struct BlockAllocator(Source);

enum Source {
    Own(Blocks),
    /// The one of a manager.
    Of(Arc<Shared>),
}

impl BlockAllocator {
    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Self(Source::Of(shared))
    }

    fn with<T>(&self, py: Python<'_>, ask: impl FnOnce(&Blocks) -> T) -> T {
        match &self.0 {
            Source::Own(blocks) => ask(blocks),
            Source::Of(shared) => ask(shared.lock(py).manager.allocator()),
        }
    }

    fn take(&self, py: Python<'_>, n: i64) -> PyResult<Vec<PageId>> {
        self.with(py, |blocks| blocks.allocate(pages(n), None).map_err(|_| blocks.num_free()))
            .map_err(|free| PyRuntimeError::new_err(format!("Need {n} blocks, only {} available", free.0)))
    }
}

/// Fewer than none are none, and more than can be counted are too many for any pool.
fn pages(n: i64) -> Pages {
    Pages(n.clamp(0, u32::MAX.into()) as u32)
}

fn page(block: i64) -> PyResult<PageId> {
    u32::try_from(block)
        .map(PageId)
        .map_err(|_| PyRuntimeError::new_err(format!("Block {block} not allocated")))
}

/// What [`BlockAllocator::allocate`] returned, read in one go; `None` for anything else.
fn as_allocated(blocks: &Bound<'_, PyAny>) -> Option<Vec<PageId>> {
    let array = blocks.cast::<PyArray1<i32>>().ok()?.try_readonly().ok()?;
    let blocks = array.as_slice().ok()?;
    let valid = blocks.iter().all(|block| *block >= 0);
    valid.then(|| blocks.iter().map(|block| PageId(*block as u32)).collect())
}

#[pymethods]
impl BlockAllocator {
    #[new]
    fn new(num_blocks: i64) -> PyResult<Self> {
        // Arrays of block ids are int32.
        if !(0..=i64::from(i32::MAX)).contains(&num_blocks) {
            return Err(errors::value(format!(
                "num_blocks is {num_blocks}: it must be between 0 and {}",
                i32::MAX
            )));
        }
        let blocks = Pages(num_blocks as u32);
        arena::room_for_books(blocks, 16)?;
        Ok(Self(Source::Own(Blocks::new(blocks))))
    }

    /// Blocks in all.
    #[getter]
    fn num_blocks(&self, py: Python<'_>) -> u32 {
        self.with(py, |blocks| blocks.total().0)
    }

    /// Blocks that are free now.
    #[getter]
    fn num_free(&self, py: Python<'_>) -> u32 {
        self.with(py, |blocks| blocks.num_free().0)
    }

    /// The free blocks, in ascending order: a copy.
    #[getter]
    fn free_blocks(&self, py: Python<'_>) -> Vec<u32> {
        self.with(py, |blocks| {
            let is_free = |block: &u32| blocks.ref_count(PageId(*block)) == Ok(0);
            (0..blocks.total().0).filter(is_free).collect()
        })
    }

    /// References to each allocated block: a copy.
    #[getter]
    fn ref_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.with(py, |blocks| {
            let count = |block: u32| blocks.ref_count(PageId(block)).ok().filter(|refs| *refs > 0);
            let counts = (0..blocks.total().0).filter_map(|block| Some((block, count(block)?)));
            counts.collect::<Vec<_>>()
        });
        let dict = PyDict::new(py);
        counts.into_iter().try_for_each(|(block, refs)| dict.set_item(block, refs))?;
        Ok(dict)
    }

    /// Whether `n` blocks are free now.
    fn can_allocate(&self, py: Python<'_>, n: i64) -> bool {
        n <= 0 || self.with(py, |blocks| i64::from(blocks.num_free().0) >= n)
    }

    /// Takes one block and returns its id; with a number, as many, all or none, and returns an array of int32.
    #[pyo3(signature = (num_pages=None))]
    fn allocate<'py>(&self, py: Python<'py>, num_pages: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(n) = num_pages {
            let taken: Vec<i32> = self.take(py, n)?.iter().map(|page| page.0 as i32).collect();
            return Ok(taken.into_pyarray(py).into_any());
        }
        let block = self.with(py, |blocks| blocks.allocate_one(None));
        let block = block.map_err(|_| PyRuntimeError::new_err("No free blocks available"))?;
        block.0.into_bound_py_any(py)
    }

    /// Takes `n` blocks, all or none.
    fn allocate_n(&self, py: Python<'_>, n: i64) -> PyResult<Vec<u32>> {
        Ok(self.take(py, n)?.into_iter().map(|page| page.0).collect())
    }

    /// Gives one reference back: of a block, or of each of a list of blocks, all or none. A block without references
    /// is free.
    fn free(&self, py: Python<'_>, block_id: Bound<'_, PyAny>) -> PyResult<()> {
        let listed = match as_allocated(&block_id) {
            Some(listed) => listed,
            None => match block_id.extract::<i64>() {
                Ok(block) => vec![page(block)?],
                Err(_) => block_id.extract::<Ints>()?.0.into_iter().map(page).collect::<PyResult<_>>()?,
            },
        };
        self.with(py, |blocks| blocks.free(&listed)).map_err(errors::free)
    }

    /// One more reference to an allocated block.
    fn add_ref(&self, py: Python<'_>, block_id: i64) -> PyResult<()> {
        let block = page(block_id)?;
        self.with(py, |blocks| blocks.add_ref(block)).map_err(errors::reference)
    }

    /// 0 for a block that is not allocated.
    fn get_ref_count(&self, py: Python<'_>, block_id: i64) -> u32 {
        let Ok(block) = page(block_id) else { return 0 };
        self.with(py, |blocks| blocks.ref_count(block).unwrap_or(0))
    }

    /// Blocks in total, free, used and at the peak, and the share in use.
    fn get_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, Blocks::get_stats);
        let dict = PyDict::new(py);
        dict.set_item("total_blocks", stats.total_blocks.0)?;
        dict.set_item("free_blocks", stats.free_blocks.0)?;
        dict.set_item("used_blocks", stats.used_blocks.0)?;
        dict.set_item("peak_blocks", stats.peak_blocks.0)?;
        dict.set_item("utilization", stats.utilization)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        self.with(py, |blocks| {
            format!("BlockAllocator(num_blocks={}, num_free={})", blocks.total().0, blocks.num_free().0)
        })
    }
}
