//! From a change of role to the label in another client's watch, over graceful hand-overs.

use std::time::{Duration, Instant};

use super::bounds::Bounds;
use super::support::kubernetes::{Change, Cluster, Labels};
use super::support::{self, Collector, eventually};
use super::{EXPORTS, LIMIT, WAITS, start};

const HAND_OVERS: usize = 50;

/// From the change of role to the label.
const P50_MS: f64 = 50.0;
const P99_MS: f64 = 200.0;

pub(super) async fn measure(bounds: &mut Bounds) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let mut leader = ("a", start(&cluster, &database, "a", None).await);
    leader.1.wait_for_log(EXPORTS, LIMIT).await;
    let mut standby = ("b", start(&cluster, &database, "b", None).await);
    let (mut labelled, mut unlabelled, mut exported) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..HAND_OVERS {
        standby.1.wait_for_log(WAITS, LIMIT).await;
        let told = Instant::now();
        leader.1.sigterm();
        let role = |pod: &'static str, role: &'static str| {
            move |change: &Change| {
                change.pod == pod
                    && change.carried.as_ref().is_some_and(|carried| carried.role.as_deref() == Some(role))
            }
        };
        let off = labels.wait_for("the old label is gone", LIMIT, told, role(leader.0, "standby")).await.at;
        let on = labels.wait_for("the new label is there", LIMIT, told, role(standby.0, "leader")).await.at;
        let changed = standby.1.wait_for_log(EXPORTS, LIMIT).await;
        unlabelled.push(off - told);
        exported.push(changed - told);
        labelled.push(on.saturating_duration_since(changed));
        let (pod, mut old) = leader;
        old.wait_exit(LIMIT).await;
        cluster.restart_container(pod).await;
        leader = std::mem::replace(&mut standby, (pod, start(&cluster, &database, pod, None).await));
        settled(&leader.1).await;
    }
    println!("\n{HAND_OVERS} graceful hand-overs              p50        p99    highest");
    for (what, times) in [
        ("change of role to leader label", &mut labelled),
        ("signal to standby label", &mut unlabelled),
        ("signal to the next one's gauges", &mut exported),
    ] {
        times.sort();
        println!("  {what:<34} {:>8.1} ms {:>7.1} ms {:>7.1} ms", p(times, 50), p(times, 99), p(times, 100));
    }
    bounds.at_most("change of role to the label in a watch, p50", p(&labelled, 50), P50_MS, "ms");
    bounds.at_most("change of role to the label in a watch, p99", p(&labelled, 99), P99_MS, "ms");
}

/// Waits until a leader says that its label is set.
async fn settled(leader: &Collector) {
    eventually(LIMIT, "the leader knows of its label", async || {
        leader.get("/leader").await.is_ok_and(|(_, answer)| answer.contains(r#""state":"set","role":"leader""#))
    })
    .await;
}

/// The percentile of sorted times, in milliseconds.
fn p(times: &[Duration], percent: usize) -> f64 {
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times[index].as_secs_f64() * 1000.0
}
