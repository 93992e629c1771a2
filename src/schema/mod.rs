//! Tables, rollup triggers and indexes of a Retsu queue, written for this program, so that it can be tried
//! and tested without Retsu.

mod load;

use std::collections::BTreeMap;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

pub use load::{Load, LoadError, load};

/// The schema as one script, for PostgreSQL 14 or newer: three tables, the statement-level triggers that keep
/// `queue_priority_state_shard` equal to `queue_message`, and the indexes that the collector's query walks.
pub const SQL: &str = include_str!("schema.sql");

const DESCRIBE: &str = include_str!("describe.sql");

/// The schema that [`apply`] makes for a comparison, inside a transaction that it rolls back.
const REFERENCE: &str = "retsu_collector_reference";
const USE_REFERENCE: &str =
    "CREATE SCHEMA retsu_collector_reference; SET LOCAL search_path TO retsu_collector_reference";

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Applied {
    /// None of the tables existed: the whole schema was created.
    Created,
    /// Every object was there already, exactly as in [`SQL`]: nothing was changed.
    Unchanged,
}

/// Why the schema could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// Some of the tables exist and are not those of [`SQL`]; they were left alone.
    #[error(
        "the tables exist with another shape: {kind} {object} should be {expected}, but is {found}; \
         nothing was changed"
    )]
    Shape {
        /// `column`, `constraint`, `index`, `trigger` or `function`.
        kind: String,
        /// The first object that differs.
        object: String,
        /// Its definition in [`SQL`], or `absent`.
        expected: String,
        /// Its definition in the database, or `absent`.
        found: String,
    },
    /// `search_path` names no schema that exists, so there is nowhere to create tables.
    #[error("search_path names no existing schema to create the tables in")]
    NoSchema,
    /// The database refused a statement, or the connection broke.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Creates the schema in the first existing schema of `search_path`, in one transaction.
///
/// Where any of the tables exists it only compares: adding our triggers to tables that others keep would
/// count every message twice. The comparison needs the right to create a schema.
///
/// # Errors
///
/// [`SchemaError::Shape`] when some of the tables exist, but not exactly as [`SQL`] makes them (further
/// indexes are accepted); otherwise what the database answered. Nothing is changed in either case.
pub async fn apply(session: &mut PgConnection) -> Result<Applied, SchemaError> {
    let mut transaction = session.begin().await?;
    // Two at once would otherwise both see no tables, and one would fail on a name in the catalog.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('retsu-collector schema', 0))")
        .execute(&mut *transaction)
        .await?;
    let schema: Option<String> = sqlx::query_scalar("SELECT current_schema()").fetch_one(&mut *transaction).await?;
    let schema = schema.ok_or(SchemaError::NoSchema)?;
    let found = describe(&mut transaction, &schema).await?;
    if found.is_empty() {
        sqlx::raw_sql(SQL).execute(&mut *transaction).await?;
        transaction.commit().await?;
        return Ok(Applied::Created);
    }
    sqlx::raw_sql(USE_REFERENCE).execute(&mut *transaction).await?;
    sqlx::raw_sql(SQL).execute(&mut *transaction).await?;
    let expected = describe(&mut transaction, REFERENCE).await?;
    transaction.rollback().await?;
    match first_difference(&expected, &found) {
        Some(difference) => Err(difference),
        None => Ok(Applied::Unchanged),
    }
}

/// (kind, object) to definition.
type Description = BTreeMap<(String, String), String>;

async fn describe(session: &mut PgConnection, schema: &str) -> Result<Description, sqlx::Error> {
    let rows = sqlx::query(DESCRIBE).bind(schema).fetch_all(session).await?;
    rows.iter().map(|row| Ok(((row.try_get("kind")?, row.try_get("object")?), row.try_get("definition")?))).collect()
}

fn first_difference(expected: &Description, found: &Description) -> Option<SchemaError> {
    let shape = |(kind, object): &(String, String), expected: Option<&String>, found: Option<&String>| {
        let or_absent = |definition: Option<&String>| definition.map_or_else(|| "absent".to_owned(), Clone::clone);
        SchemaError::Shape {
            kind: kind.clone(),
            object: object.clone(),
            expected: or_absent(expected),
            found: or_absent(found),
        }
    };
    let missing = expected.iter().find(|(key, definition)| found.get(key) != Some(definition));
    if let Some((key, definition)) = missing {
        return Some(shape(key, Some(definition), found.get(key)));
    }
    let foreign = found.iter().find(|(key, _)| key.0 != "index" && !expected.contains_key(key));
    foreign.map(|(key, definition)| shape(key, None, Some(definition)))
}
