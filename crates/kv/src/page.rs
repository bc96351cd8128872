//! Pages as values: [`PageMut`] for the one writer, [`PageRef`] for any number of readers.
//!
//! A reference is given back by dropping the value, on any thread; there is no other way, so none can be given
//! back twice. The last one puts the page on the pool's return stack.

use crate::pool::{Dropped, Pool, RefError};
use octavo_types::PageId;
use std::fmt;
use std::sync::Arc;

/// One counted reference, and the only type here with a `Drop`.
struct Held {
    id: PageId,
    pool: Arc<Pool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.pool.drop_ref(self.id) {
            Ok(Dropped::Last) => self.pool.push_returned(self.id),
            Ok(Dropped::Shared) => {}
            // Only a bug in the pool gets here. The page stays out of circulation, which harms nobody.
            Err(error) => tracing::error!(%error, "a page reference was given back that was not counted"),
        }
    }
}

/// The one writer of a page: nobody else holds it.
#[must_use = "dropping a page gives it back"]
pub struct PageMut(Held);

/// A reader of a page that may have others. Its contents do not change while it is shared.
pub struct PageRef(Held);

impl PageMut {
    pub(crate) fn new(id: PageId, pool: Arc<Pool>) -> Self {
        Self(Held { id, pool })
    }

    pub fn id(&self) -> PageId {
        self.0.id
    }

    /// Ends writing; from now on the page can be shared.
    pub fn seal(self) -> PageRef {
        PageRef(self.0)
    }
}

impl PageRef {
    pub(crate) fn new(id: PageId, pool: Arc<Pool>) -> Self {
        Self(Held { id, pool })
    }

    pub fn id(&self) -> PageId {
        self.0.id
    }

    /// One more reader; fails where the count would no longer fit.
    pub fn share(&self) -> Result<Self, RefError> {
        self.0.pool.share(self.0.id)
    }

    /// The right to write again, if this is the only reader; otherwise the reader back, to copy from.
    pub fn unseal(self) -> Result<PageMut, Self> {
        // With one reference, ours, nobody can add another meanwhile: sharing takes a reference.
        if self.0.pool.refs(self.0.id) == Ok(1) { Ok(PageMut(self.0)) } else { Err(self) }
    }
}

impl fmt::Debug for PageMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageMut({})", self.0.id.0)
    }
}

impl fmt::Debug for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageRef({})", self.0.id.0)
    }
}
