//! Writing metrics of each kind in the library's terms.

use octavo::Histogram;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// Writes metrics of each kind.
pub(super) struct Out<'a>(DescriptorEncoder<'a>);

impl<'a> Out<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    fn describe<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.describe(name, help, MetricType::Gauge)?.encode_gauge(&value)
    }

    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let encoder = self.describe(name, help, MetricType::Gauge)?;
        let value = |mut encoder: MetricEncoder<'_>, value: u64| encoder.encode_gauge(&(value as f64));
        for_each_label(encoder, values.iter().copied(), |value| [(label, value)], value)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        count(self.describe(name, help, MetricType::Counter)?, value)
    }

    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let encoder = self.describe(name, help, MetricType::Counter)?;
        for_each_label(encoder, values.iter().copied(), |value| [(label, value)], count)
    }

    /// Counters with a label that is the same for all of them.
    pub(super) fn counters_with(
        &mut self,
        name: &str,
        help: &str,
        fixed: (&str, &str),
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let encoder = self.describe(name, help, MetricType::Counter)?;
        for_each_label(encoder, values.iter().copied(), |value| [(label, value), fixed], count)
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let mut encoder = self.describe(name, help, MetricType::Histogram)?;
        // One reading, so that the count is that of the buckets whatever is observed meanwhile.
        let counts = histogram.buckets();
        let bounds = histogram.bounds().iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        encoder.encode_histogram::<NoLabelSet>(histogram.sum(), counts.iter().sum(), &buckets, None)
    }

    pub(super) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let mut encoder = self.describe(name, help, MetricType::Gauge)?;
        encoder.encode_family(&labels)?.encode_gauge(&1i64)
    }
}

fn count(mut encoder: MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

fn for_each_label<'v, L: EncodeLabelSet>(
    mut encoder: MetricEncoder<'_>,
    values: impl IntoIterator<Item = (&'v str, u64)>,
    labels: impl Fn(&'v str) -> L,
    write: impl Fn(MetricEncoder<'_>, u64) -> fmt::Result,
) -> fmt::Result {
    for (name, value) in values {
        let labels = labels(name);
        write(encoder.encode_family(&labels)?, value)?;
    }
    Ok(())
}
