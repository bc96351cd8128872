//! One file in the cache: `blobs/<etag>`, which grows as `blobs/<etag>.part` and is moved to its place when it is
//! whole and what the hub says it is.

use super::located::Located;
use super::{HubError, HubName};
use ring::digest::{Context, SHA256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another program may take for a file.
const PATIENCE: Duration = Duration::from_secs(300);
const GLANCE: Duration = Duration::from_millis(200);

pub(super) struct Blob {
    path: PathBuf,
    etag: String,
    size: u64,
}

/// Held as long as this program alone writes the file.
pub(super) struct Lock(#[expect(dead_code, reason = "unlocked when it is closed")] Option<File>);

impl Blob {
    pub(super) fn new(repo: &Path, located: &Located) -> Result<Self, HubError> {
        let blobs = repo.join("blobs");
        std::fs::create_dir_all(&blobs).map_err(HubError::cache(&blobs))?;
        let etag = located.etag().to_owned();
        Ok(Self { path: blobs.join(&etag), etag, size: located.size() })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn is_there(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|about| about.is_file() && about.len() == self.size)
    }

    pub(super) fn part(&self) -> PathBuf {
        self.beside("part")
    }

    /// The beginning that is there, to be written to at its end.
    pub(super) fn open_part(&self) -> Result<File, HubError> {
        let path = self.part();
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        file.map_err(HubError::cache(&path))
    }

    /// None once another program has brought the file.
    pub(super) fn lock(&self, name: &HubName) -> Result<Option<Lock>, HubError> {
        let path = self.beside("lock");
        let file = File::create(&path).map_err(HubError::cache(&path))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let lock = match file.try_lock() {
                Ok(()) => Some(file),
                Err(TryLockError::WouldBlock) if self.is_there() => return Ok(None),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(GLANCE);
                    continue;
                }
                Err(TryLockError::WouldBlock) => return Err(HubError::Locked { name: name.clone() }),
                // Some file systems have no locks.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => None,
                Err(TryLockError::Error(error)) => return Err(HubError::cache(&path)(error)),
            };
            return Ok(if self.is_there() { None } else { Some(Lock(lock)) });
        }
    }

    /// Checks the part and moves it to its place.
    pub(super) fn finish(&self, file: &str, mut part: File) -> Result<(), HubError> {
        let path = self.part();
        let cache = || HubError::cache(&path);
        if !self.is_right(&mut part).map_err(cache())? {
            std::fs::remove_file(&path).map_err(cache())?;
            return Err(HubError::Contents { file: file.into() });
        }
        part.sync_all().map_err(cache())?;
        std::fs::rename(&path, &self.path).map_err(HubError::cache(&self.path))
    }

    /// The ETag of a large file is its SHA-256; those of others say nothing about their contents.
    fn is_right(&self, part: &mut File) -> std::io::Result<bool> {
        let is_hash = self.etag.len() == 64 && self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash {
            return Ok(true);
        }
        part.rewind()?;
        let (mut hash, mut buffer) = (Context::new(&SHA256), vec![0; 1 << 20]);
        loop {
            match part.read(&mut buffer)? {
                0 => break,
                bytes => hash.update(&buffer[..bytes]),
            }
        }
        let hash: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(hash.eq_ignore_ascii_case(&self.etag))
    }

    /// Makes the file one of a snapshot.
    pub(super) fn link(&self, snapshot: &Path, file: &str) -> Result<(), HubError> {
        let link = snapshot.join(file);
        std::fs::create_dir_all(snapshot).map_err(HubError::cache(snapshot))?;
        if link.symlink_metadata().is_ok() {
            // A link to a file that was deleted.
            std::fs::remove_file(&link).map_err(HubError::cache(&link))?;
        }
        let target = Path::new("../../blobs").join(&self.etag);
        #[cfg(unix)]
        let made = std::os::unix::fs::symlink(target, &link);
        #[cfg(windows)]
        let made =
            std::os::windows::fs::symlink_file(target, &link).or_else(|_| std::fs::rename(&self.path, &link));
        made.or_else(|error| if link.is_file() { Ok(()) } else { Err(error) }).map_err(HubError::cache(&link))
    }

    fn beside(&self, what: &str) -> PathBuf {
        self.path.with_file_name(format!("{}.{what}", self.etag))
    }
}
