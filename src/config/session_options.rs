//! The options that a session starts with, `options` in libpq's words, taken apart as the server does it.

use super::connection_url::UrlError;

macro_rules! of_the_lease {
    ($($name:literal)*) => {
        [$(($name, UrlError::new(concat!(
            "must not set the session option `", $name, "`, which contradicts the lease's limits: the program sets it itself"
        )))),*]
    };
}

/// What the lock session is given by the program, with the words that refuse it from elsewhere. A limit that is
/// reset when the lock was not won would go back to the value that the session started with.
const OF_THE_LEASE: [(&str, UrlError); 9] = of_the_lease!(
    "idle_session_timeout" "idle_in_transaction_session_timeout" "statement_timeout" "tcp_user_timeout"
    "tcp_keepalives_idle" "tcp_keepalives_interval" "tcp_keepalives_count" "client_connection_check_interval" "jit"
);

/// The switches of a backend that take an argument: `getopt`'s string in PostgreSQL's `process_postgres_switches`.
const WITH_ARGUMENT: &str = "BCDNSWcdfhprtv-";

/// The names that are refused.
pub(super) fn refused() -> impl Iterator<Item = &'static str> {
    OF_THE_LEASE.iter().map(|(name, _)| *name)
}

/// Appends the option `name` with `value`, as one argument whatever is in it.
pub(super) fn push(options: &mut String, name: &str, value: &str) {
    separate(options);
    options.push_str("-c ");
    for c in name.chars().chain(['=']).chain(value.chars()) {
        if is_space(c) || c == '\\' {
            options.push('\\');
        }
        options.push(c);
    }
}

/// Appends arguments that are already written as the server takes them.
pub(super) fn push_arguments(options: &mut String, arguments: &str) {
    separate(options);
    options.push_str(arguments);
}

fn separate(options: &mut String) {
    if !options.is_empty() {
        options.push(' ');
    }
}

/// Holds `options` against the limits of the lease.
///
/// # Errors
///
/// The first option that the program sets itself.
pub(super) fn check(options: &str) -> Result<(), UrlError> {
    let names = settings(&arguments(options));
    let refused = names.iter().find_map(|name| OF_THE_LEASE.iter().find(|(limit, _)| limit == name));
    refused.map_or(Ok(()), |(_, refusal)| Err(*refusal))
}

/// `pg_split_opts`: white space separates, a backslash takes the next character as it is, nothing quotes.
fn arguments(options: &str) -> Vec<String> {
    let (mut arguments, mut current) = (Vec::new(), None::<String>);
    let mut rest = options.chars();
    while let Some(c) = rest.next() {
        if is_space(c) {
            arguments.extend(current.take());
        } else {
            let current = current.get_or_insert_default();
            current.extend(if c == '\\' { rest.next() } else { Some(c) });
        }
    }
    arguments.extend(current);
    arguments
}

/// C's `isspace`.
const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The names of the settings among the arguments of a backend: `-c name=value`, `-cname=value`, `--name=value`, or the
/// same after other switches in one word. Names have `_` for `-` and no case.
fn settings(arguments: &[String]) -> Vec<String> {
    let (mut names, mut words) = (Vec::new(), arguments.iter());
    while let Some(word) = words.next() {
        let Some(switches) = word.strip_prefix('-') else { continue };
        let Some(at) = switches.find(|c| WITH_ARGUMENT.contains(c)) else { continue };
        let (switch, attached) = switches.split_at(at).1.split_at(1);
        let argument = if attached.is_empty() { words.next().map_or("", String::as_str) } else { attached };
        if matches!(switch, "c" | "-") {
            let name = argument.split('=').next().unwrap_or_default();
            names.push(name.replace('-', "_").to_ascii_lowercase());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn every_spelling_of_a_limit_is_refused_and_named() {
        for options in [
            "-c statement_timeout=0",
            "-cstatement_timeout=0",
            "--statement_timeout=0",
            "--statement-timeout=0",
            "--Statement-Timeout=0",
            "-c STATEMENT_TIMEOUT=5s",
            "  -c\t\nstatement_timeout=0",
            "-c geqo=off -c statement_timeout=0",
            "-c geqo=off\u{b}--statement_timeout=0",
            r"-c state\ment_timeout=0",
            r"-c search_path=a\ b --statement_timeout=0",
            "-ec statement_timeout=0",
            "-e-statement_timeout=0",
            "-S 64 -cstatement_timeout=0",
            "-c statement_timeout",
        ] {
            let refusal = check(options).expect_err(options).to_string();
            assert!(refusal.contains("`statement_timeout`") && refusal.contains("contradicts"), "{options}: {refusal}");
        }
        for name in refused() {
            let (mut given, mut written) = (String::new(), String::new());
            push(&mut given, name, "1");
            push_arguments(&mut written, &format!("--{}=1", name.replace('_', "-")));
            for options in [given, written] {
                let refusal = check(&options).expect_err(name).to_string();
                assert!(refusal.contains(&format!("`{name}`")), "{refusal}");
            }
        }
    }

    #[test]
    fn other_options_and_what_only_looks_like_a_limit_are_left_alone() {
        for options in [
            "",
            "-c geqo=off",
            "-c search_path=statement_timeout=1",
            r"-c search_path=a\ --statement_timeout=0",
            r"-c search_path=a\\\ -c\ statement_timeout=0",
            "-S --statement_timeout=0",
            "-c lock_timeout=1s --work-mem=64MB",
            "-c my.jit=on",
            "-e",
            "-c",
            "statement_timeout=0",
            "\\",
        ] {
            assert_eq!(check(options), Ok(()), "{options}");
        }
    }

    #[test]
    fn an_option_by_name_is_one_argument_whatever_its_value() {
        let mut options = String::new();
        push_arguments(&mut options, "-c geqo=off");
        push(&mut options, "search_path", "a b\t\\-c\njit=on");
        assert_eq!(arguments(&options), ["-c", "geqo=off", "-c", "search_path=a b\t\\-c\njit=on"]);
        assert_eq!(check(&options), Ok(()));
        push(&mut options, "jit=on x", "1");
        check(&options).expect_err("the server cuts the name at the first `=`");
    }
}
