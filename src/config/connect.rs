//! Connection options, made again at every reconnect so that a rotated secret needs no restart.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use thiserror::Error;

use super::connection_url::{self, Target, UrlError};
use super::session_options;
use super::settings::{DatabaseParts, DatabaseSettings, DatabaseSource};

/// The `application_name` of every connection, unless the URL gives another.
const APPLICATION_NAME: &str = "retsu-collector";

/// The longest secret that is read from a file, in bytes.
const MAX_SECRET: u64 = 64 * 1024;

/// From this time on a statement is logged as slow, at `debug`: the collector reports a slow refresh
/// itself, once, without the text of the statement.
const SLOW_STATEMENT: Duration = Duration::from_secs(1);

/// Why no connection options could be made. No message contains any part of a secret.
#[derive(Debug, Error)]
pub enum ConnectOptionsError {
    /// The file cannot be read, for the reason that the operating system gives.
    #[error("{key}: {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file's content breaks a rule.
    #[error("{key}: the content of {} {rule}", path.display())]
    Content {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The rule.
        rule: &'static str,
    },
    /// The URL, or the parts together, break a rule.
    #[error("{origin} {rule}")]
    Invalid {
        /// The key, and the file where there is one.
        origin: String,
        /// The rule.
        rule: UrlError,
    },
}

impl DatabaseSettings {
    /// Makes the options of a new connection. Files are read again by every call, from the calling
    /// thread; what the settings leave open follows the `PG*` environment and `PGPASSFILE`.
    ///
    /// The result's `Debug` output contains the password: never print it.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or content that breaks a rule; never a part of a secret.
    pub fn connect_options(&self) -> Result<PgConnectOptions, ConnectOptionsError> {
        let (target, origin) = match &self.source {
            DatabaseSource::Url(url) => (connection_url::parse(url.expose_secret()), "database.url".to_owned()),
            DatabaseSource::UrlFile(path) => {
                let url = read_secret("database.url_file", path)?;
                (
                    connection_url::parse(url.expose_secret()),
                    format!("database.url_file: the content of {}", path.display()),
                )
            }
            DatabaseSource::Parts(parts) => (from_parts(parts)?, "database".to_owned()),
        };
        target.and_then(|target| driver_options(&target)).map_err(|rule| ConnectOptionsError::Invalid { origin, rule })
    }
}

fn from_parts(parts: &DatabaseParts) -> Result<Result<Target, UrlError>, ConnectOptionsError> {
    let mut parts = parts.clone();
    if let Some(path) = parts.password_file.take() {
        parts.password = Some(read_secret("database.password_file", &path)?);
    }
    let host = parts.host.as_deref().map(connection_url::host_name).transpose();
    Ok(host.and_then(|host| {
        parts.host = host;
        parts.password.as_ref().map_or(Ok(()), |password| connection_url::check_password(password.expose_secret()))?;
        connection_url::check_tls(&parts).map_err(|(rule, _)| rule)?;
        Ok(Target { parts, ..Target::default() })
    }))
}

fn driver_options(target: &Target) -> Result<PgConnectOptions, UrlError> {
    // Through the driver's URL, because only its parser looks the password up for the host it names.
    let options = PgConnectOptions::from_url(&target.to_driver_url()?).map_err(|_| UrlError::REFUSED_BY_DRIVER)?;
    // Once more, as one: the driver puts `PGOPTIONS` before the URL's own, and neither may end what the other begins.
    session_options::check(options.get_options().unwrap_or_default())?;
    // The mode of a URL wins over the variable's, and with another one the driver would ignore the authority in silence.
    let verifies = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    if env::var_os("PGSSLROOTCERT").is_some() && !verifies {
        return Err(UrlError::AUTHORITY_UNUSED);
    }
    Ok(options
        .application_name(target.application_name.as_deref().unwrap_or(APPLICATION_NAME))
        .log_slow_statements(log::LevelFilter::Debug, SLOW_STATEMENT))
}

/// Reads a secret; exactly one trailing newline, `\n` or `\r\n`, is not part of it.
fn read_secret(key: &'static str, path: &Path) -> Result<SecretString, ConnectOptionsError> {
    let content = |rule| ConnectOptionsError::Content { key, path: path.to_owned(), rule };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_SECRET + 1).read_to_end(&mut bytes))
        .map_err(|source| ConnectOptionsError::Unreadable { key, path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_SECRET {
        return Err(content("must not be longer than 64 KiB"));
    }
    // The error of the conversion holds the bytes: it is dropped, not wrapped.
    let Ok(text) = String::from_utf8(bytes) else { return Err(content("must be UTF-8")) };
    let secret = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if secret.is_empty() {
        return Err(content("must not be empty"));
    }
    if secret.contains('\0') {
        return Err(content("must not contain a NUL"));
    }
    Ok(secret.into())
}
