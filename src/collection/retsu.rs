//! Retsu's tables: the query, its rows, and what is wrong with the tables when it fails.

use std::time::{Duration, SystemTime};

use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgConnection, PgRow, PgTypeInfo, PgValueRef, Postgres};
use sqlx::{Decode, Row, Type};

use super::error::CollectError;
use super::snapshot::{Priority, PriorityState, QueueState};

/// One header row ([`Header`]), then a row for each of the first `$1` queues by name.
///
/// `docs/collection.md` says why it has this shape.
pub(super) const QUEUE_STATE: &str =
    concat!("WITH column_read ", include_str!("columns.sql"), include_str!("queue_state.sql"));

const DIAGNOSE: &str = concat!("WITH column_read ", include_str!("columns.sql"), include_str!("diagnose.sql"));

/// Columns of [`QUEUE_STATE`]: three of the header, the name, and then four for each priority.
const NAME: usize = 3;
const FIRST_STATE: usize = 4;
const STATE_WIDTH: usize = 4;

/// Microseconds since 2000-01-01 UTC: a `timestamptz` as the server stores it. Arithmetic on it is exact, and
/// the infinities are merely very far away.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Timestamp(i64);

impl Timestamp {
    /// 2000-01-01 UTC, in seconds of the Unix epoch.
    const EPOCH: Duration = Duration::from_secs(946_684_800);

    /// Seconds from `self` to `now`; zero when `self` is later, which a message can be whose producer's
    /// transaction started after ours.
    fn age_at(self, now: Self) -> f64 {
        now.0.saturating_sub(self.0).max(0) as f64 / 1e6
    }

    fn to_system_time(self) -> SystemTime {
        let epoch = SystemTime::UNIX_EPOCH + Self::EPOCH;
        let distance = Duration::from_micros(self.0.unsigned_abs());
        let time = if self.0 >= 0 { epoch.checked_add(distance) } else { epoch.checked_sub(distance) };
        time.unwrap_or(epoch)
    }
}

impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        // `timestamptz` in every PostgreSQL.
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl<'r> Decode<'r, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(i64::from_be_bytes(value.as_bytes()?.try_into()?)))
    }
}

/// The first row.
pub(super) struct Header {
    pub(super) queues_found: u64,
    pub(super) now: Timestamp,
}

impl Header {
    /// The header, or `None` when a column that is read has another type than it should.
    pub(super) fn read(row: &PgRow) -> Result<Option<Self>, CollectError> {
        let queues_found: i64 = row.try_get("queues_found")?;
        let now = row.try_get("database_time")?;
        let columns_fit: bool = row.try_get("columns_fit")?;
        // count(*) is never negative.
        let header = Self { queues_found: queues_found.unsigned_abs(), now };
        Ok(columns_fit.then_some(header))
    }

    pub(super) fn database_time(&self) -> SystemTime {
        self.now.to_system_time()
    }
}

/// The state of one queue from one of the rows after the header.
pub(super) fn queue_state(row: &PgRow, now: Timestamp) -> Result<QueueState, CollectError> {
    let name: String = row.try_get(NAME)?;
    let mut priorities = [PriorityState::default(); Priority::ALL.len()];
    for (index, priority) in Priority::ALL.into_iter().enumerate() {
        let first = FIRST_STATE + index * STATE_WIDTH;
        let count = |column, count: &'static str| {
            let value: i64 = row.try_get(column)?;
            u64::try_from(value).map_err(|_| CollectError::Drift { queue: name.clone(), priority, count, value })
        };
        let age = |column| -> Result<f64, CollectError> {
            let oldest: Option<Timestamp> = row.try_get(column)?;
            Ok(oldest.map_or(0.0, |oldest| oldest.age_at(now)))
        };
        priorities[index] = PriorityState {
            ready: count(first, "ready")?,
            in_flight: count(first + 1, "in_flight")?,
            oldest_ready_age: age(first + 2)?,
            oldest_in_flight_age: age(first + 3)?,
        };
    }
    Ok(QueueState { name, priorities })
}

/// Looks for what is wrong with the tables; `None` when nothing is.
pub(super) async fn diagnose(session: &mut PgConnection) -> Result<Option<CollectError>, sqlx::Error> {
    let rows = sqlx::query(DIAGNOSE).fetch_all(session).await?;
    let columns = rows.iter().map(ColumnFound::read).collect::<Result<Vec<_>, _>>()?;
    Ok(first_fault(&columns))
}

/// A column that the query reads, as the catalog has it.
struct ColumnFound {
    relation: String,
    column: String,
    expected: String,
    relation_exists: bool,
    got: Option<String>,
    readable: Option<bool>,
}

impl ColumnFound {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            relation: row.try_get("relation")?,
            column: row.try_get("name")?,
            expected: row.try_get("expected")?,
            relation_exists: row.try_get("relation_exists")?,
            got: row.try_get("got")?,
            readable: row.try_get("readable")?,
        })
    }

    fn fault(&self) -> Option<CollectError> {
        let (relation, column) = (self.relation.clone(), self.column.clone());
        if !self.relation_exists {
            return Some(CollectError::MissingTable { relation });
        }
        let Some(got) = &self.got else { return Some(CollectError::MissingColumn { relation, column }) };
        if self.readable == Some(false) {
            return Some(CollectError::MissingPrivilege { relation, column });
        }
        let expected = self.expected.clone();
        (*got != expected).then(|| CollectError::ColumnType { relation, column, expected, got: got.clone() })
    }
}

fn first_fault(columns: &[ColumnFound]) -> Option<CollectError> {
    columns.iter().find_map(ColumnFound::fault)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn ages_are_exact_microseconds_and_never_negative() {
        assert_eq!(Timestamp(1_500_000).age_at(Timestamp(2_000_001)), 0.500_001);
        assert_eq!(Timestamp(3).age_at(Timestamp(2)), 0.0);
        assert_eq!(Timestamp(i64::MAX).age_at(Timestamp(0)), 0.0, "infinity");
        assert!(Timestamp(i64::MIN).age_at(Timestamp(i64::MAX)).is_finite(), "-infinity");
    }

    #[test]
    fn timestamps_count_from_the_year_2000() {
        let unix = |timestamp: Timestamp| timestamp.to_system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(unix(Timestamp(0)), Timestamp::EPOCH);
        assert_eq!(unix(Timestamp(1_000_001)), Timestamp::EPOCH + Duration::from_micros(1_000_001));
        assert_eq!(unix(Timestamp(-946_684_800_000_000)), Duration::ZERO);
    }

    #[test]
    fn the_first_fault_is_the_one_that_explains_the_others() {
        let column = |relation_exists, got: Option<&str>, readable| ColumnFound {
            relation: "queue".to_owned(),
            column: "name".to_owned(),
            expected: "text".to_owned(),
            relation_exists,
            got: got.map(str::to_owned),
            readable,
        };
        let kind = |column: ColumnFound| first_fault(&[column]).map(|fault| fault.kind());
        assert_eq!(kind(column(true, Some("text"), Some(true))), None);
        assert_eq!(kind(column(false, None, None)), Some("missing_table"));
        assert_eq!(kind(column(true, None, None)), Some("missing_column"));
        assert_eq!(kind(column(true, Some("integer"), Some(false))), Some("missing_privilege"));
        assert_eq!(kind(column(true, Some("integer"), Some(true))), Some("column_type"));
    }
}
