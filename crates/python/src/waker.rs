//! How an event of the engine reaches an event loop of asyncio without anybody's GIL: through a socket.

use pyo3::prelude::*;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that becomes readable when there is something new.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Waker {
    receiver: UnixStream,
    pub(crate) bell: Bell,
}

/// Rings from any thread, at most once until somebody looked.
#[derive(Clone)]
pub(crate) struct Bell(Arc<(UnixStream, AtomicBool)>);

impl Bell {
    pub(crate) fn ring(&self) {
        let (socket, rung) = &*self.0;
        if !rung.swap(true, Ordering::SeqCst) {
            // One that is full or closed needs no further ring.
            let _ = (&*socket).write(&[1]);
        }
    }
}

#[pymethods]
impl Waker {
    #[new]
    fn new() -> PyResult<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        Ok(Self { receiver, bell: Bell(Arc::new((sender, AtomicBool::new(false)))) })
    }

    fn fileno(&self) -> i32 {
        self.receiver.as_raw_fd()
    }

    /// Makes it unreadable. Look for what is new afterwards: it rings again for whatever comes from now on.
    fn clear(&self) {
        while matches!((&self.receiver).read(&mut [0; 64]), Ok(n) if n > 0) {}
        self.bell.0.1.store(false, Ordering::SeqCst);
    }
}
