//! Replicas whose way to the API server can be broken, each for itself.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::kubernetes::{ApiProxy, Call, Cluster, Labels};
use crate::support::{Collector, Config, Database, eventually};

pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Within this time after the API answers again, the labels are right: also on a machine that is busy, and long before
/// everything is read once more, a minute after it was read last.
pub(super) const RIGHT: Duration = Duration::from_secs(20);

/// The line with which a leader says that it has waited for the API as long as it may.
pub(super) const HELD_UP: &str = "freeing the lock before the platform knows";

const COLLECTOR: &str = "worker.queue.state_metrics_collector";

/// Goes back to standby after a failure instead of ending.
pub(super) fn step_down(config: &mut Config) {
    config.set(&format!("{COLLECTOR}.on_refresh_failure"), "step_down");
}

/// The real program in a Pod, behind a proxy of its own.
pub(super) struct Replica {
    pub(super) pod: String,
    pub(super) collector: Collector,
    pub(super) proxy: ApiProxy,
}

impl Replica {
    pub(super) async fn start(
        cluster: &Cluster,
        pod: &str,
        database: &Database,
        configure: impl FnOnce(&mut Config),
    ) -> Self {
        let proxy = ApiProxy::start(cluster.server()).await;
        let collector = cluster.collector_at(&proxy.url(), pod, &database.url(), configure).await;
        Self { pod: pod.to_owned(), collector, proxy }
    }

    /// What `/leader` says of its label; null when there is no answer.
    pub(super) async fn label(&self) -> Value {
        let Ok((_, answer)) = self.collector.get("/leader").await else { return Value::Null };
        serde_json::from_str::<Value>(&answer).unwrap()["label"].take()
    }

    /// Waits until it knows that its label is in this state.
    pub(super) async fn wait_for_label(&self, state: &str) {
        eventually(LIMIT, &format!("the label of {} is {state}", self.pod), async || {
            self.label().await["state"] == state
        })
        .await;
    }

    pub(super) async fn wait_until_it_exports(&self) {
        eventually(LIMIT, &format!("{} exports", self.pod), async || self.collector.exports().await).await;
    }

    /// The value of one of its own series, such as `retsu_collector_label_sweeps_total`.
    pub(super) async fn value(&self, series: &str) -> Option<f64> {
        let metrics = self.collector.metrics().await?;
        metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The patches of its own Pod since an instant.
    pub(super) fn patches_since(&self, since: Instant) -> Vec<Call> {
        let own = |call: &Call| call.at >= since && is_patch(call) && call.name.as_deref() == Some(self.pod.as_str());
        self.proxy.calls().into_iter().filter(own).collect()
    }
}

pub(super) fn is_patch(call: &Call) -> bool {
    call.is("patch", "pods")
}

/// A leader `a` and a standby `b`, labelled so.
pub(super) async fn leader_and_standby(
    cluster: &Cluster,
    database: &Database,
    configure: impl Fn(&mut Config),
) -> [Replica; 2] {
    let a = Replica::start(cluster, "a", database, &configure).await;
    a.wait_until_it_exports().await;
    let b = Replica::start(cluster, "b", database, &configure).await;
    b.collector.wait_for_log("another session holds the advisory lock", LIMIT).await;
    for replica in [&a, &b] {
        replica.wait_for_label("set").await;
    }
    [a, b]
}

/// Waits until `leader` carries the label, nobody else does, and each Pod of `others` says that it is a standby.
/// Returns when the last of it was seen.
pub(super) async fn wait_until_only(
    labels: &Labels,
    leader: &str,
    others: &[&str],
    limit: Duration,
) -> Option<Instant> {
    labels
        .wait(&format!("{leader} carries the label, and nobody else"), limit, |roles| {
            roles.iter().all(|(pod, role)| (role.as_deref() == Some("leader")) == (pod == leader))
                && roles.contains_key(leader)
                && others.iter().all(|&pod| roles[pod].as_deref() == Some("standby"))
        })
        .await
}

/// The values of the role label that a Pod has had since an instant, in their order.
pub(super) fn roles_since(labels: &Labels, pod: &str, since: Instant) -> Vec<String> {
    let history = labels.history();
    let changes = history.iter().filter(|change| change.pod == pod && change.at >= since);
    let mut roles: Vec<_> = changes
        .map(|change| change.carried.as_ref().and_then(|carried| carried.role.clone()).unwrap_or_default())
        .collect();
    roles.dedup();
    roles
}
