//! What goes over the wire: requests that exist only if they are valid, answers, errors.

pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod grammar;
pub(crate) mod message;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod sampling;
pub(crate) mod tokenize;
pub(crate) mod usage;
