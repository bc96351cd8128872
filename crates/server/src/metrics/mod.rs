//! Metrics on the wire.

mod exporter;
mod http;
mod text;

pub(crate) use exporter::Exporter;
pub(crate) use text::Format;
