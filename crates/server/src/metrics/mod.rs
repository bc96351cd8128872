//! Metrics on the wire.

mod exporter;
mod http;
mod text;
mod write;

pub(crate) use exporter::Exporter;
pub(crate) use text::Format;
