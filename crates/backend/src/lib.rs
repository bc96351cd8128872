//! The physical half's contract.
//!
//! A model is written once over [`Backend`]; a device is a value that implements it. Activations are rows of a
//! ragged batch: the tokens of all sequences in a step, one after another, whatever each of them is doing.
//!
//! What every implementation promises: a row's results have the same bits whatever other rows
//! are in the batch, however the sequence was cut into chunks, and wherever its pages lie. A sum over `k` runs in
//! one fixed order for each output; attention folds blocks of positions, aligned to position 0, in order;
//! keys and values are read as they were stored, those of the current step too.
//!
//! Beside the contract: [`codec`] defines how keys and values are stored, [`choice`] how a token is chosen, [`weights`] how weights are quantised,
//! [`Reference`] computes everything the obvious way, [`mod@conformance`] measures any back end against it, and
//! [`blocks`] converts between this layout and those of other engines.
#![forbid(unsafe_code)]

mod batch;
pub mod blocks;
pub mod choice;
pub mod codec;
pub mod conformance;
mod layout;
mod random;
pub mod reference;
mod tensor;
mod traits;
pub mod weights;

pub use batch::{Pass, Rows, Span, Step, TableView};
pub use choice::Choice;
pub use layout::{Half, PageLayout};
pub use random::Random;
pub use reference::Reference;
pub use tensor::{TensorRef, WeightDtype, WeightFormat};
pub use traits::{Activation, AttentionSpec, Backend, BackendError, Heads, NormSpec};
