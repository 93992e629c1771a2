//! What takes more than a minute to show. The scenes run side by side.

use std::time::{Duration, Instant};

use super::replicas::{LIMIT, RIGHT, Replica, is_patch, leader_and_standby, wait_until_only};
use crate::support::kubernetes::{Call, Cluster, Fault, Labels, ROLE};
use crate::support::{self, eventually, throughout};

const MINUTE: Duration = Duration::from_secs(60);

/// Each scene lasts for a minute and some more.
const WINDOW: Duration = Duration::from_secs(75);

/// A time without the API, long enough for a second line of the log.
const AWAY: Duration = Duration::from_secs(70);

/// At this age a token is read from its file again.
const TOKEN_AGE: Duration = Duration::from_secs(50);

/// Until everything that a start writes was written.
const QUIET: Duration = Duration::from_secs(3);

fn is(verb: &'static str) -> impl Fn(&&Call) -> bool {
    move |call| call.verb == verb
}

/// Nothing happens: nothing is written.
async fn steady() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let replicas = leader_and_standby(&cluster, &database, |_| {}).await;
    let writes_since =
        |since: Instant| replicas.iter().map(|replica| replica.proxy.count_since(since, Call::writes)).sum::<usize>();
    eventually(LIMIT, "all is written", async || {
        let before = Instant::now().checked_sub(QUIET);
        before.is_some_and(|before| writes_since(before) == 0)
    })
    .await;
    let (began, changes) = (Instant::now(), labels.history().len());
    throughout(WINDOW, "no write and one watch", async || {
        writes_since(began) == 0 && replicas.iter().all(|replica| replica.proxy.open_watches() <= 1)
    })
    .await;
    for Replica { pod, proxy, collector, .. } in &replicas {
        let calls: Vec<_> = proxy.calls().into_iter().filter(|call| call.at >= began).collect();
        let verbs: Vec<_> = calls.iter().map(|call| (call.verb, call.at - began)).collect();
        println!("{pod} in {WINDOW:?}: {verbs:?}");
        assert_eq!((calls.iter().filter(is("list")).count(), proxy.open_watches()), (0, 1));
        assert!((1..=2).contains(&calls.iter().filter(is("watch")).count()), "a watch lasts for a minute");
        let reads: Vec<_> = calls.iter().filter(is("get")).map(|call| call.at).collect();
        assert!((1..=2).contains(&reads.len()));
        assert!(reads.windows(2).all(|pair| pair[1] - pair[0] >= MINUTE - Duration::from_secs(1)));
        assert_eq!(collector.exports().await, pod == "a");
    }
    assert_eq!(labels.history().len(), changes);
}

/// Memory that a process has written and keeps resident, in KiB.
fn resident(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The API is away for long, and its objects change meanwhile.
async fn away() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let replicas = leader_and_standby(&cluster, &database, |_| {}).await;
    let gone = Instant::now();
    for replica in &replicas {
        replica.proxy.cut();
    }
    let failures = async |replica: &Replica| {
        let metrics = replica.collector.metrics().await.unwrap_or_default();
        let of_all = metrics.lines().filter(|line| {
            line.starts_with("retsu_collector_kubernetes_requests_total{") && line.contains("\"unreachable\"")
        });
        of_all.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    eventually(LIMIT, "requests fail", async || failures(&replicas[0]).await >= 25.0).await;
    let before = replicas.each_ref().map(|replica| resident(replica.collector.pid()));
    cluster.set_label("a", ROLE, None).await;
    cluster.set_label("b", ROLE, Some("leader")).await;
    let mut looked = Instant::now();
    throughout(AWAY - gone.elapsed(), "a leads", async || {
        looked.elapsed() < Duration::from_millis(200) || {
            looked = Instant::now();
            replicas[0].collector.exports().await && !replicas[1].collector.exports().await
        }
    })
    .await;
    for (replica, before) in replicas.iter().zip(before) {
        let lines: Vec<_> = replica.collector.log().into_iter().filter(|(at, _)| *at >= gone).collect();
        let grown = resident(replica.collector.pid()) - before;
        let failures = failures(replica).await;
        println!("{} without the API for {AWAY:?}: {failures} failures, {grown} KiB more, {lines:#?}", replica.pod);
        assert!((1..=2).contains(&lines.len()), "{lines:#?}");
        assert!(lines.iter().all(|(_, line)| line.contains("the Kubernetes API does not answer")));
        assert!(failures >= AWAY.as_secs_f64() / 2.0, "{failures}");
        assert!(grown < 1024, "{grown} KiB more");
    }
    let back = Instant::now();
    for replica in &replicas {
        replica.proxy.mend();
    }
    wait_until_only(&labels, "a", &["b"], RIGHT).await;
    println!("right {:?} after the API was back", back.elapsed());
    for replica in &replicas {
        replica.collector.wait_for_log("the Kubernetes API answers again", LIMIT).await;
    }
}

/// The token is refused, and a new one is in its file.
async fn rotated() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let labels = Labels::watch(&cluster).await;
    let a = Replica::start(&cluster, "a", &database, |_| {}).await;
    a.wait_until_it_exports().await;
    wait_until_only(&labels, "a", &[], LIMIT).await;
    let old = std::fs::read_to_string(cluster.token_file("a")).unwrap();
    let new = cluster.rotate_token("a").await;
    let refused = Instant::now();
    {
        let old = old.clone();
        a.proxy.inject(move |call| call.token == old, Fault::Status(401));
    }
    cluster.set_label("a", ROLE, None).await;
    a.wait_for_label("denied").await;
    a.proxy.reset_connections();
    assert!(a.collector.exports().await);
    let limit = TOKEN_AGE + Duration::from_secs(10);
    eventually(limit, "the new token is used", async || {
        a.proxy.count(|call| is_patch(call) && call.token == new && call.status == Some(200)) > 0
    })
    .await;
    println!("the new token is used {:?} after the old one was refused", refused.elapsed());
    wait_until_only(&labels, "a", &[], RIGHT).await;
    a.wait_for_label("set").await;
    eventually(LIMIT, "nothing is refused any more", async || {
        a.collector.metrics().await.is_some_and(|metrics| !metrics.contains("kubernetes_denied_info{"))
    })
    .await;
    assert_eq!(a.proxy.count(|call| call.token != old && call.token != new), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_without_events_is_without_writes_one_without_the_api_is_one_line_and_a_new_token_is_read_in_one() {
    tokio::join!(steady(), away(), rotated());
}
