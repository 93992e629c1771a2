//! A connection URL as its parts. The driver's own parser is not asked, because it logs the values of
//! parameters it does not know, keeps the brackets of an IPv6 address and repeats values in its errors.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use url::Url;

use super::session_options;
use super::settings::DatabaseParts;

/// Everything a connection is made with.
#[derive(Debug, Default)]
pub(crate) struct Target {
    /// What the parts form can say, too; a password file is never among it.
    pub(crate) parts: DatabaseParts,
    /// `application_name`
    pub(crate) application_name: Option<String>,
    /// `options` and `options[name]` in their order, as the server takes them.
    pub(crate) options: String,
    /// `statement-cache-capacity`
    pub(crate) statement_cache_capacity: Option<usize>,
}

/// Why a connection URL is refused. Static text cannot repeat a part of the URL, nor of its password.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{0}")]
pub struct UrlError(&'static str);

impl UrlError {
    pub(super) const fn new(rule: &'static str) -> Self {
        Self(rule)
    }

    /// What passed every rule here is refused by the driver all the same.
    pub(crate) const REFUSED_BY_DRIVER: Self = Self("must be accepted by the PostgreSQL driver");

    /// A URL without, or with another, mode beside an authority of the environment.
    pub(crate) const AUTHORITY_UNUSED: Self = Self(
        "must have the sslmode verify-ca or verify-full, since PGSSLROOTCERT is set (sslrootcert verifies nothing in any other)",
    );
}

const MALFORMED: UrlError = UrlError(
    "must be a connection URL, `postgres://user:password@host:port/dbname?parameters`, with every reserved character of \
     the user name, the password and the database name percent-encoded",
);
const TWICE: UrlError = UrlError("must not say the same thing twice, in its authority or path and in a parameter");

/// Parameters of libpq that the driver would ignore, with the words that refuse each.
const UNSUPPORTED: [(&str, UrlError); 12] = [
    ("channel_binding", UrlError("must not have the parameter `channel_binding`, which is not supported")),
    ("client_encoding", UrlError("must not have the parameter `client_encoding`, which is not supported")),
    (
        "connect_timeout",
        UrlError("must not have the parameter `connect_timeout`: `database.acquire_timeout_seconds` is the limit"),
    ),
    ("gssencmode", UrlError("must not have the parameter `gssencmode`, which is not supported")),
    ("keepalives", UrlError("must not have the parameter `keepalives`, which is not supported")),
    ("keepalives_idle", UrlError("must not have the parameter `keepalives_idle`, which is not supported")),
    ("passfile", UrlError("must not have the parameter `passfile`: set `PGPASSFILE` or `database.password_file`")),
    ("service", UrlError("must not have the parameter `service`, which is not supported")),
    ("sslcrl", UrlError("must not have the parameter `sslcrl`, which is not supported")),
    ("sslpassword", UrlError("must not have the parameter `sslpassword`, which is not supported")),
    ("target_session_attrs", UrlError("must not have the parameter `target_session_attrs`, which is not supported")),
    ("tcp_user_timeout", UrlError("must not have the parameter `tcp_user_timeout`, which is not supported")),
];

/// Parses and validates a connection URL.
///
/// # Errors
///
/// The violated rule, without any part of the URL.
pub(crate) fn parse(text: &str) -> Result<Target, UrlError> {
    if text.trim() != text || text.contains(|c: char| c.is_ascii_control()) {
        // The URL parser drops these characters without a word, also from a password.
        return Err(UrlError("must not contain control characters or begin or end with white space"));
    }
    let url = Url::parse(text).map_err(|_| MALFORMED)?;
    if !matches!(url.scheme(), "postgres" | "postgresql") || url.cannot_be_a_base() {
        return Err(MALFORMED);
    }
    if url.fragment().is_some() {
        return Err(UrlError("must not contain a `#`; in a password it is written `%23`"));
    }

    let mut target = Target::default();
    let parts = &mut target.parts;
    match url.host_str() {
        None | Some("") => {}
        Some(host) => parts.host = Some(host_name(&decoded(host)?)?),
    }
    parts.port = url.port();
    if parts.port == Some(0) {
        return Err(UrlError("must name a port from 1 to 65535"));
    }
    parts.user = Some(decoded(url.username())?.into_owned()).filter(|user| !user.is_empty());
    parts.password = url.password().map(decoded).transpose()?.map(|password| SecretString::from(&*password));
    // Not the parsed path: in that, a database named `.` is gone.
    let after_scheme = text.split_once("://").map_or("", |(_, rest)| rest).split('?').next().unwrap_or_default();
    let path = after_scheme.split_once('/').map_or("", |(_, path)| path);
    if path.contains(['/', '@']) {
        // An unescaped `/` in a password ends the host early, and the rest of the password lands here.
        return Err(UrlError("must not contain a `/` or `@` after the database name; written `%2F` and `%40`"));
    }
    parts.dbname = Some(decoded(path)?.into_owned()).filter(|name| !name.is_empty());
    decoded(url.query().unwrap_or_default())?;
    for (name, value) in url.query_pairs() {
        parameter(&mut target, &name, &value)?;
    }
    session_options::check(&target.options)?;
    check_tls(&target.parts).map_err(|(rule, _)| rule)?;
    target.parts.password.as_ref().map_or(Ok(()), |password| check_password(password.expose_secret()))?;
    Ok(target)
}

fn parameter(target: &mut Target, name: &str, value: &str) -> Result<(), UrlError> {
    let parts = &mut target.parts;
    match name {
        "host" => once(&mut parts.host, host_name(value)?),
        "hostaddr" => {
            value.parse::<IpAddr>().map_err(|_| UrlError("must have an IP address in the parameter `hostaddr`"))?;
            once(&mut parts.host, value.to_owned())
        }
        "port" => {
            let port = value.parse().ok().filter(|port| *port > 0);
            once(&mut parts.port, port.ok_or(UrlError("must name a port from 1 to 65535"))?)
        }
        "dbname" => once(&mut parts.dbname, value.to_owned()),
        "user" => once(&mut parts.user, value.to_owned()),
        "password" => once(&mut parts.password, value.into()),
        "sslmode" | "ssl-mode" => once(&mut parts.sslmode, ssl_mode(value)?.to_owned()),
        "sslrootcert" | "ssl-root-cert" | "ssl-ca" => once(&mut parts.sslrootcert, value.into()),
        "sslcert" | "ssl-cert" => once(&mut parts.sslcert, value.into()),
        "sslkey" | "ssl-key" => once(&mut parts.sslkey, value.into()),
        "application_name" => once(&mut target.application_name, value.to_owned()),
        "statement-cache-capacity" => {
            let capacity = value.parse().ok().filter(|capacity| (1..=100_000).contains(capacity));
            once(
                &mut target.statement_cache_capacity,
                capacity.ok_or(UrlError("must have a whole number from 1 in `statement-cache-capacity`"))?,
            )
        }
        "options" => {
            session_options::push_arguments(&mut target.options, value);
            Ok(())
        }
        _ if let Some(name) = name.strip_prefix("options[").and_then(|rest| rest.strip_suffix(']')) => {
            session_options::push(&mut target.options, name, value);
            Ok(())
        }
        // A name may be the rest of a password with an unescaped `?`: only names of libpq's are repeated.
        _ => Err(UNSUPPORTED.iter().find(|(known, _)| *known == name).map_or(
            UrlError(
                "must have no other parameters than host, hostaddr, port, dbname, user, password, sslmode, sslrootcert, \
                 sslcert, sslkey, application_name, options and statement-cache-capacity; in a password `?` is written \
                 `%3F` and `&` is written `%26`",
            ),
            |(_, refusal)| *refusal,
        )),
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), UrlError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(TWICE),
    }
}

/// A host as the resolver takes it: an IPv6 address without its brackets.
///
/// # Errors
///
/// Several hosts are refused, since the driver connects to one.
pub(crate) fn host_name(host: &str) -> Result<String, UrlError> {
    if host.contains(',') {
        return Err(UrlError("must name one host; several are not supported"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Ok(bare.unwrap_or(host).to_owned())
}

fn ssl_mode(value: &str) -> Result<&'static str, UrlError> {
    ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
        .into_iter()
        .find(|mode| mode.eq_ignore_ascii_case(value))
        .ok_or(UrlError(
            "must have disable, allow, prefer, require, verify-ca or verify-full in the parameter `sslmode`",
        ))
}

/// Whether the driver can send a password. Unlike libpq it cannot send by SCRAM-SHA-256 what SASLprep
/// prohibits, and the error that it gives at every attempt to connect repeats the offending character.
///
/// # Errors
///
/// A password with a character that SASLprep prohibits.
pub(crate) fn check_password(password: &str) -> Result<(), UrlError> {
    stringprep::saslprep(password).map(drop).map_err(|_| {
        UrlError("must have a password that the driver can send by SCRAM-SHA-256: SASLprep prohibits control characters, line \
             breaks and characters newer than Unicode 3.2 such as emoji")
    })
}

/// The rules of TLS that no single part can break.
///
/// # Errors
///
/// The broken rule, and the key of the parts form that breaks it.
pub(crate) fn check_tls(parts: &DatabaseParts) -> Result<(), (UrlError, &'static str)> {
    let verifies = matches!(parts.sslmode.as_deref(), Some("verify-ca" | "verify-full"));
    if parts.sslrootcert.is_some() && !verifies {
        return Err((
            UrlError(
                "must not be given without the sslmode verify-ca or verify-full (sslrootcert verifies nothing in any other)",
            ),
            "database.sslrootcert",
        ));
    }
    match (&parts.sslcert, &parts.sslkey) {
        (Some(_), None) => {
            Err((UrlError("must be given together with sslkey (sslcert is given alone)"), "database.sslcert"))
        }
        (None, Some(_)) => {
            Err((UrlError("must be given together with sslcert (sslkey is given alone)"), "database.sslkey"))
        }
        _ => Ok(()),
    }
}

/// Decodes `%XX`.
fn decoded(text: &str) -> Result<Cow<'_, str>, UrlError> {
    let bytes = text.as_bytes();
    let stray = bytes.iter().enumerate().any(|(at, byte)| {
        *byte == b'%' && !bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    });
    if stray {
        return Err(UrlError("must not contain a `%` that is not followed by two hexadecimal digits; written `%25`"));
    }
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| UrlError("must contain nothing but UTF-8 after percent-decoding"))?;
    if text.contains('\0') {
        return Err(UrlError("must not contain `%00`"));
    }
    Ok(text)
}

impl Target {
    /// The same as a URL that the driver's parser takes without loss: everything is a parameter.
    ///
    /// # Errors
    ///
    /// A path that is not UTF-8 has no place in a URL.
    pub(crate) fn to_driver_url(&self) -> Result<Url, UrlError> {
        let parts = &self.parts;
        let mut pairs: Vec<(&str, Cow<'_, str>)> = Vec::new();
        let texts = [
            ("host", parts.host.as_deref()),
            ("user", parts.user.as_deref()),
            ("password", parts.password.as_ref().map(ExposeSecret::expose_secret)),
            ("dbname", parts.dbname.as_deref()),
            ("sslmode", parts.sslmode.as_deref()),
        ];
        pairs.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?.into()))));
        let files = [("sslrootcert", &parts.sslrootcert), ("sslcert", &parts.sslcert), ("sslkey", &parts.sslkey)];
        for (name, file) in files {
            if let Some(file) = file {
                pairs.push((name, file.to_str().ok_or(UrlError("must name files whose paths are UTF-8"))?.into()));
            }
        }
        pairs.extend(parts.port.map(|port| ("port", port.to_string().into())));
        pairs.extend(self.statement_cache_capacity.map(|size| ("statement-cache-capacity", size.to_string().into())));
        if !self.options.is_empty() {
            pairs.push(("options", self.options.as_str().into()));
        }
        Url::parse_with_params("postgres:///", pairs).map_err(|_| MALFORMED)
    }
}
