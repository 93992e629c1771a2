//! What a key may hold: one parser and one rule for every source of values.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use super::settings::LockKey;
use super::{connection_url, filter, labels};

/// The longest value that any key takes, in bytes.
const MAX_LENGTH: usize = 16 * 1024;

/// What a key may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A whole number.
    Integer { min: u64, max: u64 },
    /// A span of time in seconds, fractions allowed.
    Seconds { min: f64, max: f64 },
    /// A share from 0 to 1.
    Ratio,
    /// `true` or `false`.
    Boolean,
    /// One of a few words; `true` and `false` stand for `on` and `off` where those are among them.
    Choice(&'static [&'static str]),
    /// A line of text.
    Text,
    /// A file.
    Path,
    /// Text that is never shown.
    Secret,
    /// A connection URL, which is never shown either: it may hold a password.
    ConnectionUrl,
    /// An IP address.
    Address,
    /// A log filter.
    Filter,
    /// The base URL of an OTLP/HTTP receiver.
    Endpoint,
    /// A two-part advisory-lock key.
    LockKey,
    /// The key of a Kubernetes label or annotation.
    QualifiedName,
    /// A DNS label, the name of a container.
    DnsLabel,
    /// A Kubernetes label selector.
    LabelSelector,
}

/// A value that satisfies its key's [`Kind`].
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Integer(u64),
    Seconds(Duration),
    Ratio(f64),
    Boolean(bool),
    Text(String),
    Path(PathBuf),
    Secret(SecretString),
    Address(IpAddr),
    LockKey(LockKey),
}

impl Kind {
    /// Whether values of this kind are shown nowhere.
    pub(crate) const fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::ConnectionUrl)
    }

    /// The rule that a value has to satisfy, as it continues "must be".
    pub(crate) fn rule(self) -> String {
        match self {
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Seconds { min, max } => format!("a number of seconds from {min} to {max}, fractions allowed"),
            Self::Ratio => "a number from 0 to 1".into(),
            Self::Boolean => "`true` or `false`".into(),
            Self::Choice(words) => match words.split_last() {
                Some((last, [])) => format!("`{last}`"),
                Some((last, rest)) => {
                    format!(
                        "{} or `{last}`",
                        rest.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
                    )
                }
                None => String::new(),
            },
            Self::Text => "text without control characters, quoted where YAML would read a number".into(),
            Self::Path => "the path of a file".into(),
            Self::Secret => "text without control characters, quoted where YAML would read a number".into(),
            Self::ConnectionUrl => "a connection URL, `postgres://user:password@host:port/dbname?parameters`".into(),
            Self::Address => "an IPv4 or IPv6 address without brackets, port or zone".into(),
            Self::Filter => "log directives, such as `info,sqlx=debug`".into(),
            Self::Endpoint => "a base URL that begins with `http://` (TLS is not supported), such as \
                               `http://localhost:4318`, without user name, query or fragment"
                .into(),
            Self::LockKey => format!(
                "two whole numbers from {} to {}, as `[a, b]` in a file and `a,b` elsewhere",
                i32::MIN,
                i32::MAX
            ),
            Self::QualifiedName => {
                "the key of a Kubernetes label or annotation: at most 63 letters, digits, `-`, `_` and `.`, \
                                    the first and the last a letter or digit, alone or after a DNS subdomain and a `/`"
                    .into()
            }
            Self::DnsLabel => "at most 63 lower-case letters, digits and `-`, the first and the last no `-`".into(),
            Self::LabelSelector => "a Kubernetes label selector of equality and set-based requirements, such as \
                                    `app.kubernetes.io/name=retsu-collector,tier in (a, b)`"
                .into(),
        }
    }

    /// The text of a YAML value, when this kind can be written that way. Numbers and lists are text in
    /// another notation; a number where text is asked for is refused, because YAML has already dropped
    /// its leading zeros.
    pub(crate) fn text_of(self, value: &serde_yaml::Value) -> Option<String> {
        use serde_yaml::Value as Yaml;
        match (self, value) {
            (_, Yaml::String(text)) => Some(text.clone()),
            (Self::Integer { .. } | Self::Seconds { .. } | Self::Ratio, Yaml::Number(number)) => {
                Some(number.to_string())
            }
            (Self::Boolean, Yaml::Bool(value)) => Some(value.to_string()),
            // YAML 1.1, and with it Helm, reads `on` and `off` as booleans and writes them as such.
            (Self::Choice(words), Yaml::Bool(value)) if words.contains(&"on") => Some(value.to_string()),
            (Self::LockKey, Yaml::Sequence(parts)) => match parts.as_slice() {
                [Yaml::Number(class), Yaml::Number(object)] => Some(format!("{class},{object}")),
                _ => None,
            },
            _ => None,
        }
    }

    /// Parses the text of a value.
    ///
    /// # Errors
    ///
    /// The violated rule. It never repeats the value.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        if text.is_empty() {
            return Err("must not be empty".into());
        }
        if text.len() > MAX_LENGTH {
            return Err(format!("must not be longer than {MAX_LENGTH} bytes"));
        }
        let refused = || format!("must be {}", self.rule());
        match self {
            Self::Integer { min, max } => {
                text.parse().ok().filter(|number| (min..=max).contains(number)).map(Value::Integer).ok_or_else(refused)
            }
            Self::Seconds { min, max } => text
                .parse()
                .ok()
                .filter(|seconds| (min..=max).contains(seconds))
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .map(Value::Seconds)
                .ok_or_else(refused),
            Self::Ratio => {
                text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)).map(Value::Ratio).ok_or_else(refused)
            }
            Self::Boolean => text.parse().map(Value::Boolean).map_err(|_| refused()),
            Self::Choice(words) => {
                let word = match text {
                    "true" if words.contains(&"on") => "on",
                    "false" if words.contains(&"off") => "off",
                    word => word,
                };
                words.contains(&word).then(|| Value::Text(word.to_owned())).ok_or_else(refused)
            }
            Self::Text => (!text.contains(char::is_control)).then(|| Value::Text(text.to_owned())).ok_or_else(refused),
            Self::Path => {
                (!text.contains(char::is_control)).then(|| Value::Path(PathBuf::from(text))).ok_or_else(refused)
            }
            Self::Secret => match connection_url::check_password(text) {
                Ok(()) => Ok(Value::Secret(text.into())),
                Err(invalid) => Err(invalid.to_string()),
            },
            Self::ConnectionUrl => match connection_url::parse(text) {
                Ok(_) => Ok(Value::Secret(text.into())),
                Err(invalid) => Err(invalid.to_string()),
            },
            Self::Address => text.parse().map(Value::Address).map_err(|_| refused()),
            Self::Filter => match filter::parse_filter(text) {
                Ok(_) => Ok(Value::Text(text.to_owned())),
                Err(invalid) => Err(format!("must be {}: {invalid}", self.rule())),
            },
            Self::Endpoint => parse_endpoint(text).map(Value::Text).ok_or_else(refused),
            Self::LockKey => parse_lock_key(text).map(Value::LockKey).ok_or_else(refused),
            Self::QualifiedName => {
                labels::is_qualified_name(text).then(|| Value::Text(text.to_owned())).ok_or_else(refused)
            }
            Self::DnsLabel => labels::is_dns_label(text).then(|| Value::Text(text.to_owned())).ok_or_else(refused),
            Self::LabelSelector => {
                labels::keys_of_selector(text).map(|_| Value::Text(text.to_owned())).ok_or_else(refused)
            }
        }
    }
}

fn parse_endpoint(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && matches!(url.scheme(), "http" | "https")
        && url.has_host();
    plain.then(|| url.as_str().trim_end_matches('/').to_owned())
}

fn parse_lock_key(text: &str) -> Option<LockKey> {
    let (class, object) = text.split_once(',')?;
    Some(LockKey(class.trim().parse().ok()?, object.trim().parse().ok()?))
}

/// The value as YAML on one line; a secret is replaced.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Seconds(span) => write!(f, "{}", span.as_secs_f64()),
            Self::Ratio(ratio) => write!(f, "{ratio}"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Path(path) => f.write_str(&quoted(&path.to_string_lossy())),
            Self::Secret(_) => f.write_str("\"[redacted]\""),
            Self::Address(address) => f.write_str(&quoted(&address.to_string())),
            Self::LockKey(LockKey(class, object)) => write!(f, "[{class}, {object}]"),
        }
    }
}

/// A JSON string is a YAML string, and it is always on one line.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A typed reading of a [`Value`].
pub(crate) trait FromValue: Sized {
    /// `None` when the value is of another kind.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $pattern:pat => $value:expr;)*) => {
        $(impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                match value { $pattern => $value, _ => None }
            }
        })*
    };
}

from_value! {
    u16: Value::Integer(number) => u16::try_from(*number).ok();
    i32: Value::Integer(number) => i32::try_from(*number).ok();
    u32: Value::Integer(number) => u32::try_from(*number).ok();
    Duration: Value::Seconds(span) => Some(*span);
    f64: Value::Ratio(ratio) => Some(*ratio);
    bool: Value::Boolean(value) => Some(*value);
    String: Value::Text(text) => Some(text.clone());
    PathBuf: Value::Path(path) => Some(path.clone());
    SecretString: Value::Secret(secret) => Some(secret.clone());
    IpAddr: Value::Address(address) => Some(*address);
    LockKey: Value::LockKey(key) => Some(*key);
}
