//! Process metrics, read from `/proc` off the async workers.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;
use tokio_util::sync::CancellationToken;

/// The task that reads process metrics ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[error("reading process metrics failed: {0}")]
pub struct SamplerError(#[from] tokio::task::JoinError);

/// The families of the last reading, shared with every answer.
pub(super) struct ProcessSample {
    collector: ProcessCollector,
    families: ArcSwap<Vec<MetricFamily>>,
}

impl Default for ProcessSample {
    fn default() -> Self {
        Self { collector: ProcessCollector::for_self(), families: ArcSwap::default() }
    }
}

impl ProcessSample {
    pub(super) async fn run(
        sample: Arc<Self>,
        every: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), SamplerError> {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = tick.tick() => {}
            }
            let sample = Arc::clone(&sample);
            tokio::task::spawn_blocking(move || sample.families.store(Arc::new(sample.collector.collect()))).await?;
        }
    }

    pub(super) fn families(&self) -> Arc<Vec<MetricFamily>> {
        self.families.load_full()
    }
}
