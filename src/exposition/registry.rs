//! Metrics in a registry, under the prefix of this program.

use prometheus::core::Collector;
use prometheus::{HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

pub(super) fn own_name(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("retsu_collector")
}

pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    register(registry, IntCounter::with_opts(own_name(name, help))?)
}

pub(super) fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    register(registry, IntCounterVec::new(own_name(name, help), labels)?)
}

pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    register(registry, IntGauge::with_opts(own_name(name, help))?)
}

pub(super) fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    register(registry, IntGaugeVec::new(own_name(name, help), labels)?)
}

pub(super) trait IntoHistogram {
    fn into_histogram(self, buckets: &[f64]) -> HistogramOpts;
}

impl IntoHistogram for Opts {
    fn into_histogram(self, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::from(self).buckets(buckets.to_vec())
    }
}
