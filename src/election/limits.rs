//! The limits by which the server lets go of a lock session whose process is gone.
//!
//! They are for liveness alone: that no two replicas export rests on the fence and the take-over wait, which
//! no server has a part in.

use std::iter;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::advert::Advert;
use super::bound::{
    CLIENT_CONNECTION_CHECK_INTERVAL, TCP_KEEPALIVES_COUNT, TCP_KEEPALIVES_IDLE, TCP_KEEPALIVES_INTERVAL, server_millis,
};
use crate::config::CollectorSettings;

/// The setting that advertises the session.
const APPLICATION_NAME: &str = "application_name";

/// The settings of TCP, which a session over a Unix socket cannot have: the kernel tells at once when the other
/// process is gone.
const TCP_ONLY: [&str; 4] =
    ["tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"];

/// Beginnings of the codes by which a server refuses a setting, not the statement: invalid value, no privilege, unknown
/// setting or function, not now, not supported, and an exception raised by whoever guards it. A server that is
/// stopping, or out of something, has others.
const ABOUT_SETTING: [&str; 7] = ["22", "42501", "42704", "42883", "55P02", "0A000", "P0001"];

/// Why the server does not carry the limits.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A statement failed for another reason than the setting.
    #[error(transparent)]
    Statement(#[from] sqlx::Error),
    /// The server refuses to set it.
    #[error("the server refuses `{name}` = `{value}`: {message}")]
    Refused {
        /// The setting of PostgreSQL.
        name: &'static str,
        /// The value.
        value: String,
        /// What the server says.
        message: String,
    },
    /// The setting reads back as something else.
    #[error("the server does not carry `{name}`: set to `{value}`, it reads `{effective}`")]
    NotCarried {
        /// The setting of PostgreSQL.
        name: &'static str,
        /// The value that it was set to.
        value: String,
        /// The value that it has.
        effective: String,
    },
}

/// The limits of one lock session: names of settings of PostgreSQL and their values in the settings' own units.
#[derive(Clone, Debug)]
pub(super) struct Limits(Vec<(&'static str, u64)>);

impl Limits {
    /// The limits that `settings` ask for. No value is 0, which would switch a limit off.
    pub(super) fn new(settings: &CollectorSettings) -> Self {
        let ms = |span| u64::from(server_millis(span).unsigned_abs());
        let lease = settings.lease;
        Self(vec![
            ("idle_session_timeout", ms(lease.idle_session_timeout)),
            ("idle_in_transaction_session_timeout", ms(lease.idle_session_timeout)),
            ("statement_timeout", ms(settings.refresh_timeout)),
            ("client_connection_check_interval", ms(CLIENT_CONNECTION_CHECK_INTERVAL)),
            ("tcp_user_timeout", ms(lease.tcp_user_timeout)),
            ("tcp_keepalives_idle", TCP_KEEPALIVES_IDLE.as_secs()),
            ("tcp_keepalives_interval", TCP_KEEPALIVES_INTERVAL.as_secs()),
            ("tcp_keepalives_count", TCP_KEEPALIVES_COUNT.into()),
        ])
    }

    /// Advertises the session and sets every limit on it, then reads the limits back.
    pub(super) async fn set(&self, session: &mut PgConnection, advert: &Advert) -> Result<(), LimitError> {
        let limits = self.0.iter().map(|(name, value)| (*name, value.to_string()));
        let settings: Vec<_> = iter::once((APPLICATION_NAME, advert.to_string())).chain(limits).collect();
        if let Err(error) = set_config(session, &settings).await {
            // Alone, an error says which limit it is about.
            for (name, value) in &self.0 {
                let alone = [(*name, value.to_string())];
                set_config(session, &alone).await.map_err(|error| refused(error, name, *value))?;
            }
            return Err(error.into());
        }
        // In a statement of its own: only a later one shows what the session goes on with.
        let rows = sqlx::query(
            "SELECT name, setting, inet_client_addr() IS NULL AS local FROM pg_settings WHERE name = ANY($1)",
        )
        .bind(self.0.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        .fetch_all(session)
        .await?;
        self.0.iter().try_for_each(|(name, value)| verify(&rows, name, *value))
    }

    /// Takes everything back that [`set`](Self::set) has set, for the next borrower of the connection. What the
    /// driver sets, it sets in its start-up message, which this goes back to.
    pub(super) async fn reset(session: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("RESET ALL").execute(session).await.map(|_| ())
    }
}

/// Sets the name under which others see the session in `pg_stat_activity`.
pub(super) async fn advertise(session: &mut PgConnection, advert: &Advert) -> Result<(), sqlx::Error> {
    set_config(session, &[(APPLICATION_NAME, advert.to_string())]).await
}

async fn set_config(session: &mut PgConnection, settings: &[(&str, String)]) -> Result<(), sqlx::Error> {
    let (names, values): (Vec<&str>, Vec<&str>) = settings.iter().map(|(name, value)| (*name, value.as_str())).unzip();
    sqlx::query("SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting (name, value)")
        .bind(names)
        .bind(values)
        .execute(session)
        .await
        .map(|_| ())
}

fn refused(error: sqlx::Error, name: &'static str, value: u64) -> LimitError {
    let message = error.as_database_error().and_then(|database| {
        let code = database.code()?;
        let about_setting = ABOUT_SETTING.iter().any(|known| code.starts_with(known));
        about_setting.then(|| database.message().to_owned())
    });
    match message {
        Some(message) => LimitError::Refused { name, value: value.to_string(), message },
        None => LimitError::Statement(error),
    }
}

fn verify(rows: &[PgRow], name: &'static str, value: u64) -> Result<(), LimitError> {
    let value = value.to_string();
    let Some(row) = rows.iter().find(|row| row.try_get::<&str, _>("name").is_ok_and(|found| found == name)) else {
        return Err(LimitError::NotCarried { name, value, effective: "nothing".to_owned() });
    };
    let (effective, local): (String, bool) = (row.try_get("setting")?, row.try_get("local")?);
    if effective == value || (local && TCP_ONLY.contains(&name)) {
        Ok(())
    } else {
        Err(LimitError::NotCarried { name, value, effective })
    }
}
