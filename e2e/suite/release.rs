//! A release of the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use retsu_collector::election::Fault;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::command::run_to_end;
use crate::postgresql::{LOCK_KEY, SECRET, Server};
use crate::recording::{PERIOD, Recording, Subject, TIMEOUT};
use crate::scrape::scrape;
use crate::stage::Stage;
use crate::wait::eventually;
use crate::watched::Replica;

/// From a change of a release to replicas that are ready, lock, label and EndpointSlice in agreement.
pub(crate) const SETTLED: Duration = Duration::from_secs(120);

/// The port of the chart's defaults.
pub(crate) const PORT: u16 = 24247;

/// From a question to the answer of a replica that is up: on a slow machine one or another is late.
const ANSWERS: Duration = Duration::from_secs(10);

/// Collection interval and fence of the chart's defaults, and a second for what is on its way: no snapshot is older.
const OLDEST: Duration = Duration::from_secs(15 + 3 + 1);

/// A release, which lives as long as the namespace.
#[derive(Clone)]
pub(crate) struct Release {
    stage: Arc<Stage>,
    name: String,
    fullname: String,
    lock_key: (i32, i32),
}

impl Release {
    /// Installs the chart as `retsu`, with what every scenario sets and `values` on top, and waits until it has settled.
    pub(crate) async fn install(stage: &Arc<Stage>, server: &Server, values: Value) -> Self {
        let _starting = stage.cluster.starting.lock().await;
        let release = Self::named(stage, "retsu");
        release.apply("install", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        release.settled(server).await;
        release
    }

    /// Installs it under another name, and waits until its replicas are ready, whether one of them may lead or not.
    pub(crate) async fn install_as(stage: &Arc<Stage>, name: &str, values: Value) -> Self {
        let _starting = stage.cluster.starting.lock().await;
        let release = Self::named(stage, name);
        release.apply("install", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        release.rolled_out().await;
        release
    }

    /// Upgrades it to what every scenario sets and `values` on top, and waits for the roll-out.
    pub(crate) async fn upgrade(&self, values: Value) {
        self.apply("upgrade", values).await.unwrap_or_else(|complaint| panic!("{complaint}"));
        self.rolled_out().await;
    }

    async fn apply(&self, command: &str, values: Value) -> Result<String, String> {
        let chart = chart();
        let [mut base, mut own] = [NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap()];
        base.write_all(base_values().to_string().as_bytes()).unwrap();
        own.write_all(values.to_string().as_bytes()).unwrap();
        let [base, own] = [&base, &own].map(|file| file.path().to_str().unwrap().to_owned());
        self.helm(&[command, &self.name, &chart, "--values", &base, "--values", &own]).await
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
        self.fullname.clone()
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
        found(limit, &format!("{} has settled", self.fullname()), async || {
            let replicas = self.replicas();
            let ready = replicas.iter().filter(|replica| replica.ready).count();
            let holder = server.holder_of(self.lock_key).await;
            let labelled = self.labelled();
            let endpoints = self.stage.watched.seen().endpoints_of(&self.leader_service());
            let exporting: Vec<_> = replicas.iter().filter(|replica| exports(replica)).map(|replica| &replica.name).collect();
            let labels: Vec<_> = labelled.iter().map(|replica| &replica.name).collect();
            let seen = format!("{ready} of {wanted} ready, holder {holder:?}, labelled {labels:?}, exporting {exporting:?}, endpoints {endpoints:?}");
            let [one] = &labelled[..] else { return Err(seen) };
            let agree = one.address == holder && exporting == [&one.name] && endpoints.iter().eq([&one.name]);
            if agree && ready == wanted && replicas.len() == wanted { Ok(one.clone()) } else { Err(seen) }
        })
        .await
    }

    /// Waits until a replica is labelled a standby, which its own process alone does.
    pub(crate) async fn becomes_standby(&self, pod: &str, limit: Duration) {
        eventually(limit, &format!("{pod} labels itself a standby"), async || {
            self.replica(pod).is_some_and(|replica| replica.role.as_deref() == Some("standby"))
        })
        .await;
    }

    /// Begins to record its replicas and its leader Service.
    pub(crate) async fn record(&self) -> Recording {
        self.record_every(PERIOD).await
    }

    /// The same, at another period.
    pub(crate) async fn record_every(&self, period: Duration) -> Recording {
        self.record_instances([self.name.clone()].into(), period).await
    }

    /// The same, with the replicas of another release that competes for the same lock.
    pub(crate) async fn record_with(&self, other: &str) -> Recording {
        self.record_instances([self.name.clone(), other.to_owned()].into(), PERIOD).await
    }

    async fn record_instances(&self, instances: BTreeSet<String>, period: Duration) -> Recording {
        let cluster_ip = self.cluster_ip().await;
        let subject = Subject { instances, service: self.leader_service(), cluster_ip, oldest: OLDEST };
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

    /// Installs the chart as its README says: with the image and the Secret, and the defaults for the rest. Returns what
    /// Helm prints.
    pub(crate) async fn install_with_defaults(stage: &Arc<Stage>) -> (Self, String) {
        let release = Self::named(stage, "retsu");
        let (repository, tag) = image();
        let set = [("image.repository", &*repository), ("image.tag", &tag), ("database.existingSecret.name", SECRET)];
        let set = set.map(|(value, text)| format!("--set={value}={text}"));
        let chart = chart();
        let [repository, tag, secret] = &set;
        let notes = release.helm(&["install", &release.name, &chart, repository, tag, secret]).await;
        (release, notes.unwrap_or_else(|complaint| panic!("{complaint}")))
    }

    /// What was applied without Helm, from `manifests/`.
    pub(crate) fn of_manifests(stage: &Arc<Stage>) -> Self {
        Self { fullname: "retsu-collector".to_owned(), ..Self::named(stage, "retsu") }
    }

    fn named(stage: &Arc<Stage>, name: &str) -> Self {
        let (stage, name) = (Arc::clone(stage), name.to_owned());
        let fullname = if name.contains("retsu-collector") { name.clone() } else { format!("{name}-retsu-collector") };
        Self { stage, name, fullname, lock_key: LOCK_KEY }
    }

    /// The release, when its values have another lock than the chart's.
    pub(crate) fn locking(self, lock_key: (i32, i32)) -> Self {
        Self { lock_key, ..self }
    }

    /// What the Pod of `helm test` has found; it has to succeed. Helm prints logs on standard error.
    pub(crate) async fn test(&self) -> String {
        let mut helm = self.stage.cluster.helm_command(&["test", &self.name, "--namespace", &self.stage.namespace]);
        run_to_end(&mut helm).await.unwrap_or_else(|complaint| panic!("{complaint}")).1
    }

    /// Where the leader Service is reached.
    pub(crate) async fn cluster_ip(&self) -> SocketAddr {
        let services = self.stage.cluster.api::<Service>(&self.stage.namespace);
        let service = services.get(&self.leader_service()).await.unwrap();
        SocketAddr::new(service.spec.and_then(|spec| spec.cluster_ip).unwrap().parse().unwrap(), PORT)
    }

    /// The lock of its values.
    pub(crate) fn lock_key(&self) -> (i32, i32) {
        self.lock_key
    }

    /// Whether a service account of the namespace may do something; `None` while that is not known.
    pub(crate) async fn can(&self, account: &str, verb: &str, resource: &str) -> Option<bool> {
        let namespace = &self.stage.namespace;
        let account = format!("system:serviceaccount:{namespace}:{account}");
        let question = ["auth", "can-i", verb, resource, "--namespace", namespace, "--as", &account];
        match self.stage.cluster.try_kubectl(&question).await {
            Ok(_) => Some(true),
            Err(complaint) => complaint.lines().any(|line| line == "no" || line.starts_with("no - ")).then_some(false),
        }
    }

    /// Reason and note of every Event that is about a Pod.
    pub(crate) async fn events_of(&self, pod: &str) -> Vec<(String, String)> {
        let events = self.stage.cluster.api::<Event>(&self.stage.namespace).list(&ListParams::default()).await.unwrap();
        let about = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pod);
        let events = events.items.into_iter().filter(about);
        events.map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default())).collect()
    }

    /// Whether an Event tells of the term that a replica leads in now.
    pub(crate) async fn tells_of_its_term(&self, replica: &Replica) -> bool {
        let [timeline, number] = ["retsu_collector_term_timeline ", "retsu_collector_term "];
        let Some((timeline, number)) = value(replica, timeline).zip(value(replica, number)) else { return false };
        let acquired = ("LeadershipAcquired".to_owned(), format!("Leads in term {timeline}/{number}"));
        self.events_of(&replica.name).await.contains(&acquired)
    }
}

/// Waits until `look` finds something, and fails with what it saw last when it does not within `limit`.
pub(crate) async fn found<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut found = None;
    let began = Instant::now();
    eventually(limit + PERIOD, what, async || {
        match look().await {
            Ok(one) => found = Some(one),
            Err(seen) => assert!(began.elapsed() < limit, "not within {limit:?}: {what}: {seen}"),
        }
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// The exposition of a replica.
pub(crate) fn exposition(replica: &Replica) -> Option<String> {
    exposition_at(SocketAddr::new(replica.address?, PORT))
}

/// The exposition at an address.
pub(crate) fn exposition_at(address: SocketAddr) -> Option<String> {
    String::from_utf8(scrape(&mut None, address, TIMEOUT).ok()?).ok()
}

/// Whether a replica exports the state gauges.
pub(crate) fn exports(replica: &Replica) -> bool {
    exposition(replica).is_some_and(|text| text.contains("\nqueue_messages_ready{"))
}

/// The value of the line of a replica's exposition that begins with `series`.
pub(crate) fn value(replica: &Replica, series: &str) -> Option<f64> {
    exposition(replica)?.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// The same, as soon as the replica answers with it.
pub(crate) async fn read(replica: &Replica, series: &str) -> f64 {
    answered(&format!("{} answers with {series}", replica.name), || value(replica, series)).await
}

/// Waits for what replicas tell that are up, as soon as each of them has answered.
pub(crate) async fn answered<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    found(ANSWERS, what, async || ask().ok_or_else(String::new)).await
}

/// What a replica says at `/leader`.
pub(crate) async fn says(replica: &Replica) -> Option<Value> {
    let url = format!("http://{}/leader", SocketAddr::new(replica.address?, PORT));
    let client = reqwest::Client::builder().timeout(TIMEOUT).build().unwrap();
    let answer = client.get(url).send().await.ok()?;
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}

/// The image under test, the Secret, and everything that Prometheus needs.
fn base_values() -> Value {
    let (repository, tag) = image();
    json!({
        "image": {"repository": repository, "tag": tag},
        "database": {"existingSecret": {"name": SECRET}},
        // All nodes are one machine: whoever has much to do there must not keep a leader from its heartbeats.
        "resources": {"requests": {"cpu": "100m"}},
        "serviceMonitor": {"enabled": true, "leader": {"enabled": true}},
        "prometheusRule": {"enabled": true},
    })
}

/// Repository and tag of the image under test.
pub(crate) fn image() -> (String, String) {
    let image = std::env::var("RETSU_E2E_IMAGE").expect("RETSU_E2E_IMAGE is not set: run `make e2e-test`");
    let (repository, tag) = image.rsplit_once(':').expect("RETSU_E2E_IMAGE has no tag");
    (repository.to_owned(), tag.to_owned())
}

fn chart() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/retsu-collector").to_str().unwrap().to_owned()
}
