//! The bytes of one file, over as many connections as it takes.

use super::blob::Blob;
use super::client::{Answer, Client};
use super::located::Span;
use super::patience::Patience;
use super::{Download, HubError};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::ops::ControlFlow;

pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    pub(super) commit: &'a str,
    pub(super) file: &'a str,
    pub(super) blob: &'a Blob,
    pub(super) progress: &'a mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
}

/// Why a connection did not bring the rest.
enum Stop {
    /// The next one may.
    Broken(HubError),
    /// The hub does not go on from the beginning that is here.
    Unfit,
    Error(HubError),
}

impl Transfer<'_> {
    /// The whole file, as a part that no connection is left to.
    pub(super) fn run(mut self) -> Result<File, HubError> {
        let mut part = self.blob.open_part()?;
        let (mut patience, mut is_second) = (Patience::default(), false);
        loop {
            let from = self.length(&part)?;
            if from == self.blob.size() {
                return Ok(part);
            }
            let error = match self.connection(&mut part, from) {
                Ok(()) => continue,
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Unfit) if is_second => {
                    return Err(self.client.strange(format!("no answer has {} in its length", self.file)));
                }
                Err(Stop::Unfit) => {
                    is_second = true;
                    self.empty(&part)?;
                    continue;
                }
                Err(Stop::Broken(error)) => error,
            };
            match patience.pause(self.length(&part)? > from) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(error),
            }
        }
    }

    fn connection(&mut self, part: &mut File, from: u64) -> Result<(), Stop> {
        if from > self.blob.size() {
            return Err(Stop::Unfit);
        }
        let answer = self.client.open(self.commit, self.file, from).map_err(|error| match error {
            HubError::Unreachable { source, .. } => Stop::Broken(self.interrupted(Error::other(source))),
            error if error.is_passing() => Stop::Broken(error),
            error => Stop::Error(error),
        })?;
        let from = self.start(&answer, part, from)?;
        self.copy(answer, part, from)
    }

    /// The byte that an answer starts with: the one that was asked for, or the first of all.
    fn start(&self, answer: &Answer, part: &File, from: u64) -> Result<u64, Stop> {
        let span = Span::of(answer.response.headers());
        let fits =
            |span: Span| span.from == Some(from) && span.total.is_none_or(|total| total == self.blob.size());
        match answer.response.status().as_u16() {
            200 if from == 0 => Ok(0),
            200 => self.empty(part).map(|()| 0).map_err(Stop::Error),
            206 if span.is_some_and(fits) => Ok(from),
            _ => Err(Stop::Unfit),
        }
    }

    fn copy(&mut self, answer: Answer, part: &mut File, mut done: u64) -> Result<(), Stop> {
        let total = self.blob.size();
        let body = answer.response.into_body();
        let promised = body.content_length();
        // One byte more than there should be shows a file that is too long.
        let mut reader = body.into_reader().take(total - done + 1);
        let start = done;
        let mut buffer = vec![0; 128 << 10];
        loop {
            let bytes = match reader.read(&mut buffer) {
                Ok(0) if done == total => return Ok(()),
                Ok(0) => return Err(Stop::Broken(self.interrupted(ErrorKind::UnexpectedEof.into()))),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stop::Broken(self.interrupted(error))),
            };
            done += bytes as u64;
            if done > total {
                self.empty(part).map_err(Stop::Error)?;
                let got = promised.map_or(done, |promised| start + promised);
                return Err(Stop::Error(HubError::Size { file: self.file.into(), got, want: total }));
            }
            part.write_all(&buffer[..bytes])
                .map_err(|error| Stop::Error(HubError::cache(&self.blob.part())(error)))?;
            let at = Download { file: self.file, bytes_done: done, bytes_total: total };
            if (self.progress)(at).is_break() {
                return Err(Stop::Error(HubError::BrokenOff { file: self.file.into() }));
            }
        }
    }

    fn length(&self, part: &File) -> Result<u64, HubError> {
        let about = part.metadata().map_err(HubError::cache(&self.blob.part()))?;
        Ok(about.len())
    }

    fn empty(&self, part: &File) -> Result<(), HubError> {
        part.set_len(0).map_err(HubError::cache(&self.blob.part()))
    }

    fn interrupted(&self, source: Error) -> HubError {
        HubError::Interrupted { file: self.file.into(), source }
    }
}
