//! The keys of the configuration that tests set.

pub(crate) const INTERVAL: &str = "worker.queue.state_metrics_collector.collection_interval_seconds";
pub(crate) const RETRY: &str = "worker.queue.state_metrics_collector.leadership_retry_interval_seconds";
pub(crate) const TIMEOUT: &str = "worker.queue.state_metrics_collector.refresh_timeout_seconds";
pub(crate) const ON_FAILURE: &str = "worker.queue.state_metrics_collector.on_refresh_failure";
pub(crate) const FENCE: &str = "worker.queue.state_metrics_collector.lease.fence_seconds";
pub(crate) const HEARTBEAT: &str = "worker.queue.state_metrics_collector.lease.heartbeat_interval_seconds";
pub(crate) const IDLE_SESSION: &str = "worker.queue.state_metrics_collector.lease.idle_session_timeout_seconds";
pub(crate) const TCP_USER: &str = "worker.queue.state_metrics_collector.lease.tcp_user_timeout_seconds";
pub(crate) const HEARTBEAT_TIMEOUT: &str = "worker.queue.state_metrics_collector.lease.heartbeat_timeout_seconds";
