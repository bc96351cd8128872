use crate::damage;
use crate::files::{FileSet, Source, WeightMap};
use octavo_backend::{BackendError, TensorRef, WeightDtype};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a regular file", path = path.display())]
    NotAFile { path: PathBuf },
    #[error("{dir} has no *.safetensors", dir = dir.display())]
    NoWeights { dir: PathBuf },
    #[error("{file} is not a readable index of weights: {source}", file = file.display())]
    Index { file: PathBuf, source: serde_json::Error },
    #[error("{file} names \"{shard}\", which is not a file beside it", file = file.display())]
    ShardName { file: PathBuf, shard: String },
    #[error("{file} is not a readable safetensors file: {source}")]
    Header { file: String, source: SafeTensorError },
    #[error(
        "the tensor {tensor} ends at byte {expected} of {file}, which has {found}: the file is incomplete, fetch it again"
    )]
    Cut { tensor: String, file: String, expected: usize, found: usize },
    #[error("the tensor {tensor} in {file} is described wrongly: {why}")]
    Damaged { tensor: String, file: String, why: String },
    #[error("{file} has {found} bytes, but its header describes {expected}: the file is damaged")]
    Length { file: String, expected: usize, found: usize },
    #[error("the tensor {tensor} is in both {first} and {second}")]
    Duplicate { tensor: String, first: String, second: String },
    #[error("the index places the tensor {tensor} in {file}, which does not have it")]
    Promised { tensor: String, file: String },
    #[error("the tensor {tensor} is missing from {files}")]
    Missing { tensor: String, files: String },
    #[error("the tensor {tensor} in {file} has the shape {found:?}; config.json makes it {expected:?}")]
    Shape { tensor: String, file: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("the tensor {tensor} in {file} is stored as {dtype}; supported are F32, F16 and BF16")]
    Dtype { tensor: String, file: String, dtype: String },
    #[error("the tensors {first} and {second} are used as one matrix, but are stored as {types}")]
    MixedTypes { first: String, second: String, types: String },
    #[error("the cache was planned for another model: it has {found} layers, the model {expected}")]
    Layers { expected: usize, found: usize },
    #[error("cannot load the tensor {tensor}: {source}")]
    Tensor { tensor: String, source: BackendError },
    #[error(transparent)]
    Backend(#[from] BackendError),
}

#[derive(Debug)]
struct Shard {
    name: String,
    source: Source,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The tensors of one or several safetensors files, where they lie.
///
/// Invariant: every entry's bytes are within its shard, and as many as its type and shape need.
#[derive(Debug)]
pub struct Weights {
    shards: Vec<Shard>,
    entries: HashMap<String, Entry>,
    /// Zeros in the place of all tensors.
    blank: Option<Vec<u8>>,
}

impl Weights {
    /// Maps the files of the model in `dir`; nothing is read yet but their headers.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let files = FileSet::find(dir)?;
        let mut weights = Self { shards: Vec::new(), entries: HashMap::new(), blank: None };
        for path in &files.paths {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            weights.add(name, Source::open(path)?)?;
        }
        weights.check_promises(&files.promised)?;
        Ok(weights)
    }

    /// Weights within the program itself; `name` stands for the file in errors.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Result<Self, LoadError> {
        Self::single(name, Source::Embedded(bytes))
    }

    /// Weights that were made in memory, laid out as a safetensors file; `name` stands for the file in errors.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, LoadError> {
        Self::single(name, Source::Owned(bytes))
    }

    /// Every tensor that is asked for, in bf16 and all zeros: for a back end that makes its own. None may have more
    /// than `largest` elements.
    pub fn blank(largest: usize) -> Self {
        // Zeros that nobody touches take no memory.
        Self { shards: Vec::new(), entries: HashMap::new(), blank: Some(vec![0; 2 * largest]) }
    }

    fn single(name: &str, source: Source) -> Result<Self, LoadError> {
        let mut weights = Self { shards: Vec::new(), entries: HashMap::new(), blank: None };
        weights.add(name.to_owned(), source)?;
        Ok(weights)
    }

    fn add(&mut self, name: String, source: Source) -> Result<(), LoadError> {
        let bytes = source.bytes();
        let (header, metadata) =
            SafeTensors::read_metadata(bytes).map_err(|source| damage::explain(&name, bytes, source))?;
        let start = header + size_of::<u64>();
        for (tensor, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let entry = Entry {
                shard: self.shards.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: start + from..start + to,
            };
            if let Some(other) = self.entries.insert(tensor.clone(), entry) {
                let first = self.shards[other.shard].name.clone();
                return Err(LoadError::Duplicate { tensor, first, second: name });
            }
        }
        self.shards.push(Shard { name, source });
        Ok(())
    }

    fn check_promises(&self, promised: &WeightMap) -> Result<(), LoadError> {
        let broken = promised.iter().find(|(tensor, file)| {
            self.entries.get(*tensor).is_none_or(|entry| self.shards[entry.shard].name != **file)
        });
        broken.map_or(Ok(()), |(tensor, file)| {
            Err(LoadError::Promised { tensor: tensor.clone(), file: file.clone() })
        })
    }

    pub fn contains(&self, tensor: &str) -> bool {
        self.blank.is_some() || self.entries.contains_key(tensor)
    }

    /// Bytes of one tensor; 0 if it is not there.
    pub(crate) fn bytes_of(&self, tensor: &str) -> u64 {
        self.entries.get(tensor).map_or(0, |entry| entry.bytes.len() as u64)
    }

    /// Bytes of all tensors whose names begin so.
    pub fn bytes_under(&self, prefix: &str) -> u64 {
        let under = self.entries.iter().filter(|(name, _)| name.starts_with(prefix));
        under.map(|(_, entry)| entry.bytes.len() as u64).sum()
    }

    /// The matrix `[rows, cols]`, or the vector of `cols` elements where `rows` is 1.
    pub fn tensor(&self, tensor: &str, [rows, cols]: [usize; 2]) -> Result<TensorRef<'_>, LoadError> {
        if let Some(zeros) = &self.blank {
            let found = vec![zeros.len() / 2];
            let view = zeros
                .get(..2 * rows * cols)
                .and_then(|bytes| TensorRef::new(WeightDtype::Bf16, rows, cols, bytes));
            let (tensor, file, expected) = (tensor.to_owned(), "blank".into(), vec![rows, cols]);
            return view.ok_or(LoadError::Shape { tensor, file, expected, found });
        }
        let entry = self
            .entries
            .get(tensor)
            .ok_or_else(|| LoadError::Missing { tensor: tensor.to_owned(), files: self.shard_names() })?;
        let shard = &self.shards[entry.shard];
        let fits = entry.shape == [rows, cols] || (rows == 1 && entry.shape == [cols]);
        if !fits {
            return Err(LoadError::Shape {
                tensor: tensor.to_owned(),
                file: shard.name.clone(),
                expected: if rows == 1 { vec![cols] } else { vec![rows, cols] },
                found: entry.shape.clone(),
            });
        }
        let dtype = weight_dtype(entry.dtype).ok_or_else(|| LoadError::Dtype {
            tensor: tensor.to_owned(),
            file: shard.name.clone(),
            dtype: format!("{:?}", entry.dtype),
        })?;
        let bytes = &shard.source.bytes()[entry.bytes.clone()];
        Ok(TensorRef::new(dtype, rows, cols, bytes).expect("the header's sizes were checked"))
    }

    /// The back end has its own copy of `tensor`: what the mapping holds of it may leave memory.
    pub(crate) fn forget(&self, tensor: &str) {
        if let Some(entry) = self.entries.get(tensor) {
            self.shards[entry.shard].source.forget(entry.bytes.start, entry.bytes.len());
        }
    }

    fn shard_names(&self) -> String {
        let names: Vec<&str> = self.shards.iter().map(|shard| shard.name.as_str()).collect();
        names.join(", ")
    }
}

fn weight_dtype(dtype: Dtype) -> Option<WeightDtype> {
    match dtype {
        Dtype::F32 => Some(WeightDtype::F32),
        Dtype::F16 => Some(WeightDtype::F16),
        Dtype::BF16 => Some(WeightDtype::Bf16),
        _ => None,
    }
}
