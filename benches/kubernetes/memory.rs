//! Resident memory of a standby with Kubernetes on, while its API answers and while it does not.

use std::time::Duration;

use super::bounds::Bounds;
use super::bounds::resident::Resident;
use super::support::kubernetes::{ApiProxy, Cluster};
use super::support::{self, throughout};
use super::{EXPORTS, LIMIT, WAITS, start};

const STANDBY_MIB: f64 = 12.0;

/// What a standby may grow by while the API is away.
const GROWTH_MIB: f64 = 0.5;

/// Attempts at the lock, scrapes and failed requests to the API, some a second.
const WINDOW: Duration = Duration::from_secs(60);

/// Until what the first failures need is there.
const FIRST: Duration = Duration::from_secs(5);

pub(super) async fn measure(bounds: &mut Bounds) {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let leader = start(&cluster, &database, "a", None).await;
    leader.wait_for_log(EXPORTS, LIMIT).await;
    let (calm, cut) = (ApiProxy::start(cluster.server()).await, ApiProxy::start(cluster.server()).await);
    let with = start(&cluster, &database, "b", Some(&calm)).await;
    let without = start(&cluster, &database, "c", Some(&cut)).await;
    for standby in [&with, &without] {
        standby.wait_for_log(WAITS, LIMIT).await;
    }
    cut.cut();
    let scraped = async |window| {
        throughout(window, "both answer", async || with.metrics().await.is_some() && without.metrics().await.is_some())
            .await;
    };
    scraped(FIRST).await;
    let before = Resident::of(without.pid());
    scraped(WINDOW).await;
    let (with, without) = (Resident::of(with.pid()), Resident::of(without.pid()));
    println!("\nstandby, scraped for {WINDOW:?}");
    println!("  with the API    {with}");
    println!("  without the API {without}");
    bounds.at_most("standby with Kubernetes, resident memory at its highest", with.peak, STANDBY_MIB, "MiB");
    bounds.at_most("standby without its API, resident memory at its highest", without.peak, STANDBY_MIB, "MiB");
    bounds.at_most("standby without its API for a minute, growth", without.now - before.now, GROWTH_MIB, "MiB");
}
