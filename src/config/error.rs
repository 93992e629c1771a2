//! What is wrong with a configuration: every problem of it, at once.

use std::fmt;

use thiserror::Error;

use super::source::Source;

/// A configuration that is refused, with everything that is wrong with it.
#[derive(Debug, Error)]
#[error("{}", self.lines())]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Everything that is wrong, in the order of the sources and then of the keys.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn lines(&self) -> String {
        self.problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
    }
}

/// One thing that is wrong with a configuration. It never holds a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    kind: ProblemKind,
    subject: String,
    value: Option<String>,
    source: Option<Source>,
    rule: String,
}

/// The kinds of [`Problem`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProblemKind {
    /// A source cannot be read or is no configuration at all.
    Unreadable,
    /// A name that is no key.
    UnknownKey,
    /// A value that breaks its key's rule.
    InvalidValue,
    /// Keys that exclude or need each other.
    Conflict,
    /// Something that has no default is not given.
    Missing,
}

impl Problem {
    pub(crate) fn new(
        kind: ProblemKind,
        subject: impl Into<String>,
        source: impl Into<Option<Source>>,
        rule: impl Into<String>,
    ) -> Self {
        Self { kind, subject: subject.into(), value: None, source: source.into(), rule: rule.into() }
    }

    /// Adds the offending value, already known to be no secret.
    pub(crate) fn with_value(self, value: impl Into<Option<String>>) -> Self {
        Self { value: value.into(), ..self }
    }

    /// What kind of problem it is.
    #[must_use]
    pub const fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The key, variable, flag or file it is about.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }
}

/// `key = value (source): rule`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subject)?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        write!(f, ": {}", self.rule)
    }
}
