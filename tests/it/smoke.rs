//! The shortest way through the whole program, for every version of PostgreSQL.

use std::time::Duration;

use retsu_collector::demo::scrape::gauges;

use crate::support::{Collector, History, eventually, promtool_check, queue_database};

const LIMIT: Duration = Duration::from_secs(20);

const ONE_QUEUE: &str = "
    WITH created AS (INSERT INTO queue (name) VALUES ('emails') RETURNING id)
    INSERT INTO queue_message (queue_id, payload, priority, expires_at)
    SELECT created.id, '', 1 + n % 3, now() + interval '1 day' FROM created, generate_series(1, 7) AS n";

#[tokio::test]
async fn one_leads_and_exports_and_the_other_takes_over() {
    let database = queue_database().await;
    sqlx::query(ONE_QUEUE).execute(&database.pool().await).await.unwrap();
    let mut first = Collector::start(&database.url(), |_| {});
    eventually(LIMIT, "the first exports", async || first.exports().await).await;
    let second = Collector::start(&database.url(), |_| {});
    second.wait_until_serving(LIMIT).await;

    let exposition = first.metrics().await.unwrap();
    promtool_check(&exposition);
    assert_eq!(gauges(&exposition).queues["emails"].ready, 7.0);
    promtool_check(&second.metrics().await.unwrap());

    let history = History::watch(&[&first, &second]);
    eventually(LIMIT, "the first alone exports", async || history.exporting() == [0]).await;
    first.sigterm();
    assert!(first.wait_exit(LIMIT).await.success());
    eventually(LIMIT, "the second alone exports", async || history.exporting() == [1]).await;
    let history = history.finish("graceful stop");
    assert_eq!(history.overlaps(), []);
    assert_eq!(history.gaps().len(), 1);
}
