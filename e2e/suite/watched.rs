//! The Pods and EndpointSlices of a namespace, as watches tell of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// The label of the chart that says what instance a Pod is of.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// The label by which a Service finds the leader.
pub(crate) const ROLE: &str = "retsu.io/collector-role";

/// The container of the collector.
pub(crate) const CONTAINER: &str = "retsu-collector";

/// What is known of one replica.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Replica {
    /// The Pod's name.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
    /// The release.
    pub(crate) instance: String,
    /// Where it runs.
    pub(crate) node: Option<String>,
    /// Where it is reached.
    pub(crate) address: Option<IpAddr>,
    /// The id of its container, without the runtime.
    pub(crate) container: Option<String>,
    /// What its label says.
    pub(crate) role: Option<String>,
    /// Whether its container is ready.
    pub(crate) ready: bool,
    /// How often its container was restarted.
    pub(crate) restarts: i32,
    /// Whether it is being deleted.
    pub(crate) terminating: bool,
}

/// Everything that was seen since the watches began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The Pods with a collector that there are.
    pub(crate) replicas: BTreeMap<String, Replica>,
    /// How often the container of each Pod was restarted, also of Pods that are gone.
    pub(crate) restarts: BTreeMap<String, i32>,
    /// Every change of a role, in the order of time: when, which Pod, what it became.
    pub(crate) roles: Vec<(Instant, String, Option<String>)>,
    /// Every change of the ready endpoints of a Service: when, which Service, which Pods they became.
    pub(crate) endpoints: Vec<(Instant, String, BTreeSet<String>)>,
    /// The ready endpoints of each EndpointSlice, by Service and slice.
    slices: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Seen {
    /// The Pods that a Service leads to.
    pub(crate) fn endpoints_of(&self, service: &str) -> BTreeSet<String> {
        let slices = self.slices.iter().filter(|((of, _), _)| of == service);
        slices.flat_map(|(_, pods)| pods.iter().cloned()).collect()
    }

    fn take_pod(&mut self, pod: &Pod, now: Instant) {
        let Some(replica) = replica(pod) else { return };
        let restarts = self.restarts.entry(replica.name.clone()).or_default();
        *restarts = (*restarts).max(replica.restarts);
        let before = self.replicas.insert(replica.name.clone(), replica.clone());
        if before.and_then(|before| before.role) != replica.role {
            self.roles.push((now, replica.name, replica.role));
        }
    }

    fn take_slice(&mut self, slice: &EndpointSlice, gone: bool, now: Instant) {
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
        let (Some(service), Some(name)) = (service, &slice.metadata.name) else { return };
        let ready = slice
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
        let pods = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone()).collect();
        let before = self.endpoints_of(service);
        let key = (service.clone(), name.clone());
        if gone {
            self.slices.remove(&key)
        } else {
            self.slices.insert(key, pods)
        };
        let after = self.endpoints_of(service);
        if before != after {
            self.endpoints.push((now, service.clone(), after));
        }
    }
}

/// The watches of one namespace, until they are dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 2],
}

impl Watched {
    /// Begins to watch.
    pub(crate) fn begin(cluster: &Cluster, namespace: &str) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let pods = watcher(cluster.api::<Pod>(namespace), watcher::Config::default());
        let slices = watcher(cluster.api::<EndpointSlice>(namespace), watcher::Config::default());
        let tasks = [
            tokio::spawn(follow(pods, Arc::clone(&seen), |seen, pod, gone, now| {
                if gone {
                    seen.replicas.remove(pod.metadata.name.as_deref().unwrap_or_default());
                } else {
                    seen.take_pod(pod, now);
                }
            })),
            tokio::spawn(follow(slices, Arc::clone(&seen), Seen::take_slice)),
        ];
        Self { seen, tasks }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for a thread of its own.
    pub(crate) fn shared(&self) -> Arc<Mutex<Seen>> {
        Arc::clone(&self.seen)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Takes every object of a watch. Objects that went while a watch was interrupted are gone with its next beginning.
async fn follow<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>>,
    seen: Arc<Mutex<Seen>>,
    take: impl Fn(&mut Seen, &K, bool, Instant),
) where
    K: kube::Resource + Clone,
{
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut known: BTreeMap<String, K> = BTreeMap::new();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    while let Some(event) = stream.next().await {
        // An interrupted watch is begun again by the stream itself.
        let Ok(event) = event else { continue };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) | Event::Apply(object) => {
                let name = object.meta().name.clone().unwrap_or_default();
                take(&mut seen, &object, false, now);
                listed.insert(name.clone());
                known.insert(name, object);
            }
            Event::InitDone => {
                for object in known.iter().filter(|(name, _)| !listed.contains(*name)).map(|(_, object)| object) {
                    take(&mut seen, object, true, now);
                }
                known.retain(|name, _| listed.contains(name));
            }
            Event::Delete(object) => {
                known.remove(object.meta().name.as_deref().unwrap_or_default());
                take(&mut seen, &object, true, now);
            }
        }
    }
}

fn replica(pod: &Pod) -> Option<Replica> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.find(|container| container.name == CONTAINER)?;
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let container = statuses.into_iter().find(|container| container.name == CONTAINER);
    let label = |name: &str| pod.metadata.labels.as_ref()?.get(name).cloned();
    Some(Replica {
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
        instance: label(INSTANCE)?,
        node: spec.node_name.clone(),
        address: status.and_then(|status| status.pod_ip.as_ref()?.parse().ok()),
        container: container
            .and_then(|container| Some(container.container_id.as_ref()?.split_once("//")?.1.to_owned())),
        role: label(ROLE),
        ready: container.is_some_and(|container| container.ready),
        restarts: container.map_or(0, |container| container.restart_count),
        terminating: pod.metadata.deletion_timestamp.is_some(),
    })
}
