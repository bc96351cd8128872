//! Ids, units and geometry that every part of Octavo agrees on.
//!
//! A number here says what it counts: a [`Pages`] is never added to a [`Tokens`], and the only way from one
//! to the other is a method that takes the page size. Arithmetic that could overflow is checked, in release
//! builds too.
#![forbid(unsafe_code)]

mod ids;
mod slot;
mod spec;
mod time;
mod units;

pub use ids::{GroupId, PageId, SeqId};
pub use slot::{SlotId, SlotRange};
pub use spec::{KvDtype, KvSpec, LayerGroup, SpecError};
pub use time::Timestamp;
pub use units::{Bytes, PageSize, Pages, Tokens};
