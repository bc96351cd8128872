//! Which files hold the weights of a model, and their bytes.

use crate::weights::LoadError;
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The bytes of one file.
#[derive(Debug)]
pub(crate) enum Source {
    Mapped(Mmap),
    Embedded(&'static [u8]),
    Owned(Vec<u8>),
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let io = |source| LoadError::Io { path: path.to_owned(), source };
        // Before it is opened: opening a pipe waits for someone to write.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(LoadError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is private to this process and read-only. As for every program that maps its weights,
        // the files must not be changed while they are loaded.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self::Mapped(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    /// The back end has its own copy of these bytes: the mapping's may leave memory.
    pub(crate) fn forget(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            // SAFETY: the mapping is of a file and read-only, so a page dropped here is read again when it is touched.
            // A refusal costs memory only.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
    }
}

/// What the index file promises: the file of each tensor.
pub(crate) type WeightMap = BTreeMap<String, String>;

/// The files of a model, and the promises of its index where it has one.
pub(crate) struct FileSet {
    pub paths: Vec<PathBuf>,
    pub promised: WeightMap,
}

impl FileSet {
    /// The single file, else those the index names, else every `*.safetensors` there is.
    pub(crate) fn find(dir: &Path) -> Result<Self, LoadError> {
        if dir.join(SINGLE).is_file() {
            return Ok(Self { paths: vec![dir.join(SINGLE)], promised: WeightMap::new() });
        }
        if dir.join(INDEX).is_file() {
            return Self::from_index(dir);
        }
        let paths = all_in(dir)?;
        match paths.is_empty() {
            true => Err(LoadError::NoWeights { dir: dir.to_owned() }),
            false => Ok(Self { paths, promised: WeightMap::new() }),
        }
    }

    fn from_index(dir: &Path) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: WeightMap,
        }
        let path = dir.join(INDEX);
        let text =
            std::fs::read_to_string(&path).map_err(|source| LoadError::Io { path: path.clone(), source })?;
        let index: Index =
            serde_json::from_str(&text).map_err(|source| LoadError::Index { file: path.clone(), source })?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(LoadError::ShardName { file: path, shard: (*name).clone() });
        }
        let paths = names.into_iter().map(|name| dir.join(name)).collect();
        Ok(Self { paths, promised: index.weight_map })
    }
}

/// The weight files of a model's directory: the single one, those that its index names, or all that there are. Whether
/// those of an index exist is not looked at.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    Ok(FileSet::find(dir)?.paths)
}

/// A file beside the index: an index must not lead elsewhere.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn all_in(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let io = |source| LoadError::Io { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
