//! A release of the chart.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use retsu_collector::election::Fault;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::postgresql::{SECRET, Server};
use crate::recording::{PERIOD, Recording, Subject, TIMEOUT};
use crate::scrape::scrape;
use crate::stage::Stage;
use crate::wait::eventually;
use crate::watched::Replica;

/// From a change of a release to replicas that are ready, lock, label and EndpointSlice in agreement.
pub(crate) const SETTLED: Duration = Duration::from_secs(120);

/// The port of the chart's defaults.
const PORT: u16 = 24247;

/// Collection interval and fence of the chart's defaults, and a second for what is on its way: no snapshot is older.
const OLDEST: Duration = Duration::from_secs(15 + 3 + 1);

/// A release, which lives as long as the namespace.
#[derive(Clone)]
pub(crate) struct Release {
    stage: Arc<Stage>,
    name: String,
}

impl Release {
    /// Installs the chart as `retsu`, with what every scenario sets and `values` on top, and waits until it has settled.
    pub(crate) async fn install(stage: &Arc<Stage>, server: &Server, values: Value) -> Self {
        let release = Self { stage: Arc::clone(stage), name: "retsu".to_owned() };
        release.apply("install", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        release.settled(server).await;
        release
    }

    /// Installs it under another name, without waiting.
    pub(crate) async fn install_as(stage: &Arc<Stage>, name: &str, values: Value) -> Self {
        let release = Self { stage: Arc::clone(stage), name: name.to_owned() };
        release.apply("install", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        release
    }

    /// Upgrades it to what every scenario sets and `values` on top, and waits for the roll-out.
    pub(crate) async fn upgrade(&self, values: Value) {
        self.apply("upgrade", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        self.rolled_out().await;
    }

    async fn apply(&self, command: &str, values: Value) -> Result<String, String> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/retsu-collector");
        let [mut base, mut own] = [NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap()];
        base.write_all(base_values().to_string().as_bytes()).unwrap();
        own.write_all(values.to_string().as_bytes()).unwrap();
        let [base, own] = [&base, &own].map(|file| file.path().to_str().unwrap().to_owned());
        let chart = chart.to_str().unwrap();
        self.helm(&[command, &self.name, chart, "--values", &base, "--values", &own]).await
    }

    /// What Helm prints in the namespace of the release, or what it complains of.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let namespace = ["--namespace", &self.stage.namespace];
        self.stage.cluster.helm(&[arguments, &namespace].concat()).await
    }

    /// What kubectl prints in the namespace of the release; it has to succeed.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> String {
        let namespace = ["--namespace", &self.stage.namespace];
        self.stage.cluster.kubectl(&[&namespace, arguments].concat()).await
    }

    /// Waits for the roll-out of the Deployment.
    pub(crate) async fn rolled_out(&self) {
        let limit = format!("--timeout={}s", SETTLED.as_secs());
        self.kubectl(&["rollout", "status", &format!("deployment/{}", self.fullname()), &limit]).await;
    }

    /// Sets the number of replicas, as people do.
    pub(crate) async fn scale(&self, replicas: usize) {
        let deployment = format!("deployment/{}", self.fullname());
        self.kubectl(&["scale", &deployment, &format!("--replicas={replicas}")]).await;
    }

    /// The name of the release.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of the Deployment and most other objects.
    pub(crate) fn fullname(&self) -> String {
        if self.name.contains("retsu-collector") { self.name.clone() } else { format!("{}-retsu-collector", self.name) }
    }

    /// The name of the Service that leads to the leader.
    pub(crate) fn leader_service(&self) -> String {
        format!("{}-leader", self.fullname())
    }

    /// The replicas that are not being deleted.
    pub(crate) fn replicas(&self) -> Vec<Replica> {
        let seen = self.stage.watched.seen();
        let own = seen.replicas.values().filter(|replica| replica.instance == self.name && !replica.terminating);
        own.cloned().collect()
    }

    /// The replica with this name, while there is one.
    pub(crate) fn replica(&self, name: &str) -> Option<Replica> {
        self.stage.watched.seen().replicas.get(name).cloned()
    }

    /// The replicas whose Pod has the leader label.
    pub(crate) fn labelled(&self) -> Vec<Replica> {
        self.replicas().into_iter().filter(|replica| replica.role.as_deref() == Some("leader")).collect()
    }

    /// Waits until every replica that the Deployment asks for is ready, and lock, gauges, label and EndpointSlice
    /// agree on one of them: the leader.
    pub(crate) async fn settled(&self, server: &Server) -> Replica {
        self.settled_within(server, SETTLED).await
    }

    /// The same, within another limit.
    pub(crate) async fn settled_within(&self, server: &Server, limit: Duration) -> Replica {
        let deployment = format!("deployment/{}", self.fullname());
        let wanted = self.kubectl(&["get", &deployment, "--output=jsonpath={.spec.replicas}"]).await;
        let wanted: usize = wanted.parse().unwrap();
        let mut leader = None;
        let mut last = String::new();
        eventually(limit, &format!("{} has settled", self.fullname()), async || {
            let replicas = self.replicas();
            let ready = replicas.iter().filter(|replica| replica.ready).count();
            let holder = server.holder().await;
            let labelled = self.labelled();
            let endpoints = self.stage.watched.seen().endpoints_of(&self.leader_service());
            let exporting: Vec<_> = replicas.iter().filter(|replica| exports(replica)).map(|replica| &replica.name).collect();
            let labels: Vec<_> = labelled.iter().map(|replica| &replica.name).collect();
            last = format!("{ready} of {wanted} ready, holder {holder:?}, labelled {labels:?}, exporting {exporting:?}, endpoints {endpoints:?}");
            let [one] = &labelled[..] else { return false };
            let agree = one.address == holder && exporting == [&one.name] && endpoints.iter().eq([&one.name]);
            leader = Some(one.clone()).filter(|_| agree && ready == wanted && replicas.len() == wanted);
            leader.is_some()
        })
        .await;
        leader.unwrap_or_else(|| panic!("{last}"))
    }

    /// Begins to record its replicas and its leader Service.
    pub(crate) async fn record(&self) -> Recording {
        self.record_every(PERIOD).await
    }

    /// The same, at another period.
    pub(crate) async fn record_every(&self, period: Duration) -> Recording {
        let services = self.stage.cluster.api::<Service>(&self.stage.namespace);
        let service = services.get(&self.leader_service()).await.unwrap();
        let cluster_ip = service.spec.and_then(|spec| spec.cluster_ip).unwrap().parse().unwrap();
        let subject = Subject {
            instance: self.name.clone(),
            service: self.leader_service(),
            cluster_ip: SocketAddr::new(cluster_ip, PORT),
            oldest: OLDEST,
        };
        Recording::begin(subject, self.stage.watched.shared(), period)
    }

    /// How long there may be no gauges after a kind of fault, as the replicas themselves declare it.
    pub(crate) fn bound(&self, fault: Fault) -> Duration {
        let family = format!("retsu_collector_failover_bound_seconds{{fault=\"{}\"}} ", fault.label());
        let bounds: BTreeMap<_, _> =
            self.replicas().iter().map(|replica| (replica.name.clone(), value(replica, &family))).collect();
        let bound = bounds.values().flatten().copied().reduce(f64::max);
        Duration::from_secs_f64(bound.unwrap_or_else(|| panic!("no replica declares a bound of {fault:?}: {bounds:?}")))
    }
}

/// The exposition of a replica.
pub(crate) fn exposition(replica: &Replica) -> Option<String> {
    let body = scrape(&mut None, SocketAddr::new(replica.address?, PORT), TIMEOUT).ok()?;
    String::from_utf8(body).ok()
}

/// Whether a replica exports the state gauges.
pub(crate) fn exports(replica: &Replica) -> bool {
    exposition(replica).is_some_and(|text| text.contains("\nqueue_messages_ready{"))
}

/// The value of the line of a replica's exposition that begins with `series`.
pub(crate) fn value(replica: &Replica, series: &str) -> Option<f64> {
    exposition(replica)?.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// The image under test, the Secret, and everything that Prometheus needs.
fn base_values() -> Value {
    let image = std::env::var("RETSU_E2E_IMAGE").expect("RETSU_E2E_IMAGE is not set: run `make e2e-test`");
    let (repository, tag) = image.rsplit_once(':').expect("RETSU_E2E_IMAGE has no tag");
    json!({
        "image": {"repository": repository, "tag": tag},
        "database": {"existingSecret": {"name": SECRET}},
        "serviceMonitor": {"enabled": true, "leader": {"enabled": true}},
        "prometheusRule": {"enabled": true},
    })
}
