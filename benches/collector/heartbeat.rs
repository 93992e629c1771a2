//! What the heartbeat costs the server: CPU time of the backend for one proof, on the lock session and from another.

use std::time::Duration;

use retsu_collector::config::{self, DatabaseSettings, DatabaseSource, Sources};
use retsu_collector::database::Database;
use retsu_collector::election::{Attempt, Candidacy, LockSession};
use sqlx::PgConnection;

use super::Failure;
use super::support::Bounds;

/// Share of one core of the server that a heartbeat may take, in percent.
const LIMIT_PERCENT: f64 = 0.1;

/// Proofs to take the mean of.
const PROOFS: u32 = 5_000;

pub(crate) async fn measure(url: &str, bounds: &mut Bounds) -> Result<(), Failure> {
    let sources = Sources { environment: vec![("PGHOST".into(), "localhost".into())], ..Sources::default() };
    let settings = config::load(&sources)?.settings.collector;
    let database = Database::open(DatabaseSettings {
        source: DatabaseSource::Url(url.to_owned().into()),
        // The lock session and one other, so that every proof from another connection runs on the same backend.
        max_connections: 2,
        acquire_timeout: Duration::from_secs(5),
    })?;
    let attempt = LockSession::attempt(&database, &Candidacy::new(&settings, "bench", settings.lease.fence)).await?;
    let Attempt::Granted(mut session) = attempt else { return Err("another session holds the lock".into()) };
    let lock_backend = backend(&mut session).await?;
    let other_backend = backend(&mut *database.acquire().await?).await?;

    let before = cpu(lock_backend)?;
    for _ in 0..PROOFS {
        session.prove().await?;
    }
    let own = (cpu(lock_backend)? - before) / PROOFS;
    let before = cpu(other_backend)?;
    for _ in 0..PROOFS {
        session.prove_from(&database).await?;
    }
    let other = (cpu(other_backend)? - before) / PROOFS;
    session.release().await;

    for (what, cost) in [("on the lock session", own), ("from another connection", other)] {
        println!("proof {what}: {cost:?} of CPU time of the server");
        let share = 100.0 * cost.as_secs_f64() / settings.lease.heartbeat_interval.as_secs_f64();
        bounds.at_most(format!("heartbeat {what}, share of a core of the server"), share, LIMIT_PERCENT, "%");
    }
    Ok(())
}

async fn backend(session: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(session).await
}

/// CPU time that a process has used, to the nanosecond.
fn cpu(pid: i32) -> Result<Duration, Failure> {
    let statistics = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanos = statistics.split_whitespace().next().ok_or("no time in schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}
