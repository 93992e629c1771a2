//! The lease on a real server: the limits of the lock session, what it advertises, what a proof proves.

use std::time::Duration;

use retsu_collector::config::CollectorSettings;
use retsu_collector::database::Database;
use retsu_collector::election::{Advert, Attempt, Candidacy, LockSession, ProofError};
use sqlx::{AssertSqlSafe, Executor, PgPool};

use crate::election::settings;
use crate::support::keys::{FENCE, INTERVAL, ON_FAILURE, RETRY};
use crate::support::{self, Collector, History, eventually, exit_without_lock, open, queue_database, role, slow_down};

const LIMIT: Duration = Duration::from_secs(30);

/// The limits in the settings' own units, `off` where a Unix socket has none.
const LIMITS: [(&str, &str, &str); 8] = [
    ("idle_session_timeout", "4000", "4000"),
    ("idle_in_transaction_session_timeout", "4000", "4000"),
    ("statement_timeout", "10000", "10000"),
    ("client_connection_check_interval", "500", "500"),
    ("tcp_user_timeout", "2500", "0"),
    ("tcp_keepalives_idle", "1", "0"),
    ("tcp_keepalives_interval", "1", "0"),
    ("tcp_keepalives_count", "2", "0"),
];

fn collector_settings() -> CollectorSettings {
    settings(Duration::from_secs(10))
}

async fn attempt(database: &Database, identity: &str) -> Attempt {
    let settings = collector_settings();
    LockSession::attempt(database, &Candidacy::new(&settings, identity, settings.lease.fence)).await.unwrap()
}

async fn granted(database: &Database, identity: &str) -> LockSession {
    match attempt(database, identity).await {
        Attempt::Granted(session) => session,
        Attempt::Held { holder, .. } => panic!("{holder:?} holds the lock"),
    }
}

async fn setting(session: &mut sqlx::PgConnection, name: &str) -> String {
    sqlx::query_scalar("SELECT setting FROM pg_settings WHERE name = $1").bind(name).fetch_one(session).await.unwrap()
}

/// The program ends with code 2 and says `reason` and `detail`; nobody holds the lock at any time.
async fn assert_refused(url: &str, observer: &PgPool, reason: &str, detail: &str) {
    let mut collector = Collector::start(url, |_| {});
    assert_eq!(exit_without_lock(&mut collector, observer, LIMIT).await.code(), Some(2));
    let stepping_down = Collector::start(url, |config| _ = config.set(ON_FAILURE, "step_down"));
    eventually(LIMIT, "the reason in the answers of a standby", async || {
        let answer = stepping_down.get("/leader").await;
        let metric = format!("retsu_collector_election_refusal_info{{reason=\"{reason}\"}} 1");
        matches!(answer, Ok((503, body)) if body.contains(&format!("\"refusal\":\"{reason}\"")))
            && stepping_down.metrics().await.is_some_and(|metrics| metrics.contains(&metric))
    })
    .await;
    for log in [collector, stepping_down] {
        let said = |line: &str| line.contains(reason) && line.contains(detail);
        eventually(LIMIT, "it says why", async || log.log().iter().any(|(_, line)| said(line))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_session_carries_every_limit_and_a_losing_one_is_as_it_was() {
    let server = support::database().await;
    for over_socket in [false, true] {
        let url = if over_socket { server.socket_url() } else { server.url() };
        let (winner, loser) = (open(&url), open(&url));
        let mut fresh = loser.acquire().await.unwrap();
        let mut before = Vec::new();
        for (name, ..) in LIMITS {
            before.push(setting(&mut fresh, name).await);
        }
        drop(fresh);
        let mut session = granted(&winner, "winner").await;
        for (name, over_tcp, local) in LIMITS {
            assert_eq!(setting(&mut session, name).await, if over_socket { local } else { over_tcp }, "{name}");
        }
        assert!(matches!(attempt(&loser, "loser").await, Attempt::Held { .. }));
        let mut again = loser.acquire().await.unwrap();
        for ((name, ..), before) in LIMITS.into_iter().zip(before) {
            assert_eq!(setting(&mut again, name).await, before, "{name}");
        }
        assert_eq!(setting(&mut again, "application_name").await, "retsu-collector");
        session.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_reads_who_holds_the_lock_for_how_long_and_in_which_term() {
    let server = support::database().await;
    let (winner, loser) = (open(&server.url()), open(&server.url()));
    let session = granted(&winner, "pod-a").await;
    let Attempt::Held { holder: Some(holder), .. } = attempt(&loser, "pod-b").await else { panic!("a holder") };
    let expected = Advert::new(Duration::from_secs(3), Some(session.term()), "pod-a");
    assert_eq!(holder, expected);
    session.release().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_is_good_while_the_lock_is_held_and_not_a_moment_longer() {
    let server = support::database().await;
    let (database, observer) = (open(&server.url()), server.pool().await);
    let mut session = granted(&database, "prover").await;
    session.prove().await.unwrap();
    session.prove_from(&database).await.unwrap();
    session.execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert!(matches!(session.prove().await, Err(ProofError::NotHeld)));
    assert!(matches!(session.prove_from(&database).await, Err(ProofError::NotHeld)));
    // Shared, the lock excludes nobody who asks for it shared, and is not what was granted.
    session.execute("SELECT pg_advisory_lock_shared(1919251571, 1901294689)").await.unwrap();
    assert!(matches!(session.prove().await, Err(ProofError::NotHeld)));
    session.release().await;

    let mut session = granted(&database, "prover").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *session).await.unwrap();
    sqlx::query("SELECT pg_terminate_backend($1, 5000)").bind(pid).execute(&observer).await.unwrap();
    assert!(matches!(session.prove_from(&database).await, Err(ProofError::NotHeld)));
    assert!(matches!(session.prove().await, Err(ProofError::Statement(_))));
    session.release().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forbids_a_setting_or_does_not_carry_it_is_refused_by_its_name() {
    let mut server = support::server().await;
    let url = server.queue_database("forbidding").await;
    let observer = PgPool::connect(&url).await.unwrap();
    let as_plain = role(&url, "plain").await;
    // PostgreSQL itself lets every role set them. A function that comes before its own stands for the extension
    // or pooler that does not.
    observer
        .execute(
            "CREATE SCHEMA policy; GRANT USAGE ON SCHEMA policy TO plain; \
             ALTER ROLE plain SET search_path = policy, pg_catalog, public; \
             CREATE FUNCTION policy.set_config(name text, value text, is_local boolean) RETURNS text \
             LANGUAGE plpgsql AS $$ BEGIN \
             IF name = 'tcp_user_timeout' THEN RAISE EXCEPTION 'not here'; END IF; \
             RETURN pg_catalog.set_config(name, value, is_local); END $$",
        )
        .await
        .unwrap();
    assert_refused(&as_plain, &observer, "limit_not_carried", "`tcp_user_timeout` = `2500`: not here").await;
    observer
        .execute(
            "CREATE OR REPLACE FUNCTION policy.set_config(name text, value text, is_local boolean) RETURNS text \
             LANGUAGE sql AS $$ SELECT pg_catalog.set_config(name, \
             CASE WHEN name = 'idle_session_timeout' THEN '0' ELSE value END, is_local) $$",
        )
        .await
        .unwrap();
    let detail = "`idle_session_timeout`: set to `4000`, it reads `0`";
    assert_refused(&as_plain, &observer, "limit_not_carried", detail).await;
    observer.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_the_right_to_connect_is_refused() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let url = role(&database.url(), &format!("stranger_{}", database.name())).await;
    let revoke = format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", database.name());
    observer.execute(AssertSqlSafe(revoke)).await.unwrap();
    assert_refused(&url, &observer, "insufficient_privilege", "permission denied for database").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_is_told_with_the_identity_of_its_server_in_log_metrics_and_leader() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let (system, timeline): (i64, i32) =
        sqlx::query_as("SELECT system_identifier, timeline_id FROM pg_control_system(), pg_control_checkpoint()")
            .fetch_one(&observer)
            .await
            .unwrap();
    let leader = Collector::start(&database.url(), |config| _ = config.env("POD_NAME", "pod-a"));
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    // Written when the gauges are out already.
    leader.wait_for_log("queue state is exported", LIMIT).await;
    let (_, body) = leader.get("/leader").await.unwrap();
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["system_identifier"], system.to_string());
    assert_eq!((&answer["term"]["timeline"], &answer["refusal"]), (&timeline.into(), &serde_json::Value::Null));
    let info = format!("retsu_collector_term_info{{system_identifier=\"{system}\",timeline=\"{timeline}\"}} 1");
    assert!(leader.metrics().await.unwrap().contains(&info));
    let number = &answer["term"]["number"];
    let told = format!("system_identifier={system}");
    assert_eq!(leader.count_in_log(&told), 2, "at the grant and at the first gauges");
    let name: String = sqlx::query_scalar(
        "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) \
         WHERE locktype = 'advisory' AND database = datid AND datname = current_database()",
    )
    .fetch_one(&observer)
    .await
    .unwrap();
    assert_eq!(name, format!("retsu-collector F=3000ms T={timeline}/{number} pod-a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_waits_for_the_longer_fence_of_the_one_before_and_says_nothing_until_then() {
    let url = queue_database().await.url();
    let leader = Collector::start(&url, |config| _ = config.set(FENCE, 8));
    eventually(LIMIT, "the first exports", async || leader.exports().await).await;
    let standby = Collector::start(&url, |config| _ = config.set(RETRY, 0.2).set(ON_FAILURE, "step_down"));
    standby.wait_for_log("waiting as a standby", LIMIT).await;
    let history = History::watch(&[&leader, &standby]);
    eventually(LIMIT, "the first is seen to export", async || history.exporting() == [0]).await;
    leader.sigkill();
    eventually(LIMIT, "the second exports", async || history.exporting() == [1]).await;
    let history = history.finish("SIGKILL of a leader with a fence of 8 s");
    assert_eq!(history.overlaps(), []);
    let gaps = history.gaps();
    // The longest that it can have been: slow scrapes make that longer, and never a short gap long enough.
    assert!(matches!(gaps[..], [gap] if gap.at_most >= Duration::from_secs(8)), "{gaps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_older_than_the_interval_and_the_fence_is_not_served() {
    let database = queue_database().await;
    let leader = Collector::start(&database.url(), |config| _ = config.set(INTERVAL, 1).set(ON_FAILURE, "step_down"));
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    // A refresh takes 2.6 s now: the snapshot before is too old when the next is there.
    slow_down(&database.pool().await, 1.3).await;
    eventually(LIMIT, "it exports no more", async || !leader.exports().await).await;
    eventually(LIMIT, "it exports again", async || leader.exports().await).await;
    assert_eq!(leader.count_in_log("leadership lost"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_is_set_to_another_one_leads_and_is_proved_from_another_connection() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let owner = format!("owner_{}", database.name());
    let (login, url) =
        (format!("login_{}", database.name()), role(&database.url(), &format!("login_{}", database.name())).await);
    // As for login roles that are made anew at every rotation: what is owned belongs to a role that stays.
    let statements = format!(
        "CREATE ROLE {owner} IN ROLE pg_read_all_data; GRANT {owner} TO {login}; ALTER ROLE {login} SET role = '{owner}'"
    );
    observer.execute(AssertSqlSafe(statements)).await.unwrap();
    slow_down(&observer, 1.5).await;
    let leader = Collector::start(&url, |config| _ = config.set(INTERVAL, 5));
    eventually(LIMIT, "a slow refresh succeeds, with proofs meanwhile", async || leader.exports().await).await;
    assert_eq!(leader.count_in_log("leadership lost"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_call_what_a_term_needs_is_refused_before_the_lock_is_tried() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let url = role(&database.url(), &format!("curbed_{}", database.name())).await;
    observer.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC").await.unwrap();
    assert_refused(&url, &observer, "insufficient_privilege", "pg_control_system").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_search_path_puts_before_the_system_decides_nothing() {
    let database = queue_database().await;
    let observer = database.pool().await;
    let (name, url) =
        (format!("misled_{}", database.name()), role(&database.url(), &format!("misled_{}", database.name())).await);
    let statements = format!(
        "ALTER ROLE {name} SET search_path = public, pg_catalog; \
         CREATE FUNCTION public.pg_try_advisory_lock(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
         CREATE VIEW public.pg_locks AS SELECT 'advisory'::text AS locktype, pid, 0::oid AS classid, 0::oid AS objid, \
         2::int2 AS objsubid, true AS granted, 'ExclusiveLock'::text AS mode FROM pg_stat_activity; \
         GRANT SELECT ON public.pg_locks TO PUBLIC"
    );
    observer.execute(AssertSqlSafe(statements)).await.unwrap();
    let pair = [0, 1].map(|_| Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down")));
    let history = History::watch(&[&pair[0], &pair[1]]);
    eventually(LIMIT, "one exports", async || history.exporting().len() == 1).await;
    eventually(LIMIT, "the other waits", async || {
        pair.iter().any(|collector| collector.count_in_log("waiting as a standby") > 0)
    })
    .await;
    assert_eq!(history.finish("shadowed functions").overlaps(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_still_waits_for_a_longer_fence_passes_it_on_and_no_longer_when_it_exports() {
    let server = support::database().await;
    let longer = {
        let mut settings = collector_settings();
        settings.lease.fence = Duration::from_secs(20);
        settings
    };
    let (first, second) = (open(&server.url()), open(&server.url()));
    let session =
        match LockSession::attempt(&first, &Candidacy::new(&longer, "pod-a", longer.lease.fence)).await.unwrap() {
            Attempt::Granted(session) => session,
            Attempt::Held { holder, .. } => panic!("{holder:?} holds the lock"),
        };
    retsu_collector::schema::apply(&mut second.acquire().await.unwrap()).await.unwrap();
    let waiting = Collector::start(&server.url(), |config| _ = config.set(RETRY, 0.2).set(ON_FAILURE, "step_down"));
    waiting.wait_for_log("has a longer fence", LIMIT).await;
    session.release().await;
    let fence = async || match attempt(&second, "pod-c").await {
        Attempt::Held { holder: Some(holder), .. } if holder.term().is_some() => Some(holder.fence()),
        _ => None,
    };
    waiting.wait_for_log(retsu_collector::election::ACQUIRED, LIMIT).await;
    assert_eq!(fence().await, Some(Duration::from_secs(20)));
    eventually(LIMIT, "it exports", async || waiting.exports().await).await;
    eventually(LIMIT, "its own fence counts", async || fence().await == Some(Duration::from_secs(3))).await;
}
