//! Realistic data of a given size.

use sqlx::Connection;
use sqlx::postgres::PgConnection;

const LOAD_QUEUES: &str = include_str!("load_queues.sql");
const LOAD_MESSAGES: &str = include_str!("load_messages.sql");

/// Messages that one statement makes; progress is reported after each.
const PART: u64 = 20_000;

/// How much data to make, and of what kind. The same values make the same rows in any database, up to the
/// instant that every timestamp is relative to.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Queues to create; one in twenty stays empty.
    pub queues: u32,
    /// Messages to create; the first queues get the most.
    pub messages: u64,
    /// What every random choice derives from.
    pub seed: u64,
    /// Share of the messages that are in flight, 0 to 1.
    pub in_flight: f64,
    /// Share of the messages that have expired, 0 to 1.
    pub expired: f64,
    /// Share of the in-flight messages whose lease has elapsed, 0 to 1.
    pub elapsed: f64,
    /// Share of the in-flight messages that have used up their delivery attempts, 0 to 1.
    pub exhausted: f64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            queues: 10_000,
            messages: 1_100_000,
            seed: 0,
            in_flight: 0.15,
            expired: 0.05,
            elapsed: 0.2,
            exhausted: 0.3,
        }
    }
}

/// Why no data was made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Messages need a queue to be in.
    #[error("{messages} messages need at least one queue")]
    NoQueues {
        /// [`Load::messages`]
        messages: u64,
    },
    /// There are queues already; the data of a seed is only the same in an empty database.
    #[error("the table queue is not empty; load into an empty database")]
    NotEmpty,
    /// There is no table `queue` on the `search_path`.
    #[error("there are no tables to load into; create them with `schema --apply`, alone or together with --load")]
    NoTables,
    /// The database refused a statement, or the connection broke.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Makes the data in one transaction, so that a load that is interrupted leaves nothing behind. After each
/// part it calls `progress` with the messages made so far and in all. The rollup is kept by the triggers.
///
/// # Errors
///
/// [`LoadError::NoTables`] without tables, [`LoadError::NotEmpty`] when there are queues, and whatever the database
/// answers.
pub async fn load(
    session: &mut PgConnection,
    load: &Load,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), LoadError> {
    if load.queues == 0 && load.messages > 0 {
        return Err(LoadError::NoQueues { messages: load.messages });
    }
    let queues = i64::from(load.queues);
    let messages = to_bigint(load.messages);
    // bigint has no unsigned form: seeds past its maximum wrap to distinct negative ones.
    let seed = load.seed.cast_signed();
    let mut transaction = session.begin().await?;
    if sqlx::query_scalar("SELECT to_regclass('queue') IS NULL").fetch_one(&mut *transaction).await? {
        return Err(LoadError::NoTables);
    }
    if sqlx::query_scalar("SELECT EXISTS (SELECT FROM queue)").fetch_one(&mut *transaction).await? {
        return Err(LoadError::NotEmpty);
    }
    sqlx::query(LOAD_QUEUES).bind(queues).bind(seed).execute(&mut *transaction).await?;
    let mut made = 0;
    progress(made, load.messages);
    while made < load.messages {
        let end = load.messages.min(made + PART);
        sqlx::query(LOAD_MESSAGES)
            .bind(queues)
            .bind(seed)
            .bind(messages)
            .bind(to_bigint(made))
            .bind(to_bigint(end))
            .bind(load.in_flight)
            .bind(load.expired)
            .bind(load.elapsed)
            .bind(load.exhausted)
            .execute(&mut *transaction)
            .await?;
        made = end;
        progress(made, load.messages);
    }
    transaction.commit().await?;
    Ok(())
}

fn to_bigint(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
