//! Who takes over when, and on what proof: the lock is held by a session of the test that says it is term 1/7 of the
//! Pod `a`, and the real program waits in the Pod `b`.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::iter;
use kube::api::{Patch, PatchParams};
use retsu_collector::election::ACQUIRED;
use serde_json::{Value, json};

use super::stage::{Holder, LIMIT, SKIPPED, WAITING, agreement, note_of_seven, repairs_and_sweeps, value};
use crate::support::keys;
use crate::support::kubernetes::{ApiProxy, COST, Call, Change, Cluster, Fault, Labels, ROLE, TERM, Webhook};
use crate::support::{self, Collector, Config, History, eventually, throughout};

const FENCE: Duration = Duration::from_secs(3);

/// A fence for what has to happen before a take-over wait is over, on a machine that is busy.
const AMPLE: Duration = Duration::from_secs(20);

const HELD: &str = "retsu_collector_election_attempts_total{outcome=\"held\"}";

/// How many stages there are at a time.
const AT_ONCE: usize = 7;

/// What may happen to the Pod `a` before its lock is free.
type Scene = (&'static str, for<'s> fn(&'s Stage) -> BoxFuture<'s, ()>);

struct Stage {
    cluster: Cluster,
    database: support::Database,
    api: ApiProxy,
    holder: Holder,
    b: Collector,
    /// The annotation of `a`.
    note: Value,
}

impl Stage {
    /// `b` has seen lock and label, and tries the lock every `retry` seconds. Everybody's fence is `fence`.
    async fn set(retry: f32, fence: Duration) -> Self {
        let (cluster, database) = (Cluster::new().await, support::queue_database().await);
        let advert = format!("retsu-collector F={}ms T=1/7 a", fence.as_millis());
        let holder = Holder::take(&database.url(), &advert).await;
        cluster.pod("a").await;
        let container = cluster.container("a").await.container_id;
        let note = note_of_seven(&database.url(), container.as_deref()).await;
        cluster.set_label("a", ROLE, Some("leader")).await;
        cluster.set_annotation("a", TERM, Some(&note.to_string())).await;
        let api = ApiProxy::start(cluster.server()).await;
        let configure = |config: &mut Config| _ = config.set(keys::RETRY, retry).set(keys::FENCE, fence.as_secs());
        let b = cluster.collector_at(&api.url(), "b", &database.url(), configure).await;
        b.wait_for_log(WAITING, LIMIT).await;
        eventually(LIMIT, "b has seen lock and label", async || agreement(&b).await == Some("one")).await;
        Self { cluster, database, api, holder, b, note }
    }

    /// Changes members of the annotation of `a`.
    async fn annotate(&self, changes: Value) {
        let mut note = self.note.clone();
        note.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        self.cluster.set_annotation("a", TERM, Some(&note.to_string())).await;
    }

    /// The kubelet tells that a container has ended.
    async fn terminated(&self, id: &str, reason: &str, finished: &str) {
        let status = json!({
            "name": "retsu-collector", "image": "", "imageID": "", "restartCount": 0, "ready": false,
            "containerID": id,
            "state": {"terminated":
                {"containerID": id, "exitCode": 137, "reason": reason, "startedAt": null, "finishedAt": finished}},
        });
        self.cluster.merge_status("a", json!({"containerStatuses": [status]})).await;
    }

    fn container(&self) -> &str {
        self.note["container"].as_str().unwrap()
    }

    /// Frees the lock, and waits until `b` exports. Returns how long that took from before the lock was free.
    async fn hand_over(self) -> (Duration, Collector, Cluster) {
        let freed = self.holder.release().await;
        self.b.wait_for_log(ACQUIRED, LIMIT).await;
        eventually(LIMIT, "b exports", async || self.b.exports().await).await;
        (freed.elapsed(), self.b, self.cluster)
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// The patch of `a` by which its annotation is claimed.
fn is_claim(call: &Call) -> bool {
    call.is("patch", "pods") && call.name.as_deref() == Some("a")
}

const PROOFS: [Scene; 3] = [
    ("the marker of the term", |stage| Box::pin(stage.annotate(json!({"withdrawn": true})))),
    ("its container has terminated", |stage| Box::pin(async { _ = stage.cluster.terminate("a").await })),
    ("its container was restarted", |stage| Box::pin(async { _ = stage.cluster.restart_container("a").await })),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_of_the_end_of_the_last_holder_ends_the_take_over_wait() {
    let proved = async |(what, scene): Scene| {
        let stage = Stage::set(1.0, AMPLE).await;
        scene(&stage).await;
        let (took, b, cluster) = stage.hand_over().await;
        println!("{what}: b exported {took:?} after the lock was free");
        assert!(took < AMPLE, "{what}: {took:?}");
        assert_eq!(b.count_in_log(SKIPPED), 1, "{what}");
        let annotations = cluster.get("a").await.unwrap().metadata.annotations.unwrap_or_default();
        assert!(!annotations.contains_key(TERM), "{what}: the proof is used up");
    };
    join_all(PROOFS.map(proved)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_has_ended_loses_its_label_with_the_proof_before_the_next_leader_exports() {
    let stage = Stage::set(1.0, AMPLE).await;
    stage.cluster.set_annotation("a", COST, Some("100")).await;
    let labels = Labels::watch(&stage.cluster).await;
    let began = Instant::now();
    stage.cluster.terminate("a").await;
    let (_, b, _cluster) = stage.hand_over().await;
    let claimed = |change: &Change| change.pod == "a" && change.carried.as_ref().is_some_and(|pod| pod.term.is_none());
    let claimed = labels.wait_for("the proof is used up", LIMIT, began, claimed).await.carried.unwrap();
    assert_eq!((claimed.role, claimed.cost), (None, None), "in one patch, and nobody exports before its answer");
    assert_eq!((b.count_in_log(SKIPPED), repairs_and_sweeps(&b).await), (1, [0, 0, 1]));
}

const NO_PROOFS: [Scene; 17] = [
    ("its label is gone", |stage| Box::pin(async { _ = stage.cluster.set_label("a", ROLE, None).await })),
    ("its Pod was deleted by force", |stage| Box::pin(stage.cluster.delete("a", true))),
    ("its Pod is being deleted", |stage| Box::pin(stage.cluster.delete("a", false))),
    ("its Pod has failed", |stage| {
        Box::pin(async { _ = stage.cluster.merge_status("a", json!({"phase": "Failed"})).await })
    }),
    ("the status of its container is unknown", |stage| {
        Box::pin(async { stage.terminated(stage.container(), "ContainerStatusUnknown", &now()).await })
    }),
    ("another container has terminated", |stage| {
        Box::pin(async { stage.terminated("containerd://another", "Error", &now()).await })
    }),
    ("its container terminated before the term was granted", |stage| {
        Box::pin(async { stage.terminated(stage.container(), "Error", "2020-01-01T00:00:00Z").await })
    }),
    ("its container is not known", |stage| {
        Box::pin(async {
            stage.annotate(json!({"container": null})).await;
            stage.cluster.terminate("a").await;
        })
    }),
    ("a marker of a term that never exported", |stage| {
        Box::pin(stage.annotate(json!({"exported": false, "withdrawn": true})))
    }),
    ("the marker of another term", |stage| Box::pin(stage.annotate(json!({"term": "1/8", "withdrawn": true})))),
    ("the marker of another timeline", |stage| Box::pin(stage.annotate(json!({"term": "2/7", "withdrawn": true})))),
    ("the marker of another server", |stage| {
        Box::pin(stage.annotate(json!({"system": "7300000000000000001", "withdrawn": true})))
    }),
    ("an annotation that cannot be read", |stage| {
        Box::pin(stage.annotate(json!({"granted": "yesterday", "withdrawn": true})))
    }),
    ("a claim that is refused", |stage| {
        stage.api.inject(is_claim, Fault::Status(403));
        Box::pin(stage.annotate(json!({"withdrawn": true})))
    }),
    ("a claim that is never answered", |stage| {
        stage.api.inject(is_claim, Fault::Hang);
        Box::pin(stage.annotate(json!({"withdrawn": true})))
    }),
    ("a claim whose answer is lost", |stage| {
        stage.api.inject(is_claim, Fault::LoseAnswer);
        Box::pin(stage.annotate(json!({"withdrawn": true})))
    }),
    ("an annotation that was edited before it was claimed", |stage| {
        stage.api.inject_times(1, is_claim, Fault::Hold);
        Box::pin(stage.annotate(json!({"withdrawn": true})))
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_else_ends_it() {
    let waited = async |(what, scene): Scene| {
        let stage = Stage::set(1.0, FENCE).await;
        scene(&stage).await;
        if what.contains("edited") {
            edit_before_the_claim(stage).await;
            return;
        }
        let (took, b, _cluster) = stage.hand_over().await;
        assert!(took >= FENCE, "{what}: b exported {took:?} after the lock was free");
        assert_eq!(b.count_in_log(SKIPPED), 0, "{what}");
    };
    iter(NO_PROOFS).map(waited).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// The annotation that a claim was made for is replaced while the claim is on its way.
async fn edit_before_the_claim(stage: Stage) {
    let Stage { holder, b, api, cluster, note, .. } = stage;
    let freed = holder.release().await;
    eventually(LIMIT, "b claims", async || api.count(is_claim) > 0).await;
    cluster.set_annotation("a", TERM, Some(&note.to_string())).await;
    api.release();
    eventually(LIMIT, "b exports", async || b.exports().await).await;
    assert!(freed.elapsed() >= FENCE, "b exported {:?} after the lock was free", freed.elapsed());
    assert_eq!(b.count_in_log(SKIPPED), 0);
    assert_eq!(api.calls().iter().find(|call| is_claim(call)).unwrap().status, Some(422));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_seen_longer_ago_than_a_fence_may_not_have_been_the_last() {
    let stage = Stage::set(5.0, FENCE).await;
    let before = value(&stage.b, HELD).await.unwrap();
    stage.annotate(json!({"withdrawn": true})).await;
    // The attempts of the burst that the marker has begun, and one that polling adds.
    eventually(LIMIT, "b has tried the lock", async || value(&stage.b, HELD).await >= Some(before + 6)).await;
    let (took, b, _cluster) = stage.hand_over().await;
    assert!(took >= FENCE, "b exported {took:?} after the lock was free");
    assert_eq!(b.count_in_log(SKIPPED), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_saw_one_marker_only_the_first_skips() {
    // `b` has to export before `c` tries the lock again.
    let (fence, retry) = (Duration::from_secs(10), 5);
    let stage = Stage::set(0.2, fence).await;
    // `c` has seen the marker, and nothing after that.
    stage.annotate(json!({"withdrawn": true})).await;
    let (url, api) = (stage.database.url(), ApiProxy::start(stage.cluster.server()).await);
    let c = stage
        .cluster
        .collector_at(&api.url(), "c", &url, |config| {
            config.set(keys::RETRY, retry).set(keys::FENCE, fence.as_secs());
        })
        .await;
    c.wait_for_log(WAITING, LIMIT).await;
    eventually(LIMIT, "c has seen lock and label", async || agreement(&c).await == Some("one")).await;
    api.inject(|call| ["list", "watch"].contains(&call.verb), Fault::Hang);
    api.reset_connections();
    let held = value(&c, HELD).await.unwrap();
    eventually(LIMIT, "c has just tried the lock", async || value(&c, HELD).await.unwrap() > held).await;

    let history = History::watch(&[&stage.b, &c]);
    let freed = stage.holder.release().await;
    eventually(LIMIT, "b exports", async || history.exporting() == [0]).await;
    println!("b exported {:?} after the lock was free", freed.elapsed());
    stage.b.sigstop();
    super::stage::terminate_holder(&url).await;
    let acquired = c.wait_for_log(ACQUIRED, LIMIT).await;
    assert_eq!(stage.b.count_in_log(SKIPPED), 1);
    stage.b.sigcont();
    eventually(LIMIT, "c exports", async || history.exporting() == [1]).await;
    assert!(acquired.elapsed() > fence - Duration::from_millis(500), "{:?}", acquired.elapsed());
    assert_eq!(c.count_in_log(SKIPPED), 0);
    let claim = api.calls().into_iter().find(is_claim).map(|call| call.status);
    assert_eq!(claim, Some(Some(422)), "c did not see what it should have claimed");
    assert_eq!(history.finish("two saw one marker").overlaps(), []);
}

const OCCASIONS: [Scene; 3] = [
    ("the marker", |stage| Box::pin(stage.annotate(json!({"withdrawn": true})))),
    ("the label is gone", |stage| Box::pin(async { _ = stage.cluster.set_label("a", ROLE, Some("standby")).await })),
    ("the container has terminated", |stage| Box::pin(async { _ = stage.cluster.terminate("a").await })),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_tries_the_lock_at_once_when_the_place_seems_to_be_free() {
    let tried = async |(what, scene): Scene| {
        let mut stage = Stage::set(300.0, FENCE).await;
        let other = Holder::take(&support::database().await.url(), "").await;
        let holder = std::mem::replace(&mut stage.holder, other);
        holder.release().await;
        let began = Instant::now();
        scene(&stage).await;
        stage.b.wait_for_log(ACQUIRED, LIMIT).await;
        println!("{what}: b leads {:?} after it", began.elapsed());
    };
    join_all(OCCASIONS.map(tried)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_occasion_is_a_burst_of_five_attempts_and_a_second_has_one_burst() {
    let stage = Stage::set(20.0, FENCE).await;
    let attempts = async || value(&stage.b, HELD).await.unwrap();
    assert_eq!(attempts().await, 1);
    stage.cluster.set_label("a", ROLE, None).await;
    eventually(LIMIT, "a burst of attempts", async || attempts().await == 6).await;
    throughout(Duration::from_secs(1), "no more than that", async || attempts().await == 6).await;

    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        stage.cluster.set_label("a", ROLE, Some("leader")).await;
        stage.cluster.set_label("a", ROLE, None).await;
    }
    throughout(Duration::from_secs(1), "one burst a second", async || {
        let attempts = attempts().await;
        // A burst each second, one more for the last occasion, and one that polling may add.
        attempts <= 6 + 5 * (began.elapsed().as_secs() + 2) + 1
    })
    .await;
    assert!(attempts().await >= 6 + 5, "not tried again");
    let tried = attempts().await;
    eventually(LIMIT, "polling goes on", async || attempts().await > tried).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_annotation_that_is_put_back_when_it_is_claimed_proves_nothing() {
    let stage = Stage::set(1.0, FENCE).await;
    stage.annotate(json!({"withdrawn": true})).await;
    let mut note = stage.note.clone();
    note["withdrawn"] = true.into();
    let _webhook = Webhook::start(&stage.cluster, &[], &[(TERM, &note.to_string())]).await;
    let (took, b, _cluster) = stage.hand_over().await;
    assert!(took >= FENCE, "b exported {took:?} after the lock was free");
    assert_eq!(b.count_in_log(SKIPPED), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_fails_is_not_repeated_for_everything_that_happens_to_pods() {
    let stage = Stage::set(1.0, AMPLE).await;
    stage.api.inject(is_claim, Fault::Status(500));
    stage.annotate(json!({"withdrawn": true})).await;
    let Stage { cluster, api, holder, b, .. } = stage;
    // A watch tells in order: whoever has seen the label of `c`, or its end, has seen what was before.
    cluster.pod("c").await;
    cluster.set_label("c", ROLE, Some("leader")).await;
    eventually(LIMIT, "b has seen the marker", async || agreement(&b).await == Some("two")).await;
    holder.release().await;
    eventually(LIMIT, "b claims", async || api.count(is_claim) > 0).await;
    let pods = cluster.pods().await;
    for count in 0..100 {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"count": count.to_string()}}}));
        pods.patch("c", &PatchParams::default(), &patch).await.unwrap();
    }
    cluster.set_label("c", ROLE, None).await;
    eventually(LIMIT, "b has seen it all", async || agreement(&b).await != Some("two")).await;

    let claims: Vec<_> = api.calls().into_iter().filter(is_claim).map(|call| call.at).collect();
    let within = claims.iter().filter(|at| **at - claims[0] < FENCE).count();
    assert!(within <= 10, "{within} claims within {FENCE:?}");
    let mut shortest = Duration::from_millis(25);
    for pair in claims.windows(2) {
        assert!(pair[1] - pair[0] >= shortest, "{:?} between two claims, not {shortest:?}", pair[1] - pair[0]);
        shortest = (2 * shortest).min(Duration::from_millis(500));
    }
}
