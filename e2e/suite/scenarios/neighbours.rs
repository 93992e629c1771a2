//! Two releases in one namespace and one database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use retsu_collector::election::Fault;
use serde_json::{Value, json};

use crate::postgresql::Server;
use crate::release::{Release, exports};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// From what is done to a release to what is seen of it.
const SEEN: Duration = Duration::from_secs(60);

/// For how long the second of two with one key is watched.
const WATCHED: Duration = Duration::from_secs(8);

/// Each has a leader, a label and a Service of its own, and what is done to one leaves the other alone.
pub(crate) async fn two_releases_with_different_keys_lead_each_on_its_own(stage: Arc<Stage>) {
    const FAULT: &str = "the leader of one of two releases is deleted";
    let server = Server::start(&stage).await;
    let [first, second] = [("one", (1_919_251_571, 11)), ("two", (1_919_251_571, 12))]
        .map(async |(name, key)| Release::install_as(&stage, name, locking(key)).await.locking(key));
    let (first, second) = tokio::join!(first, second);
    let [old, other] = [first.settled(&server).await, second.settled(&server).await];
    let [of_first, of_second] = [first.record().await, second.record().await];
    eventually(SEEN, "the leader of the first release is seen to export", async || {
        of_first.exporting() == [old.name.clone()]
    })
    .await;
    of_first.fault(FAULT, first.bound(Fault::Graceful));
    // What is done to the first is nothing to the second, whose scrapes may be given up on a slow machine.
    of_second.fault(FAULT, second.bound(Fault::Graceful));
    stage.cluster.api::<Pod>(&stage.namespace).delete(&old.name, &DeleteParams::default()).await.unwrap();
    eventually(SEEN, "the deleted Pod is gone", async || first.replica(&old.name).is_none()).await;
    let new = first.settled(&server).await;
    assert_ne!(new.name, old.name);
    assert_eq!(second.settled(&server).await.name, other.name, "the other release has another leader");
    let [of_first, of_second] = [of_first.finish(), of_second.finish()];
    of_first.assert_kept();
    of_second.assert_kept().assert_led_throughout(&other.name);
    let terms = [&of_first, &of_second].map(|recorded| recorded.leaders().into_iter().map(|(_, term)| term));
    let [terms_of_first, terms_of_second] = terms.map(BTreeSet::from_iter);
    assert_eq!((terms_of_first.len(), terms_of_second.len()), (2, 1), "{terms_of_first:?}, {terms_of_second:?}");
    // A term belongs to one grant of one lock, so an answer tells whose it is.
    assert!(of_first.served().is_subset(&terms_of_first), "{:?} of {terms_of_first:?}", of_first.served());
    assert_eq!(of_second.served(), terms_of_second);
    for (release, recorded) in [(&first, &of_first), (&second, &of_second)] {
        let routed: BTreeSet<_> = recorded.endpoints.iter().flat_map(|(_, pods)| pods.clone()).collect();
        let own: BTreeSet<_> = recorded.names.iter().cloned().collect();
        assert!(routed.is_subset(&own), "{} leads to {routed:?}, and has {own:?}", release.leader_service());
    }
}

/// One of them leads. The other has replicas that are ready, and takes over when the first is uninstalled.
pub(crate) async fn two_releases_with_one_key_have_one_leader(stage: Arc<Stage>) {
    const INSTALLED: &str = "a second release with the same key is installed";
    const FAULT: &str = "the one of two releases that leads is uninstalled";
    let server = Server::start(&stage).await;
    let first = Release::install_as(&stage, "one", json!({})).await;
    let leader = first.settled(&server).await;
    let recording = first.record_with("two").await;
    recording.fault(INSTALLED, first.bound(Fault::Graceful));
    let second = Release::install_as(&stage, "two", json!({})).await;
    let is_standby = |replica: &Replica| replica.role.as_deref() == Some("standby");
    eventually(SEEN, "the second release has two standbys", async || {
        second.replicas().iter().filter(|replica| replica.ready && is_standby(replica)).count() == 2
    })
    .await;
    throughout(WATCHED, "the first release alone leads", async || {
        let routed = stage.watched.seen().endpoints_of(&second.leader_service());
        let idle = second.replicas().iter().all(|replica| is_standby(replica) && !exports(replica));
        routed.is_empty() && idle && server.holder().await == leader.address
    })
    .await;
    let events = first.events_of(&leader.name).await;
    assert!(events.iter().all(|(reason, _)| reason != "LeadershipLost"), "{events:?}");
    recording.fault(FAULT, second.bound(Fault::Graceful));
    first.helm(&["uninstall", first.name()]).await.unwrap_or_else(|complaint| panic!("{complaint}"));
    let new = second.settled(&server).await;
    assert_eq!(new.instance, second.name());
    let recorded = recording.finish();
    recorded.assert_kept();
    assert_eq!(recorded.leaders().last().map(|(name, _)| name), Some(&new.name), "{:?}", recorded.leaders());
}

fn locking((class, object): (i32, i32)) -> Value {
    json!({"config": {"worker": {"queue": {"state_metrics_collector": {"lock_key": [class, object]}}}}})
}
