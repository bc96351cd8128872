//! Where a command writes its JSON. What is wrong with the path is said before there is anything to write, and until then
//! the file is as it was: an old one is kept, and no empty one is left behind.

use crate::output::print;
use anyhow::{Context, Result};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What `--json` names.
#[derive(Debug)]
pub(crate) enum Json {
    /// `-`: standard output, which then carries nothing else.
    Printed,
    /// What was there already, such as an older file or a pipe.
    There(File, PathBuf),
    /// A file that can be made.
    New(PathBuf),
}

impl Json {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.to_owned();
        if path.as_os_str() == "-" {
            return Ok(Self::Printed);
        }
        let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => std::fs::remove_file(path).map(|()| Self::New(name)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
                file.map(|file| Self::There(file, name))
            }
            Err(error) => Err(error),
        };
        opened.with_context(|| cannot_write(path))
    }

    /// Writes `object` and a line break.
    pub(crate) fn write(self, object: impl Display) -> Result<()> {
        let write = |mut file: File| writeln!(file, "{object}");
        match self {
            Self::Printed => print(format_args!("{object}\n")).map(|_| ()),
            Self::There(file, path) => emptied(file).and_then(write).with_context(|| cannot_write(&path)),
            Self::New(path) => File::create(&path).and_then(write).with_context(|| {
                // Half an object is of no use.
                let _ = std::fs::remove_file(&path);
                cannot_write(&path)
            }),
        }
    }
}

/// What is no regular file has nothing in it.
fn emptied(file: File) -> std::io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
