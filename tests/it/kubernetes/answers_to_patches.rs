//! What the API answers to a patch instead of taking it.

use std::time::{Duration, Instant};

use super::replicas::{LIMIT, RIGHT, Replica, is_patch, wait_until_only};
use crate::support::kubernetes::{Change, Cluster, Fault, Labels, ROLE, TERM};
use crate::support::{self, throughout};

/// What a server asks for in the tests.
const ASKED: Duration = Duration::from_secs(3);

/// Of the program, for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A leader `a`, labelled so, and the observer.
async fn leader(cluster: &Cluster, database: &support::Database) -> (Replica, Labels) {
    let a = Replica::start(cluster, "a", database, |config| {
        config.set("kubernetes.request_timeout_seconds", REQUEST_TIMEOUT.as_secs());
    })
    .await;
    let labels = Labels::watch(cluster).await;
    a.wait_until_it_exports().await;
    wait_until_only(&labels, "a", &[], LIMIT).await;
    a.wait_for_label("set").await;
    (a, labels)
}

/// Takes the label off `a`. Returns the instant before that, when the watch has told of it.
async fn take_label(cluster: &Cluster, labels: &Labels) -> Instant {
    let began = Instant::now();
    cluster.set_label("a", ROLE, None).await;
    let taken = |change: &Change| change.carried.as_ref().is_some_and(|carried| carried.role.is_none());
    labels.wait_for("the label is gone", LIMIT, began, taken).await;
    began
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_patch_is_made_again_from_what_the_pod_says_then() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (a, labels) = leader(&cluster, &database).await;
    let faults = [409, 422, 500, 503].map(Fault::Status).into_iter().chain([
        Fault::Plain(502),
        Fault::Reset,
        Fault::LoseAnswer,
        Fault::Hang,
    ]);
    for fault in faults {
        a.proxy.inject_times(2, is_patch, fault);
        let began = take_label(&cluster, &labels).await;
        let within = RIGHT + if fault == Fault::Hang { 2 * REQUEST_TIMEOUT } else { Duration::ZERO };
        wait_until_only(&labels, "a", &[], within).await;
        let patches = a.patches_since(began).len();
        println!("{fault:?}: right after {:?}, {patches} patches", began.elapsed());
        // One that has arrived is seen by the watch.
        assert_eq!(patches, if fault == Fault::LoseAnswer { 1 } else { 3 }, "{fault:?}");
        a.wait_for_label("set").await;
        a.proxy.clear();
        assert!(a.collector.exports().await);
    }
    assert_eq!(a.value("retsu_collector_leader_label").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_that_goes_on_failing_is_tried_at_a_measured_pace() {
    const WINDOW: Duration = Duration::from_secs(5);
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (a, labels) = leader(&cluster, &database).await;
    a.proxy.inject(is_patch, Fault::Status(500));
    let began = take_label(&cluster, &labels).await;
    throughout(WINDOW, "it leads, label or not", async || a.collector.exports().await).await;
    let tries = a.patches_since(began).iter().filter(|call| call.at < began + WINDOW).count();
    // Doubling from 25..50 ms: five within the first second, then one or two a second.
    assert!((6..=16).contains(&tries), "{tries} tries");
    assert_eq!(a.label().await["state"], "pending");
    a.proxy.clear();
    wait_until_only(&labels, "a", &[], RIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_time_gets_it_wherever_it_says_so() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (a, labels) = leader(&cluster, &database).await;
    cluster.pod("other").await;
    let seconds = Some(u32::try_from(ASKED.as_secs()).unwrap());
    for (header, details) in [(None, seconds), (seconds, None), (seconds, Some(1)), (Some(1), seconds)] {
        a.proxy.inject_times(1, is_patch, Fault::TooManyRequests { header, details });
        let began = take_label(&cluster, &labels).await;
        support::eventually(LIMIT, "it is patched again", async || {
            // What happens to other Pods is no reason to hurry.
            cluster.set_annotation("other", "at", Some(&format!("{:?}", began.elapsed()))).await;
            a.patches_since(began).len() > 1
        })
        .await;
        wait_until_only(&labels, "a", &[], RIGHT).await;
        let patches = a.patches_since(began);
        let waited = patches[1].at - patches[0].at;
        assert!(waited >= ASKED, "{header:?} {details:?}: {waited:?}");
        println!("{header:?} {details:?}: the next after {waited:?}");
        a.wait_for_label("set").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_has_written_since_is_not_overwritten() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let (a, labels) = leader(&cluster, &database).await;
    let note = labels.carried()["a"].term.clone().unwrap();
    // A patch is on its way, and the Pod is changed before it arrives.
    a.proxy.inject_times(1, is_patch, Fault::Hold);
    let began = take_label(&cluster, &labels).await;
    support::eventually(LIMIT, "the patch is held", async || a.patches_since(began).len() == 1).await;
    cluster.set_label("a", "colour", Some("red")).await;
    a.proxy.release();
    wait_until_only(&labels, "a", &[], RIGHT).await;
    // The watch may tell of a patch before its answer is in the journal.
    support::eventually(LIMIT, "one patch fails, the next does not", async || {
        let statuses: Vec<_> = a.patches_since(began).into_iter().map(|call| call.status).collect();
        statuses == [Some(409), Some(200)]
    })
    .await;
    let pod = cluster.get("a").await.unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["colour"], "red");
    assert_eq!(pod.metadata.annotations.unwrap()[TERM], note);
}
