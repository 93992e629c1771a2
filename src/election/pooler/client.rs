//! A connection that is made as those of the pool are, and that knows what they do not say: its key data.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use secrecy::ExposeSecret;
use sqlx::postgres::PgConnectOptions;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls, SimpleQueryMessage};

use super::wire::{Secrets, Wire};

/// How long the connections of a probe may take to end in order.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// What the connection does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Doing {
    Nothing,
    /// A transaction is open.
    Transaction,
    /// A statement has not been answered, or was answered with an error.
    Statement,
}

/// A connection of the probe. Dropping it closes its socket.
pub(super) struct Other {
    client: Client,
    connection: Connection<Wire, NoTlsStream>,
    /// The process id of the start-up message's key data.
    pub(super) key: i32,
    doing: Doing,
}

/// Why a connection of the probe did not do what it was asked.
#[derive(Debug)]
pub(super) struct OtherError {
    /// What was asked.
    pub(super) what: &'static str,
    /// The reason, with its causes.
    pub(super) reason: String,
}

impl OtherError {
    fn new(what: &'static str, error: &(dyn Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self { what, reason }
    }
}

impl Other {
    /// Connects with the credentials, over the transport and with the certificates of `options`.
    pub(super) async fn connect(options: &PgConnectOptions) -> Result<Self, OtherError> {
        const WHAT: &str = "connecting a second time";
        let secrets = Secrets::of(options);
        let wire = Wire::connect(options, &secrets).await.map_err(|error| OtherError::new(WHAT, &error))?;
        let mut config = Config::new();
        // The socket is encrypted already. Like the driver, SCRAM then does without channel binding.
        config
            .ssl_mode(tokio_postgres::config::SslMode::Disable)
            .user(options.get_username())
            .password(secrets.password.expose_secret());
        if let Some(database) = options.get_database() {
            config.dbname(database);
        }
        if let Some(parameters) = options.get_options() {
            config.options(parameters);
        }
        if let Some(name) = options.get_application_name() {
            config.application_name(name);
        }
        let connected = config.connect_raw(wire, NoTls).await;
        let (client, connection) = connected.map_err(|error| OtherError::new(WHAT, &error))?;
        let key = key_of(&client).await.map_err(|error| OtherError::new(WHAT, &*error))?;
        Ok(Self { client, connection, key, doing: Doing::Nothing })
    }

    /// Opens a transaction, and returns the process id of the backend that it holds.
    pub(super) async fn begin(&mut self) -> Result<i32, OtherError> {
        let pid = self.ask("opening a transaction", "BEGIN; SELECT pg_backend_pid()").await?;
        self.doing = Doing::Transaction;
        Ok(pid)
    }

    /// Ends the transaction, and returns the process id of the backend of the statement after it.
    pub(super) async fn end(&mut self) -> Result<i32, OtherError> {
        const WHAT: &str = "ending a transaction";
        self.run(WHAT, "ROLLBACK").await?;
        self.doing = Doing::Nothing;
        self.ask(WHAT, "SELECT pg_backend_pid()").await
    }

    async fn ask(&mut self, what: &'static str, sql: &str) -> Result<i32, OtherError> {
        let messages = self.run(what, sql).await?;
        let pid = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        pid.ok_or_else(|| OtherError { what, reason: "the answer has no process id".to_owned() })
    }

    /// Sends one message of the simple query protocol: prepared statements do not work behind every pooler.
    async fn run(&mut self, what: &'static str, sql: &str) -> Result<Vec<SimpleQueryMessage>, OtherError> {
        self.doing = Doing::Statement;
        let answered = match select(pin!(self.client.simple_query(sql)), &mut self.connection).await {
            Either::Left((answered, _)) => answered,
            // What the server said before the end is already there.
            Either::Right((ended, answered)) => match (answered.await, ended) {
                (Err(error), Err(ended)) if error.as_db_error().is_none() => Err(ended),
                (answered, _) => answered,
            },
        };
        let messages = answered.map_err(|error| OtherError::new(what, &error))?;
        self.doing = Doing::Nothing;
        Ok(messages)
    }

    /// Ends the session in order.
    async fn close(mut self) {
        // A pooler closes the server's connection, too, when its client leaves in the middle of a transaction.
        if self.doing == Doing::Transaction && self.run("closing", "ROLLBACK").await.is_err() {
            return;
        }
        if self.doing == Doing::Nothing {
            drop(self.client);
            _ = self.connection.await;
        }
    }
}

/// Closes all of them, in order as long as the server takes part.
pub(super) async fn close(others: Vec<Other>) {
    _ = timeout(CLOSE_LIMIT, futures_util::future::join_all(others.into_iter().map(Other::close))).await;
}

/// The process id in the key data, which the library only writes into a request to cancel: length, code,
/// process id, secret.
async fn key_of(client: &Client) -> Result<i32, Box<dyn Error>> {
    let (ours, mut request) = tokio::io::duplex(16);
    client.cancel_token().cancel_query_raw(ours, NoTls).await?;
    let (_length, _code) = (request.read_i32().await?, request.read_i32().await?);
    Ok(request.read_i32().await?)
}
