//! Who carries which label when, seen by somebody who only watches.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio_util::sync::CancellationToken;

use super::Cluster;
use crate::support::eventually;

/// Label that says which Pod leads.
pub(crate) const ROLE: &str = "retsu.io/collector-role";

/// Annotation of the last term of a Pod.
pub(crate) const TERM: &str = "retsu.io/collector-term";

/// Annotation that orders the Pods of a ReplicaSet when it is scaled down.
pub(crate) const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Until the watch has begun.
const BEGIN: Duration = Duration::from_secs(20);

/// What a Pod carries; `None` is absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Carried {
    /// Value of [`ROLE`].
    pub(crate) role: Option<String>,
    /// Text of [`TERM`].
    pub(crate) term: Option<String>,
    /// Value of [`COST`].
    pub(crate) cost: Option<String>,
}

impl Carried {
    fn of(pod: &Pod) -> Self {
        let label = |key| pod.metadata.labels.as_ref()?.get(key).cloned();
        let annotation = |key| pod.metadata.annotations.as_ref()?.get(key).cloned();
        Self { role: label(ROLE), term: annotation(TERM), cost: annotation(COST) }
    }

    /// Whether it is the label that a Service selects.
    pub(crate) fn leads(&self) -> bool {
        self.role.as_deref() == Some("leader")
    }
}

/// One change of what one Pod carries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Change {
    /// When the watch told it.
    pub(crate) at: Instant,
    /// The Pod's name.
    pub(crate) pod: String,
    /// Tells Pods of one name apart.
    pub(crate) uid: String,
    /// What it carries since; `None` when the Pod is gone.
    pub(crate) carried: Option<Carried>,
}

/// Watches every Pod of a namespace, on a thread of its own: no test delays the instants.
#[derive(Debug)]
pub(crate) struct Labels {
    history: Arc<Mutex<Vec<Change>>>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Labels {
    /// Starts to watch, and returns when the Pods of this instant are in the history.
    pub(crate) async fn watch(cluster: &Cluster) -> Self {
        let (history, stop, begun) =
            (Arc::<Mutex<Vec<_>>>::default(), CancellationToken::new(), CancellationToken::new());
        let (server, namespace) = (Arc::clone(cluster.server()), cluster.namespace().to_owned());
        let thread = {
            let (history, stop, begun) = (Arc::clone(&history), stop.clone(), begun.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let recording = async {
                    let pods = Api::namespaced(server.admin().await, &namespace);
                    record(pods, &history, &begun).await;
                };
                runtime.block_on(stop.run_until_cancelled(recording));
            })
        };
        let labels = Self { history, stop, thread: Some(thread) };
        eventually(BEGIN, "the labels are watched", async || begun.is_cancelled()).await;
        labels
    }

    /// Every change so far, in the order in which the watch told them.
    pub(crate) fn history(&self) -> Vec<Change> {
        self.history.lock().unwrap().clone()
    }

    /// What each Pod carries, as last told.
    pub(crate) fn carried(&self) -> BTreeMap<String, Carried> {
        last(&self.history.lock().unwrap())
    }

    /// The role of each Pod, as last told; `None` for one without the label.
    pub(crate) fn now(&self) -> BTreeMap<String, Option<String>> {
        self.carried().into_iter().map(|(pod, carried)| (pod, carried.role)).collect()
    }

    /// The Pods that carry the label of the leader, as last told.
    pub(crate) fn leaders(&self) -> Vec<String> {
        self.carried().into_iter().filter(|(_, carried)| carried.leads()).map(|(pod, _)| pod).collect()
    }

    /// Waits until the roles of all Pods satisfy `predicate`, and returns when the last change to them was told.
    pub(crate) async fn wait(
        &self,
        what: &str,
        limit: Duration,
        predicate: impl Fn(&BTreeMap<String, Option<String>>) -> bool,
    ) -> Option<Instant> {
        let began = Instant::now();
        while !predicate(&self.now()) {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}\n{}", self.report());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.history.lock().unwrap().last().map(|change| change.at)
    }

    /// Waits for the first change that is told after `since` and satisfies `predicate`, and returns it.
    pub(crate) async fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        since: Instant,
        predicate: impl Fn(&Change) -> bool,
    ) -> Change {
        let find =
            || self.history.lock().unwrap().iter().find(|change| change.at >= since && predicate(change)).cloned();
        let began = Instant::now();
        loop {
            if let Some(change) = find() {
                return change;
            }
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}\n{}", self.report());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Fails the test when a Pod carried the label of the leader for longer than `limit`, all in all, between the
    /// instant it withdrew its gauges and the instant it might export again.
    pub(crate) fn assert_not_stale(&self, pod: &str, withdrew: Instant, until: Instant, limit: Duration) {
        let led = led(&self.history.lock().unwrap(), pod, withdrew, until);
        assert!(led <= limit, "{pod} had withdrawn and carried the label for {led:?}\n{}", self.report());
    }

    /// Fails the test when a Pod was ever told to carry the label together with the marker of its withdrawal.
    pub(crate) fn assert_no_contradiction(&self) {
        let contradiction = |change: &Change| change.carried.as_ref().is_some_and(contradicts);
        assert!(!self.history.lock().unwrap().iter().any(contradiction), "{}", self.report());
    }

    /// The history as text, in seconds before now.
    fn report(&self) -> String {
        let now = Instant::now();
        let line = |change: &Change| {
            let before = now.saturating_duration_since(change.at).as_secs_f64();
            format!("{before:8.3} s ago {} {:?}", change.pod, change.carried)
        };
        self.history.lock().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Labels {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn record(pods: Api<Pod>, history: &Mutex<Vec<Change>>, begun: &CancellationToken) {
    let mut events = pin!(watcher(pods, watcher::Config::default()));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if learn(&mut history.lock().unwrap(), &mut listed, event) {
                    begun.cancel();
                }
            }
            // A server that restarts; the watcher begins again by itself.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Adds an event to the history, and returns whether a list is complete with it. `listed` are the Pods of a list that
/// is not.
fn learn(history: &mut Vec<Change>, listed: &mut Vec<String>, event: Event<Pod>) -> bool {
    match event {
        Event::Apply(pod) => applied(history, &pod),
        Event::Delete(pod) => gone(history, pod.metadata.name.as_deref().unwrap_or_default()),
        Event::Init => listed.clear(),
        Event::InitApply(pod) => {
            applied(history, &pod);
            listed.push(pod.metadata.name.unwrap_or_default());
        }
        Event::InitDone => {
            for pod in last(history).into_keys().filter(|pod| !listed.contains(pod)) {
                gone(history, &pod);
            }
            return true;
        }
    }
    false
}

fn applied(history: &mut Vec<Change>, pod: &Pod) {
    let (name, uid) = (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone().unwrap_or_default());
    let carried = Some(Carried::of(pod));
    let before = history.iter().rev().find(|change| change.pod == name);
    if before.is_none_or(|before| (&before.uid, &before.carried) != (&uid, &carried)) {
        history.push(Change { at: Instant::now(), pod: name, uid, carried });
    }
}

fn gone(history: &mut Vec<Change>, pod: &str) {
    let before = history.iter().rev().find(|change| change.pod == pod);
    if let Some(Change { uid, carried: Some(_), .. }) = before {
        history.push(Change { at: Instant::now(), pod: pod.to_owned(), uid: uid.clone(), carried: None });
    }
}

fn last(history: &[Change]) -> BTreeMap<String, Carried> {
    let mut last = BTreeMap::new();
    for Change { pod, carried, .. } in history {
        match carried {
            Some(carried) => _ = last.insert(pod.clone(), carried.clone()),
            None => _ = last.remove(pod),
        }
    }
    last
}

/// For how long a Pod carried the label of the leader between two instants.
pub(crate) fn led(history: &[Change], pod: &str, from: Instant, until: Instant) -> Duration {
    let changes: Vec<_> = history.iter().filter(|change| change.pod == pod).collect();
    let ends = changes.iter().skip(1).map(|change| change.at).chain([until]);
    let leads = |change: &Change| change.carried.as_ref().is_some_and(Carried::leads);
    changes
        .iter()
        .zip(ends)
        .filter(|(change, _)| leads(change))
        .map(|(change, end)| end.min(until).saturating_duration_since(change.at.max(from)))
        .sum()
}

fn contradicts(carried: &Carried) -> bool {
    let term = carried.term.as_deref().and_then(|term| serde_json::from_str::<serde_json::Value>(term).ok());
    carried.leads() && term.is_some_and(|term| term["withdrawn"] == true)
}

#[test]
fn a_pod_that_a_later_list_lacks_is_gone() {
    let pod = |name: &str| Pod {
        metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        ..Pod::default()
    };
    let (mut history, mut listed) = (Vec::new(), Vec::new());
    let mut learn = |event| learn(&mut history, &mut listed, event);
    for event in [Event::Init, Event::InitApply(pod("a")), Event::InitApply(pod("b"))] {
        assert!(!learn(event));
    }
    assert!(learn(Event::InitDone));
    for event in [Event::Init, Event::InitApply(pod("a"))] {
        assert!(!learn(event));
    }
    assert!(learn(Event::InitDone));
    let seen: Vec<_> = history.iter().map(|change| (change.pod.as_str(), change.carried.is_some())).collect();
    assert_eq!(seen, [("a", true), ("b", true), ("b", false)]);
}
