//! The real program behind a real PgBouncer.

use std::time::Duration;

use retsu_collector::election::ACQUIRED;
use sqlx::{Connection, PgConnection};

use crate::support::keys::ON_FAILURE;
use crate::support::{Collector, History, Proxy, eventually, exit_without_lock, lock_holders, pooled, throughout};

const LIMIT: Duration = Duration::from_secs(30);

fn start(url: &str, on_failure: &str) -> Collector {
    Collector::start(url, |config| _ = config.set(ON_FAILURE, on_failure))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_exit_a_pooler_in_transaction_or_statement_mode_ends_the_program_with_the_reason_and_code_2() {
    for mode in ["transaction", "statement"] {
        let (_database, observer, pooler) = pooled(mode, &[]).await;
        let mut collector = start(&pooler.url(), "exit");
        assert_eq!(exit_without_lock(&mut collector, &observer, LIMIT).await.code(), Some(2), "{mode}");
        collector.wait_for_log(&format!("{mode}_pooler"), LIMIT).await;
        assert_eq!(collector.count_in_log(ACQUIRED), 0, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_step_down_it_stays_a_standby_behind_them_and_leads_once_they_are_gone() {
    for mode in ["transaction", "statement"] {
        let (database, observer, pooler) = pooled(mode, &[]).await;
        let (proxy, through) = Proxy::start(&pooler.url()).await;
        let collector = start(&through, "step_down");
        collector.wait_for_log(&format!("{mode}_pooler"), LIMIT).await;
        throughout(Duration::from_secs(3), "it neither exports nor holds the lock", async || {
            !collector.exports().await && lock_holders(&observer).await == 0
        })
        .await;
        // What it has connected stays connected through the pooler.
        proxy.retarget(url::Url::parse(&database.url()).unwrap().port().unwrap());
        eventually(LIMIT, "it leads", async || collector.exports().await).await;
        assert_eq!(lock_holders(&observer).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_in_session_mode_one_leads_and_hands_over() {
    let (_database, observer, pooler) = pooled("session", &[]).await;
    let mut first = start(&pooler.url(), "exit");
    eventually(LIMIT, "the first exports", async || first.exports().await).await;
    let second = start(&pooler.url(), "exit");
    second.wait_for_log("another session holds the advisory lock", LIMIT).await;
    let history = History::watch(&[&first, &second]);
    throughout(Duration::from_secs(2), "the first alone exports and holds the lock", async || {
        first.exports().await && !second.exports().await && lock_holders(&observer).await == 1
    })
    .await;
    first.sigterm();
    assert_eq!(first.wait_exit(LIMIT).await.code(), Some(0));
    eventually(LIMIT, "the second exports", async || second.exports().await).await;
    assert_eq!(history.finish("session pooler, graceful stop").overlaps(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_put_in_between_while_it_leads_is_never_led_through() {
    let (database, observer, pooler) = pooled("transaction", &[]).await;
    let (proxy, through) = Proxy::start(&database.url()).await;
    let direct = url::Url::parse(&database.url()).unwrap().port().unwrap();
    let leader = start(&through, "step_down");
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    proxy.retarget(pooler.port());
    let standby = start(&through, "step_down");
    standby.wait_for_log("transaction_pooler", LIMIT).await;
    throughout(Duration::from_secs(2), "its own session is as direct as before", async || {
        leader.exports().await && !standby.exports().await && lock_holders(&observer).await == 1
    })
    .await;
    proxy.cut();
    leader.wait_for_log("leadership lost", LIMIT).await;
    proxy.mend();
    leader.wait_for_log("transaction_pooler", LIMIT).await;
    eventually(LIMIT, "the lock is free", async || lock_holders(&observer).await == 0).await;
    throughout(Duration::from_secs(3), "nobody leads", async || {
        !leader.exports().await && !standby.exports().await && lock_holders(&observer).await == 0
    })
    .await;
    proxy.retarget(direct);
    eventually(LIMIT, "one leads", async || leader.exports().await != standby.exports().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_restarts_ends_the_term_and_another_begins() {
    let (_database, observer, mut pooler) = pooled("session", &[]).await;
    let collectors = [(); 2].map(|()| start(&pooler.url(), "step_down"));
    let history = History::watch(&[&collectors[0], &collectors[1]]);
    for round in 1..=3 {
        eventually(LIMIT, "one alone exports", async || history.exporting().len() == 1).await;
        let lost = lost(&collectors);
        pooler.restart().await;
        eventually(LIMIT, "the loss is noticed", async || self::lost(&collectors) > lost).await;
        eventually(LIMIT, &format!("one exports again, round {round}"), async || {
            history.exporting().len() == 1 && lock_holders(&observer).await == 1
        })
        .await;
    }
    assert_eq!(history.finish("PgBouncer restarted").overlaps(), []);
}

fn lost(collectors: &[Collector]) -> usize {
    collectors.iter().map(|collector| collector.count_in_log("leadership lost")).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_cuts_a_long_statement_ends_the_term() {
    let (database, observer, pooler) = pooled("session", &[("query_timeout", "1")]).await;
    let leader = start(&pooler.url(), "step_down");
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let mut blocker = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE queue, queue_message IN ACCESS EXCLUSIVE MODE")
        .execute(&mut blocker)
        .await
        .unwrap();
    leader.wait_for_log("leadership lost", LIMIT).await;
    eventually(LIMIT, "it has withdrawn", async || !leader.exports().await).await;
    blocker.close().await.unwrap();
    eventually(LIMIT, "it leads again", async || leader.exports().await && lock_holders(&observer).await == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_idle_server_connections_do_not_touch_the_one_that_holds_the_lock() {
    for limit in ["server_idle_timeout", "server_lifetime"] {
        let (_database, observer, pooler) = pooled("session", &[(limit, "1")]).await;
        let leader = start(&pooler.url(), "step_down");
        eventually(LIMIT, "it exports", async || leader.exports().await).await;
        throughout(Duration::from_secs(4), &format!("{limit}: whoever exports holds the lock"), async || {
            lock_holders(&observer).await == 1 && leader.exports().await
        })
        .await;
        assert_eq!(leader.count_in_log("leadership lost"), 0, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_whose_mode_is_changed_while_it_leads_gives_nobody_else_the_lock() {
    let (_database, observer, mut pooler) = pooled("session", &[]).await;
    let leader = start(&pooler.url(), "step_down");
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let standby = start(&pooler.url(), "step_down");
    standby.wait_for_log("another session holds the advisory lock", LIMIT).await;
    pooler.reload("pool_mode", "transaction");
    standby.wait_for_log("transaction_pooler", LIMIT).await;
    throughout(Duration::from_secs(3), "never two", async || {
        !standby.exports().await && lock_holders(&observer).await <= 1
    })
    .await;
    assert_eq!(standby.count_in_log(ACQUIRED), 0);
}
