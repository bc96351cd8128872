//! Logical blocks to physical ones.

use crate::errors;
use crate::manager::Shared;
use octavo_types::{PageId, SeqId};
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};
use std::sync::{Arc, Mutex, PoisonError};

/// Maps logical blocks to physical blocks for a sequence.
///
/// One that a manager returned follows its sequence as it grows, and raises once the sequence is freed. One that you
/// make is yours to fill.
///
/// >>> table = BlockTable()
/// >>> table.append(7)
/// >>> table.append(23)
/// >>> table[1], len(table), table.table
/// (23, 2, [7, 23])
#[pyclass(frozen, subclass, module = "octavo.kv_cache")]
pub(crate) struct BlockTable(Source);

enum Source {
    Own(Mutex<octavo_kv::BlockTable>),
    /// A sequence of a manager, whose internal ids are never used again.
    Of {
        shared: Arc<Shared>,
        seq: SeqId,
        id: i64,
    },
}

impl BlockTable {
    pub(crate) fn of(shared: Arc<Shared>, seq: SeqId, id: i64) -> Self {
        Self(Source::Of { shared, seq, id })
    }

    fn with<T>(&self, py: Python<'_>, ask: impl FnOnce(&octavo_kv::BlockTable) -> T) -> PyResult<T> {
        match &self.0 {
            Source::Own(table) => Ok(ask(&table.lock().unwrap_or_else(PoisonError::into_inner))),
            Source::Of { shared, seq, id } => {
                let books = shared.lock(py);
                let table = books.manager.block_table(*seq);
                table.map(ask).map_err(|_| {
                    PyRuntimeError::new_err(format!("sequence {id}, whose table this was, is freed"))
                })
            }
        }
    }
}

#[pymethods]
impl BlockTable {
    #[new]
    fn new() -> Self {
        Self(Source::Own(Mutex::default()))
    }

    /// The physical blocks in order: a copy.
    #[getter]
    fn table(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |table| table.iter().map(|page| page.0).collect())
    }

    /// Adds a block at the end of a table of your own.
    fn append(&self, block_id: i64) -> PyResult<()> {
        let page = u32::try_from(block_id)
            .map(PageId)
            .map_err(|_| errors::value(format!("{block_id} is no block")))?;
        match &self.0 {
            Source::Own(table) => {
                table.lock().unwrap_or_else(PoisonError::into_inner).append(page);
                Ok(())
            }
            Source::Of { id, .. } => Err(PyRuntimeError::new_err(format!(
                "this is the table of sequence {id}: extend_sequence makes it grow"
            ))),
        }
    }

    /// The blocks as int32: a torch tensor on `device` where torch is installed, otherwise a NumPy array, for the CPU
    /// alone.
    #[pyo3(signature = (device="cuda"))]
    fn as_tensor<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        py.import("octavo._torch")?.call_method1("tensor", (self.table(py)?, device))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| table.len().as_usize())
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<u32> {
        self.with(py, |table| {
            let pages = table.as_slice();
            let from_end = if index < 0 { pages.len() as isize } else { 0 };
            pages.get(usize::try_from(index + from_end).ok()?).map(|page| page.0)
        })?
        .ok_or_else(|| PyIndexError::new_err("block table index out of range"))
    }

    /// Over the blocks as they are now.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.table(py)?)?.try_iter()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("BlockTable({:?})", self.table(py)?))
    }
}
