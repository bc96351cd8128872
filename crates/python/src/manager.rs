//! The document's manager: a table and a length for each sequence, and the bytes.

use crate::allocator::BlockAllocator;
use crate::arena::{self, Arena, SharedArena};
use crate::errors;
use crate::ints::{Ints, same_length, tokens};
use crate::table::BlockTable;
use hashbrown::HashMap;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray3, ndarray};
use octavo_kv::CacheManager;
use octavo_types::{PageSize, SeqId, SlotId, Tokens};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a manager, its allocator and its tables share.
pub(crate) struct Shared {
    books: Mutex<Books>,
    arena: Arc<SharedArena>,
    page_size: PageSize,
}

pub(crate) struct Books {
    pub(crate) manager: CacheManager,
    /// The caller's ids, which come back, to the manager's, which never do: so that a table knows that its sequence is
    /// gone.
    ids: HashMap<i64, SeqId>,
}

impl Shared {
    /// Lets other threads run Python while it waits.
    pub(crate) fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Books> {
        self.books.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Without the GIL, for work on many sequences.
    fn lock_detached(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn seq(&self, id: i64) -> PyResult<SeqId> {
        self.ids.get(&id).copied().ok_or_else(|| errors::no_sequence(id))
    }

    fn allocate(&mut self, id: i64, n: Tokens) -> PyResult<SeqId> {
        if self.ids.contains_key(&id) {
            return Err(errors::runtime(format!("sequence {id} exists already: free it first")));
        }
        let seq = self.manager.allocate_slot(n).map_err(errors::alloc)?;
        self.manager.advance(seq, n).map_err(|error| errors::position(id, error))?;
        self.ids.insert(id, seq);
        Ok(seq)
    }

    fn free(&mut self, id: i64) -> PyResult<bool> {
        let Some(seq) = self.ids.remove(&id) else { return Ok(false) };
        self.manager.free_sequence(seq).map_err(|error| errors::free_sequence(id, error))?;
        Ok(true)
    }

    fn seqs(&self, ids: &[i64]) -> PyResult<Vec<SeqId>> {
        ids.iter().map(|id| self.seq(*id)).collect()
    }

    /// `id` is what the caller calls `seq`.
    fn slots(&self, id: i64, seq: SeqId, start: Tokens, n: Tokens, out: &mut Vec<i32>) -> PyResult<()> {
        let slots = self.manager.slots(seq, start, n).map_err(|error| errors::position(id, error))?;
        // `arena::blocks` saw that every slot fits.
        out.extend(slots.map(|SlotId(slot)| slot as i32));
        Ok(())
    }
}

/// The books and the bytes below `octavo.kv_cache.KVCacheManager`.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Manager(Arc<Shared>);

#[pymethods]
impl Manager {
    #[new]
    fn new(
        num_blocks: i64,
        block_size: i64,
        num_layers: i64,
        num_kv_heads: i64,
        head_dim: i64,
        dtype: &str,
    ) -> PyResult<Self> {
        let spec = arena::spec(block_size, num_layers, num_kv_heads, head_dim, dtype)?;
        let page_size = spec.page_size();
        let blocks = arena::blocks(num_blocks, page_size)?;
        let arena = SharedArena::new(&spec, blocks)?;
        let manager = CacheManager::new(spec, blocks).map_err(errors::manager)?;
        let books = Mutex::new(Books { manager, ids: HashMap::new() });
        Ok(Self(Arc::new(Shared { books, arena, page_size })))
    }

    #[getter]
    fn allocator(&self) -> BlockAllocator {
        BlockAllocator::of(self.0.clone())
    }

    #[getter]
    fn arena(&self) -> Arena {
        Arena(self.0.arena.clone())
    }

    fn allocate(&self, py: Python<'_>, seq_id: i64, num_tokens: i64) -> PyResult<BlockTable> {
        let n = tokens("num_tokens", num_tokens)?;
        let seq = self.0.lock(py).allocate(seq_id, n)?;
        Ok(BlockTable::of(self.0.clone(), seq, seq_id))
    }

    fn extend(&self, py: Python<'_>, seq_id: i64, additional_tokens: i64) -> PyResult<()> {
        let n = tokens("additional_tokens", additional_tokens)?;
        let mut books = self.0.lock(py);
        let seq = books.seq(seq_id)?;
        books.manager.extend_sequence(seq, n).map_err(|error| errors::extend(seq_id, error))
    }

    /// Whether there was one.
    fn free(&self, py: Python<'_>, seq_id: i64) -> PyResult<bool> {
        self.0.lock(py).free(seq_id)
    }

    fn slots<'py>(
        &self,
        py: Python<'py>,
        seq_id: i64,
        start_pos: i64,
        num_tokens: i64,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let (start, n) = (tokens("start_pos", start_pos)?, tokens("num_tokens", num_tokens)?);
        let mut slots = Vec::new();
        let books = self.0.lock(py);
        books.slots(seq_id, books.seq(seq_id)?, start, n, &mut slots)?;
        Ok(slots.into_pyarray(py))
    }

    /// All sequences or none.
    fn allocate_many(&self, py: Python<'_>, seq_ids: Ints, num_tokens: Ints) -> PyResult<()> {
        let counts = counts("num_tokens", &seq_ids, &num_tokens)?;
        py.detach(|| {
            let mut books = self.0.lock_detached();
            let need: u64 = counts.iter().map(|n| u64::from(self.0.page_size.pages_for(*n).0)).sum();
            let free = books.manager.free_slot_count().0;
            if need > free.into() {
                return Err(errors::runtime(format!("Need {need} blocks, only {free} available")));
            }
            for (done, (id, n)) in seq_ids.0.iter().zip(&counts).enumerate() {
                if let Err(error) = books.allocate(*id, *n) {
                    for id in &seq_ids.0[..done] {
                        books.free(*id)?;
                    }
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    /// All sequences or none.
    fn extend_many(&self, py: Python<'_>, seq_ids: Ints, additional: Ints) -> PyResult<()> {
        let counts = counts("additional_tokens", &seq_ids, &additional)?;
        let size = self.0.page_size;
        py.detach(|| {
            let mut books = self.0.lock_detached();
            let (mut need, mut ends) = (0u64, HashMap::new());
            for (id, n) in seq_ids.0.iter().zip(&counts) {
                let seq = books.seq(*id)?;
                let len = books.manager.get_seq_len(seq).map_err(|_| errors::no_sequence(*id))?;
                let end = ends.entry(seq).or_insert(len);
                let grown = end.checked_add(*n);
                *end = grown.ok_or_else(|| errors::value(format!("sequence {id} would be too long")))?;
            }
            for (seq, end) in &ends {
                let held = books.manager.block_table(*seq).map_or(0, |table| table.len().0);
                need += u64::from(size.pages_for(*end).0.saturating_sub(held));
            }
            let free = books.manager.free_slot_count().0;
            if need > free.into() {
                return Err(errors::runtime(format!("Need {need} blocks, only {free} available")));
            }
            for (id, n) in seq_ids.0.iter().zip(&counts) {
                let seq = books.seq(*id)?;
                books.manager.extend_sequence(seq, *n).map_err(|error| errors::extend(*id, error))?;
            }
            Ok(())
        })
    }

    /// How many of them there were.
    fn free_many(&self, py: Python<'_>, seq_ids: Ints) -> PyResult<usize> {
        py.detach(|| {
            let mut books = self.0.lock_detached();
            seq_ids.0.iter().try_fold(0, |freed, id| Ok(freed + usize::from(books.free(*id)?)))
        })
    }

    /// The slots of every sequence, one after another.
    fn slots_many<'py>(
        &self,
        py: Python<'py>,
        seq_ids: Ints,
        start_pos: Ints,
        num_tokens: Ints,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let starts = counts("start_pos", &seq_ids, &start_pos)?;
        let counts = counts("num_tokens", &seq_ids, &num_tokens)?;
        let slots = py.detach(|| {
            let books = self.0.lock_detached();
            let mut slots = Vec::new();
            // All ids first: the lookups do not wait for each other.
            let seqs = books.seqs(&seq_ids.0)?;
            let asked = seq_ids.0.iter().zip(seqs).zip(starts.iter().zip(&counts));
            for ((id, seq), (start, n)) in asked {
                books.slots(*id, seq, *start, *n, &mut slots)?;
            }
            Ok::<_, PyErr>(slots)
        })?;
        Ok(slots.into_pyarray(py))
    }

    /// One row a sequence, padded with -1.
    fn tables<'py>(&self, py: Python<'py>, seq_ids: Ints) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let rows = py.detach(|| {
            let books = self.0.lock_detached();
            let table = |id: &i64| {
                let table = books.manager.block_table(books.seq(*id)?);
                let table = table.map_err(|_| errors::no_sequence(*id))?;
                Ok(table.iter().map(|page| page.0 as i32).collect())
            };
            seq_ids.0.iter().map(table).collect::<PyResult<Vec<Vec<i32>>>>()
        })?;
        Ok(padded(&rows).into_pyarray(py))
    }

    fn table(&self, py: Python<'_>, seq_id: i64) -> PyResult<BlockTable> {
        let seq = self.0.lock(py).seq(seq_id)?;
        Ok(BlockTable::of(self.0.clone(), seq, seq_id))
    }

    fn length(&self, py: Python<'_>, seq_id: i64) -> PyResult<u32> {
        let books = self.0.lock(py);
        let len = books.manager.get_seq_len(books.seq(seq_id)?);
        len.map(|len| len.0).map_err(|_| errors::no_sequence(seq_id))
    }

    fn ids(&self, py: Python<'_>) -> Vec<i64> {
        let mut ids: Vec<i64> = self.0.lock(py).ids.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn write(
        &self,
        py: Python<'_>,
        layer: i64,
        slots: Ints,
        keys: PyReadonlyArray3<'_, f32>,
        values: PyReadonlyArray3<'_, f32>,
    ) -> PyResult<()> {
        self.0.arena.store(py, layer, &slots.0, &keys, &values)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.lock(py).manager.get_stats();
        let dict = PyDict::new(py);
        dict.set_item("total_blocks", stats.total_blocks.0)?;
        dict.set_item("free_blocks", stats.free_blocks.0)?;
        dict.set_item("used_blocks", stats.used_blocks.0)?;
        dict.set_item("peak_blocks", stats.peak_blocks.0)?;
        dict.set_item("utilization", stats.utilization)?;
        dict.set_item("num_sequences", stats.num_sequences)?;
        dict.set_item("bytes_used", stats.bytes_used.0)?;
        dict.set_item("bytes_free", stats.bytes_free.0)?;
        dict.set_item("bytes_peak", stats.bytes_peak.0)?;
        dict.set_item("internal_fragmentation_percent", stats.internal_fragmentation_percent)?;
        Ok(dict)
    }

    /// Raises if the books do not agree with themselves.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.lock(py).manager.check().map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

fn counts(name: &str, seq_ids: &Ints, counts: &Ints) -> PyResult<Vec<Tokens>> {
    same_length([("sequences", seq_ids.0.len()), (name, counts.0.len())])?;
    counts.0.iter().map(|n| tokens(name, *n)).collect()
}

/// Rows of different lengths as one array, padded with -1.
pub(crate) fn padded(rows: &[Vec<i32>]) -> ndarray::Array2<i32> {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut array = ndarray::Array2::from_elem((rows.len(), longest), -1);
    for (mut to, row) in array.rows_mut().into_iter().zip(rows) {
        to.iter_mut().zip(row).for_each(|(to, page)| *to = *page);
    }
    array
}
