//! What one scenario has for itself: a namespace under the restricted Pod Security Standard, and a way to undo what it
//! did to nodes.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeCondition, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::cluster::Cluster;
use crate::command::run;
use crate::faults::Armed;
use crate::report::Report;
use crate::wait::eventually;
use crate::watched::Watched;

/// From a namespace to what the control plane puts into it.
const PREPARED: Duration = Duration::from_secs(60);

/// From the start of a node's container to a kubelet that reports itself.
const RETURNED: Duration = Duration::from_secs(90);

/// What has to be done for the nodes to be as before.
#[derive(Clone, Debug)]
enum Undo {
    /// Run a script on a node.
    Run { node: String, script: String },
    /// Let Pods on a node again.
    Uncordon(String),
    /// Start a node that was lost.
    Start(String),
}

/// The stage of one scenario.
pub(crate) struct Stage {
    /// The cluster.
    pub(crate) cluster: Arc<Cluster>,
    /// The namespace.
    pub(crate) namespace: String,
    /// Its Pods and EndpointSlices.
    pub(crate) watched: Watched,
    /// Where take-over times are written down.
    pub(crate) report: Arc<Mutex<Report>>,
    began: SystemTime,
    undo: Mutex<Vec<Undo>>,
    /// How often the scenario ended the container of a Pod itself.
    ended: Mutex<BTreeMap<String, i32>>,
    may_restart: AtomicBool,
}

impl Stage {
    /// Makes the namespace.
    pub(crate) async fn set(cluster: Arc<Cluster>, report: Arc<Mutex<Report>>, scenario: &str) -> Self {
        let name = scenario.rsplit("::").next().unwrap_or_default().replace('_', "-");
        let namespace = format!("{}-{:05x}", &name[..name.len().min(50)], rand::random_range(0..0x10_0000));
        let object = json!({"metadata": {"name": namespace, "labels": {
            "pod-security.kubernetes.io/enforce": "restricted",
            "retsu.io/e2e": "scenario",
        }}});
        let object: Namespace = serde_json::from_value(object).unwrap();
        Api::<Namespace>::all(cluster.client()).create(&PostParams::default(), &object).await.unwrap();
        // A Pod is refused without it.
        let accounts = cluster.api::<ServiceAccount>(&namespace);
        eventually(PREPARED, &format!("{namespace} has a service account"), async || {
            accounts.get_opt("default").await.unwrap().is_some()
        })
        .await;
        let watched = Watched::begin(&cluster, &namespace);
        let (undo, ended, may_restart) = Default::default();
        Self { cluster, namespace, watched, report, began: SystemTime::now(), undo, ended, may_restart }
    }

    /// When the scenario began.
    pub(crate) fn began(&self) -> SystemTime {
        self.began
    }

    /// Runs a script on a node that [`Self::mend`] undoes by another.
    pub(crate) async fn disturb(&self, node: &str, script: &str, undo: &str) {
        self.undo.lock().unwrap().push(Undo::Run { node: node.to_owned(), script: undo.to_owned() });
        self.cluster.on_node(node, script).await;
    }

    /// Keeps new Pods off a node until [`Self::mend`].
    pub(crate) async fn cordon(&self, node: &str) {
        self.undo.lock().unwrap().push(Undo::Uncordon(node.to_owned()));
        self.cluster.kubectl(&["cordon", node]).await;
    }

    /// Loses a node, from the instant when `loss` is made to [`Self::mend`].
    pub(crate) async fn lose(&self, node: &str, loss: Armed) {
        self.undo.lock().unwrap().push(Undo::Start(node.to_owned()));
        loss.fire().await;
        self.cluster.engine(&["kill", node]).await;
    }

    /// Undoes what was done to nodes, the last first.
    pub(crate) async fn mend(&self) {
        let mut failed = Vec::new();
        loop {
            let Some(undo) = self.undo.lock().unwrap().pop() else { break };
            let undoing = async {
                match &undo {
                    Undo::Run { node, script } => drop(self.cluster.on_node(node, script).await),
                    Undo::Uncordon(node) => drop(self.cluster.kubectl(&["uncordon", node]).await),
                    Undo::Start(node) => self.start(node).await,
                }
            };
            // One that fails keeps none of the others from being undone.
            if AssertUnwindSafe(undoing).catch_unwind().await.is_err() {
                failed.push(undo);
            }
        }
        assert!(failed.is_empty(), "not undone: {failed:?}");
    }

    /// Starts a node that was lost, and waits until it is ready by its own word, which is younger than that.
    async fn start(&self, node: &str) {
        let nodes = Api::<Node>::all(self.cluster.client());
        let reported = async || {
            let ready = ready(&nodes.get(node).await.unwrap());
            (ready.status == "True").then_some(ready.last_heartbeat_time)
        };
        let before = reported().await;
        self.cluster.engine(&["start", node]).await;
        eventually(RETURNED, &format!("{node} is ready again"), async || {
            let now = reported().await;
            now.is_some() && now != before
        })
        .await;
        let network = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/cluster/network");
        run(&mut tokio::process::Command::new(network)).await.unwrap_or_else(|complaint| panic!("{complaint}"));
    }

    /// Says that the container of a Pod is about to be ended by the scenario itself.
    pub(crate) fn ends(&self, pod: &str) {
        *self.ended.lock().unwrap().entry(pod.to_owned()).or_default() += 1;
    }

    /// Says that containers end by themselves in this scenario, however often.
    pub(crate) fn may_restart(&self) {
        self.may_restart.store(true, Ordering::Relaxed);
    }

    /// What holds at the end of every scenario: no container of ours has ended that the scenario did not end, and
    /// Prometheus never had two series of one queue and priority.
    pub(crate) async fn conclude(&self) {
        let restarts = self.watched.seen().restarts.clone();
        let ended = self.ended.lock().unwrap().clone();
        let unexpected: Vec<_> = restarts
            .iter()
            .filter(|(pod, restarts)| **restarts > ended.get(*pod).copied().unwrap_or_default())
            .collect();
        let expected = unexpected.is_empty() || self.may_restart.load(Ordering::Relaxed);
        assert!(expected, "containers restarted that nobody ended: {unexpected:?}; ended: {ended:?}");
        self.prometheus_has_one_series_of_each_queue().await;
    }

    /// At every second of the scenario, a queue and priority has one series at most.
    async fn prometheus_has_one_series_of_each_queue(&self) {
        let each = format!(
            "count by (job, queue_name, message_priority) (queue_messages_ready{{namespace=\"{}\"}}) > 1",
            self.namespace
        );
        let doubled = self.cluster.prometheus().history(&each, self.began).await;
        assert!(doubled.is_empty(), "queues with two series: {doubled:?}");
    }

    /// Writes down everything that is known of the namespace, for whoever looks into a failure. Returns whether it could.
    pub(crate) async fn dump(&self, scenario: &str) -> bool {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = root.join("target/e2e/logs").join(scenario.replace("::", "."));
        let script = root.join("e2e/cluster/dump");
        let mut dump = tokio::process::Command::new(script);
        match run(dump.arg(&directory).arg(&self.namespace)).await {
            Ok(_) => {
                println!("{scenario}: logs, events and descriptions are in {}", directory.display());
                true
            }
            Err(complaint) => {
                println!("{scenario}: nothing could be dumped: {complaint}");
                false
            }
        }
    }

    /// Takes the namespace away, and leaves it to the cluster how long that takes.
    pub(crate) async fn strike(&self) {
        let namespaces = Api::<Namespace>::all(self.cluster.client());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await.unwrap();
    }
}

/// What the API says of the readiness of a node.
pub(crate) fn ready(node: &Node) -> NodeCondition {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().find(|condition| condition.type_ == "Ready").cloned().unwrap()
}
