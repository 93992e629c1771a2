//! A refresh beside the straightforward form of its query, on the same data in the same run.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use retsu_collector::collection::{Collector, PriorityState, QueueState};
use retsu_collector::schema::{self, Load};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::Failure;
use super::support::Bounds;

const STRAIGHTFORWARD: &str = include_str!("straightforward.sql");
const LIMIT: Duration = Duration::from_secs(300);
const ROUNDS: usize = 11;
const QUEUES: u32 = 10_000;
const MESSAGES: u64 = 1_100_000;
/// Messages of each queue while the number of queues grows.
const MESSAGES_PER_QUEUE: u64 = 11;
const MAX_RATIO: f64 = 0.5;
/// Until the first vacuum both forms spend much of their time on looking up, entry by entry, what is visible. That
/// the planner knows nothing yet must not make the refresh much worse than that.
const MAX_RATIO_BEFORE_VACUUM: f64 = 0.75;
/// A thousand times the queues may add a level to a B-tree and outgrow a cache; a cost that grew with the number
/// of queues, even as its square root, would be thirty times higher.
const MAX_GROWTH: f64 = 2.0;

/// One session with default settings and one as the leader's is.
pub(super) struct Bench {
    plain: PgConnection,
    prepared: PgConnection,
    collector: Collector,
}

impl Bench {
    pub(super) async fn connect(url: &str) -> Result<Self, Failure> {
        let mut plain = PgConnection::connect(url).await?;
        let mut prepared = PgConnection::connect(url).await?;
        schema::apply(&mut plain).await?;
        let collector = Collector::new(100_000, LIMIT);
        collector.prepare(&mut prepared).await?;
        // Statistics change when this bench says so, and at no other time.
        for table in ["queue", "queue_message", "queue_priority_state_shard"] {
            let off = format!("ALTER TABLE {table} SET (autovacuum_enabled = off)");
            sqlx::raw_sql(AssertSqlSafe(off)).execute(&mut plain).await?;
        }
        Ok(Self { plain, prepared, collector })
    }

    /// What a refresh costs beside the straightforward form, whatever the planner knows of the tables.
    pub(super) async fn beside_the_straightforward_form(&mut self, bounds: &mut Bounds) -> Result<(), Failure> {
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut self.plain).await?;
        println!("PostgreSQL {version}; the fastest of {ROUNDS} alternating rounds");
        let took = self.load(QUEUES, MESSAGES).await?;
        println!("\n{QUEUES} queues, {MESSAGES} messages, every shard row; loaded in {:.1} s", took.as_secs_f64());
        for (state, sql, limit) in [
            ("as loaded, no statistics", "", MAX_RATIO_BEFORE_VACUUM),
            ("after ANALYZE", "ANALYZE", MAX_RATIO_BEFORE_VACUUM),
            ("after VACUUM ANALYZE", "VACUUM ANALYZE", MAX_RATIO),
        ] {
            sqlx::raw_sql(sql).execute(&mut self.plain).await?;
            self.compare().await?;
            let (straightforward, refresh) = self.fastest().await?;
            let ratio = refresh.as_secs_f64() / straightforward.as_secs_f64();
            println!("  {state:26} straightforward {straightforward:>9.1?}  refresh {refresh:>9.1?}  ratio {ratio:.2}");
            bounds.at_most(format!("refresh / straightforward form, {state}"), ratio, limit, "");
        }
        Ok(())
    }

    /// What a refresh costs for each queue when there are ever more of them.
    pub(super) async fn growth(&mut self, bounds: &mut Bounds) -> Result<(), Failure> {
        println!("\n{MESSAGES_PER_QUEUE} messages a queue");
        let mut costs = Vec::new();
        for queues in [100, 1_000, 10_000, 100_000] {
            self.load(queues, u64::from(queues) * MESSAGES_PER_QUEUE).await?;
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut self.plain).await?;
            let refresh = self.fastest_refresh().await?;
            let cost = refresh.as_secs_f64() * 1e6 / f64::from(queues);
            println!("  {queues:>7} queues  refresh {refresh:>9.1?}  {cost:>5.1} µs a queue");
            costs.push(cost);
        }
        // Fewer queues share the fixed cost of a statement, so that a fall is expected and no growth.
        let growth = |(index, cost): (usize, &f64)| costs[index..].iter().map(|later| later / cost).fold(1.0, f64::max);
        let growth = costs.iter().enumerate().map(growth).fold(1.0, f64::max);
        bounds.at_most("growth of the cost of a queue, 100 to 100,000 queues", growth, MAX_GROWTH, "");
        Ok(())
    }

    async fn load(&mut self, queues: u32, messages: u64) -> Result<Duration, Failure> {
        sqlx::raw_sql("TRUNCATE queue CASCADE").execute(&mut self.plain).await?;
        let started = Instant::now();
        let load = Load { queues, messages, seed: 1, ..Load::default() };
        schema::load(&mut self.plain, &load, |_, _| ()).await?;
        let took = started.elapsed();
        // A queue in use has had a message in each of its shards at some time.
        if messages / u64::from(queues) > MESSAGES_PER_QUEUE {
            sqlx::raw_sql(
                "INSERT INTO queue_priority_state_shard
                 SELECT id, priority, shard, 0, 0
                 FROM queue, generate_series(1, 3) AS priority, generate_series(0, 31) AS shard
                 ON CONFLICT DO NOTHING",
            )
            .execute(&mut self.plain)
            .await?;
        }
        Ok(took)
    }

    /// Both forms at the same `now()` on the same rows.
    async fn compare(&mut self) -> Result<(), Failure> {
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut self.plain).await?;
        let expected = straightforward(&mut self.plain).await?;
        let found = self.collector.refresh(&mut self.plain).await?.queues;
        sqlx::raw_sql("COMMIT").execute(&mut self.plain).await?;
        assert_eq!(expected.len(), found.len(), "the two forms have different numbers of queues");
        for (expected, found) in expected.iter().zip(&found) {
            assert!(same(expected, found), "the two forms differ: {expected:?} and {found:?}");
        }
        Ok(())
    }

    async fn fastest(&mut self) -> Result<(Duration, Duration), Failure> {
        let (mut plain, mut prepared) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let started = Instant::now();
            drain_straightforward(&mut self.plain).await?;
            plain.push(started.elapsed());
            prepared.push(self.collector.refresh(&mut self.prepared).await?.duration);
        }
        Ok((fastest(plain), fastest(prepared)))
    }

    async fn fastest_refresh(&mut self) -> Result<Duration, Failure> {
        let mut durations = Vec::new();
        for _ in 0..ROUNDS {
            durations.push(self.collector.refresh(&mut self.prepared).await?.duration);
        }
        Ok(fastest(durations))
    }
}

/// Receives every row without reading it: what is left is the database's time.
async fn drain_straightforward(session: &mut PgConnection) -> Result<(), Failure> {
    let mut rows = sqlx::query(STRAIGHTFORWARD).fetch(session);
    while rows.try_next().await?.is_some() {}
    Ok(())
}

async fn straightforward(session: &mut PgConnection) -> Result<Vec<QueueState>, Failure> {
    let rows = sqlx::query(STRAIGHTFORWARD).fetch_all(session).await?;
    let queue = |rows: &[sqlx::postgres::PgRow]| -> Result<QueueState, sqlx::Error> {
        let mut priorities = [PriorityState::default(); 3];
        for (state, row) in priorities.iter_mut().zip(rows) {
            *state = PriorityState {
                ready: row.try_get::<i64, _>("ready")?.unsigned_abs(),
                in_flight: row.try_get::<i64, _>("in_flight")?.unsigned_abs(),
                oldest_ready_age: row.try_get("oldest_ready_age")?,
                oldest_in_flight_age: row.try_get("oldest_in_flight_age")?,
            };
        }
        Ok(QueueState { name: rows[0].try_get("name")?, priorities })
    };
    Ok(rows.chunks_exact(3).map(queue).collect::<Result<_, _>>()?)
}

/// Counts and names exactly; ages to half the microsecond that PostgreSQL resolves, since the server's
/// arithmetic on floating-point seconds rounds its last bit otherwise than ours.
fn same(one: &QueueState, other: &QueueState) -> bool {
    one.name == other.name
        && one.priorities.iter().zip(&other.priorities).all(|(one, other)| {
            (one.ready, one.in_flight) == (other.ready, other.in_flight)
                && (one.oldest_ready_age - other.oldest_ready_age).abs() < 5e-7
                && (one.oldest_in_flight_age - other.oldest_in_flight_age).abs() < 5e-7
        })
}

/// What the rest of the machine does only ever adds to a time.
fn fastest(durations: Vec<Duration>) -> Duration {
    durations.into_iter().min().unwrap_or(Duration::MAX)
}
