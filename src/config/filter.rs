//! Log filters.

use thiserror::Error;
use tracing_subscriber::filter::EnvFilter;

/// The words of a filter that are levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Dependencies whose lines are only shown when the filter names them: they tell of every failed request, with what
/// was answered, where this program tells of each outage and each refusal once.
const QUIET: &str = "kube_client=off,kube_runtime=off";

/// Why a log filter is refused.
#[derive(Debug, Error)]
pub enum FilterError {
    /// It has no directive.
    #[error("it has no directive")]
    Empty,
    /// A directive cannot be parsed.
    #[error("{0}")]
    Directive(#[from] tracing_subscriber::filter::ParseError),
    /// A directive's target cannot be one; it is not repeated, since it may be anything.
    #[error("a target is written with letters, digits, `_`, `-`, `.` and `::`")]
    Target,
    /// A directive would be taken for the name of a target, which would silence everything else.
    #[error("`{word}` is not a level; did you mean `{level}`?")]
    Level {
        /// The directive.
        word: String,
        /// The level it resembles.
        level: &'static str,
    },
}

/// Parses a log filter: directives such as `info` and `sqlx=debug`, separated by commas.
///
/// # Errors
///
/// A filter without a directive, one that cannot be parsed, an impossible target and a misspelled level.
pub fn parse_filter(text: &str) -> Result<EnvFilter, FilterError> {
    if text.split(',').all(|directive| directive.trim().is_empty()) {
        return Err(FilterError::Empty);
    }
    for word in text.split(',').map(str::trim) {
        let target = word.split(['[', '=']).next().unwrap_or_default();
        if !target.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte)) {
            return Err(FilterError::Target);
        }
        let lower = word.to_ascii_lowercase();
        let near = |level: &&&str| strsim::damerau_levenshtein(level, &lower) <= 2;
        if !LEVELS.contains(&lower.as_str())
            && word.bytes().all(|byte| byte.is_ascii_alphabetic())
            && let Some(level) = LEVELS.iter().find(near)
        {
            return Err(FilterError::Level { word: word.to_owned(), level });
        }
    }
    // Of two directives for one target the last one holds.
    Ok(EnvFilter::builder().parse(format!("{QUIET},{text}"))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn filters_that_mean_something_are_accepted() {
        for filter in [
            "info",
            "WARN",
            "retsu_collector",
            "info,sqlx::query=debug",
            "retsu_collector[refresh{term=1}]=trace",
            "info,",
        ] {
            parse_filter(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
        }
    }
}
