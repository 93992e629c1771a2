//! Why a refresh failed: what, and where.

use std::time::Duration;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::Priority;

/// Why a refresh failed. After any of them the session is in an unknown state: destroy it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// A count came out negative: the rollup no longer agrees with the messages.
    #[error("the rollup has drifted: {count} of queue {queue:?}, priority {}, is {value}", priority.label())]
    Drift {
        /// The queue's name.
        queue: String,
        /// The priority whose count is wrong.
        priority: Priority,
        /// `ready` or `in_flight`.
        count: &'static str,
        /// The count, below zero.
        value: i64,
    },
    /// Two queues have the same name, so their series would have the same labels. Neither merging them nor
    /// choosing one would be right.
    #[error("two queues have the name {queue:?}")]
    DuplicateQueue {
        /// The name.
        queue: String,
    },
    /// A table does not exist in the schemas of `search_path` that the role may use.
    #[error("table {relation} does not exist, or its schema is not in search_path or not open to this role")]
    MissingTable {
        /// The table.
        relation: String,
    },
    /// A column does not exist.
    #[error("column {relation}.{column} does not exist")]
    MissingColumn {
        /// The table.
        relation: String,
        /// The column.
        column: String,
    },
    /// The role may not read a table, or a column of it.
    #[error("no privilege SELECT on {relation} (column {column})")]
    MissingPrivilege {
        /// The table.
        relation: String,
        /// The first column that cannot be read.
        column: String,
    },
    /// A column has another type than the one its values are read as.
    #[error("column {relation}.{column} has type {got}, expected {expected}")]
    ColumnType {
        /// The table.
        relation: String,
        /// The column.
        column: String,
        /// The type it should have, as SQL spells it.
        expected: String,
        /// The type it has.
        got: String,
    },
    /// No complete result within the refresh timeout.
    #[error("no complete result within the refresh timeout of {limit:?}")]
    Timeout {
        /// The refresh timeout.
        limit: Duration,
    },
    /// The server cancelled the statement: its own `statement_timeout`, or an administrator.
    #[error("the server cancelled the statement: {message}")]
    Cancelled {
        /// The server's message.
        message: String,
    },
    /// Another session holds a conflicting lock on a table, and went on holding it for `lock_timeout`.
    #[error("a table stayed locked: {message}")]
    LockTimeout {
        /// The server's message.
        message: String,
    },
    /// The connection broke, or the server ended the session.
    #[error("the connection was lost")]
    ConnectionLost(#[source] sqlx::Error),
    /// Any other error of the server.
    #[error("SQLSTATE {sqlstate}: {message}")]
    Database {
        /// The five characters of the error's code.
        sqlstate: String,
        /// The server's message.
        message: String,
    },
    /// The result has a value that cannot be read, such as a queue without a name.
    #[error("the result cannot be read")]
    Decode(#[source] sqlx::Error),
}

impl CollectError {
    /// A stable name of the kind of failure, for a metric label.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Drift { .. } => "drift",
            Self::DuplicateQueue { .. } => "duplicate_queue",
            Self::MissingTable { .. } => "missing_table",
            Self::MissingColumn { .. } => "missing_column",
            Self::MissingPrivilege { .. } => "missing_privilege",
            Self::ColumnType { .. } => "column_type",
            Self::Timeout { .. } => "timeout",
            Self::Cancelled { .. } => "cancelled",
            Self::LockTimeout { .. } => "lock_timeout",
            Self::ConnectionLost(_) => "connection_lost",
            Self::Database { .. } => "database",
            Self::Decode(_) => "decode",
        }
    }
}

impl From<sqlx::Error> for CollectError {
    fn from(error: sqlx::Error) -> Self {
        if let Some(server) = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
            let message = server.message().to_owned();
            // FATAL and PANIC end the session whatever their code: a terminated backend, a server shutdown, an
            // idle limit.
            let ended = matches!(server.severity(), PgSeverity::Fatal | PgSeverity::Panic);
            return match server.code() {
                _ if ended => Self::ConnectionLost(error),
                code if code.starts_with("08") || code.starts_with("57P") => Self::ConnectionLost(error),
                "57014" => Self::Cancelled { message },
                "55P03" => Self::LockTimeout { message },
                code => Self::Database { sqlstate: code.to_owned(), message },
            };
        }
        match error {
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::RowNotFound => Self::Decode(error),
            _ => Self::ConnectionLost(error),
        }
    }
}
