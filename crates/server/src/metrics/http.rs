//! What the server itself counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Default)]
pub(crate) struct Http {
    pub(super) requests: Family<Answered, Counter>,
    /// Set whenever somebody reads it.
    pub(super) in_flight: Gauge,
    pub(super) connections: Gauge,
}

/// `path` is the route's pattern, so that clients cannot make up labels.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Answered {
    path: String,
    method: &'static str,
    code: u16,
}

/// Something that goes on, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Ongoing(Gauge);

impl Ongoing {
    fn begin(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Http {
    pub(crate) fn connection(&self) -> Ongoing {
        Ongoing::begin(&self.connections)
    }

    pub(crate) fn answered(&self, path: &str, method: &str, code: u16) {
        let known = ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"];
        let method = known.into_iter().find(|known| *known == method).unwrap_or("other");
        self.requests.get_or_create(&Answered { path: path.into(), method, code }).inc();
    }
}
