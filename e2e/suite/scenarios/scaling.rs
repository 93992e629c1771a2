//! `kubectl scale`.

use std::sync::Arc;

use retsu_collector::election::Fault;
use serde_json::json;

use crate::postgresql::Server;
use crate::release::Release;
use crate::stage::Stage;

/// Fewer replicas never take the leader while there are standbys, and more replicas take nothing from it.
pub(crate) async fn the_leader_stays_when_replicas_come_and_go(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let leader = release.settled(&server).await;
    let recording = release.record().await;
    // A scrape that a slow machine gives up is no answer without gauges, which there must not be.
    recording.fault("kubectl scale", release.bound(Fault::Graceful));
    for replicas in [1, 2, 5, 1] {
        release.scale(replicas).await;
        let now = release.settled(&server).await;
        assert_eq!(now.name, leader.name, "the leader changed on the way to {replicas} replicas");
    }
    let recorded = recording.finish();
    recorded.assert_kept();
    recorded.assert_led_throughout(&leader.name);
    let events = release.events_of(&leader.name).await;
    assert!(events.iter().all(|(reason, _)| reason != "LeadershipLost"), "{events:?}");
}
