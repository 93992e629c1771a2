//! The first stage: each source as a fragment, names understood and values still text.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_yaml::Value as Yaml;

use super::error::{Problem, ProblemKind};
use super::keys::{self, Key, Meaning};
use super::source::{Assignment, FILE_VARIABLE, Flag, Source};

/// One value of one source. The text may be a secret.
pub(crate) struct Entry {
    pub(crate) key: &'static Key,
    pub(crate) text: String,
    pub(crate) source: Source,
}

/// What one source says, and what is wrong with it.
#[derive(Default)]
pub(crate) struct Fragment {
    pub(crate) entries: Vec<Entry>,
    pub(crate) problems: Vec<Problem>,
}

impl Fragment {
    fn push(&mut self, key: &'static Key, text: String, source: Source) {
        if let Some(first) = self.entries.iter().find(|entry| entry.key.path == key.path) {
            let rule = format!("must be given once; it is also given by {}", first.source);
            self.problems.push(Problem::new(ProblemKind::Conflict, key.path, source, rule));
        } else {
            self.entries.push(Entry { key, text, source });
        }
    }

    fn refuse(&mut self, kind: ProblemKind, subject: impl Into<String>, source: &Source, rule: impl Into<String>) {
        self.problems.push(Problem::new(kind, subject, source.clone(), rule));
    }
}

/// A level of a path that may be shown. Anything that does not look like the name of a key may be a
/// value in the wrong place, even a secret.
fn shown(level: &str) -> &str {
    let plain = level.len() <= 100 && level.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.<".contains(&byte));
    if plain && !level.is_empty() { level } else { "[not a name]" }
}

fn shown_path(path: &[&str]) -> String {
    path.iter().map(|level| shown(level)).collect::<Vec<_>>().join(".")
}

/// The key of a pair that may be shown. A pair that is a secret and nothing else has no key, but may
/// contain a `=`.
fn shown_key(path: &str) -> &str {
    let plain = path.bytes().all(|byte| byte.is_ascii_lowercase() || b"_-.".contains(&byte));
    if plain && !path.is_empty() { path } else { "[not a name]" }
}

/// The fragment of a configuration file.
pub(crate) fn of_file(path: &Path, content: &[u8]) -> Fragment {
    let mut fragment = Fragment::default();
    let source = Source::File(path.to_owned());
    let Ok(text) = std::str::from_utf8(content) else {
        fragment.refuse(ProblemKind::Unreadable, "configuration file", &source, "must be UTF-8");
        return fragment;
    };
    match serde_yaml::from_str(text) {
        Ok(Yaml::Null) => {}
        Ok(Yaml::Mapping(root)) => of_mapping(&mut fragment, &source, &[], &root),
        Ok(_) => {
            fragment.refuse(ProblemKind::Unreadable, "configuration file", &source, "must be a mapping of sections");
        }
        // An empty file has no document.
        Err(_) if text.trim().is_empty() => {}
        Err(error) => {
            fragment.refuse(ProblemKind::Unreadable, "configuration file", &source, yaml_rule(&error));
        }
    }
    fragment
}

/// The parser's own message may repeat a part of the file: only the key, the place and the kind are kept.
fn yaml_rule(error: &serde_yaml::Error) -> String {
    let message = error.to_string();
    let place = error
        .location()
        .map_or_else(String::new, |place| format!(" at line {}, column {}", place.line(), place.column()));
    if let Some((above, rest)) = message.split_once("duplicate entry with key \"") {
        let section = above.strip_suffix(": ").map(|path| path.split('.').map(shown).collect::<Vec<_>>().join("."));
        format!(
            "must not give a key twice: `{}`{}{place}",
            rest.split_once('"').map_or("[not a name]", |(key, _)| shown(key)),
            section.map_or_else(String::new, |section| format!(" in `{section}`"))
        )
    } else if message.contains("duplicate entry") {
        format!("must not give a key twice{place}")
    } else if let Some((path, _)) = message.split_once(": invalid type: integer") {
        let path = path.split('.').map(shown).collect::<Vec<_>>().join(".");
        format!("must not hold a whole number of more than 64 bits: `{path}`{place}")
    } else if message.contains("more than one document") {
        "must be one YAML document".into()
    } else {
        format!("must be YAML{place}")
    }
}

fn of_mapping(fragment: &mut Fragment, source: &Source, above: &[&str], mapping: &serde_yaml::Mapping) {
    for (name, value) in mapping {
        let name = match name {
            Yaml::String(name) => name.as_str(),
            _ => "[not a name]",
        };
        let path: Vec<&str> = above.iter().copied().chain([name]).collect();
        match (keys::meaning(&path, value.is_mapping()), value) {
            (Meaning::Unused, _) | (Meaning::Key(_) | Meaning::Section, Yaml::Null) => {}
            (Meaning::Section, Yaml::Mapping(below)) => of_mapping(fragment, source, &path, below),
            (Meaning::Section, _) => {
                let rule = "must be a section of keys, not a value";
                fragment.refuse(ProblemKind::InvalidValue, shown_path(&path), source, rule);
            }
            (Meaning::Key(key), value) => match key.kind.text_of(value) {
                Some(text) => fragment.push(key, text, source.clone()),
                None => {
                    let rule = format!("must be {}, not {}", key.kind.rule(), shape(value));
                    fragment.refuse(ProblemKind::InvalidValue, key.path, source, rule);
                }
            },
            (Meaning::Unknown, Yaml::Mapping(below)) if !below.is_empty() => {
                of_mapping(fragment, source, &path, below);
            }
            (Meaning::Unknown, _) => {
                let dotted = path.iter().any(|level| level.contains('.'));
                let rule = format!(
                    "must be a known key; {}{}",
                    keys::hint(&path.join("."), str::to_owned),
                    if dotted { ", each level of it in its own mapping" } else { "" }
                );
                fragment.refuse(ProblemKind::UnknownKey, shown_path(&path), source, rule);
            }
        }
    }
}

const fn shape(value: &Yaml) -> &'static str {
    match value {
        Yaml::Null => "nothing",
        Yaml::Bool(_) => "a boolean",
        Yaml::Number(_) => "a number",
        Yaml::String(_) => "text",
        Yaml::Sequence(_) => "a list",
        Yaml::Mapping(_) => "a mapping",
        Yaml::Tagged(_) => "a tagged value",
    }
}

/// The fragment of the variables that begin with `RETSU_`.
pub(crate) fn of_environment(environment: &[(OsString, OsString)]) -> Fragment {
    let mut fragment = Fragment::default();
    let mut environment: Vec<_> = environment.iter().collect();
    environment.sort_unstable();
    for (variable, value) in environment {
        let name = variable.to_string_lossy();
        let Some(rest) = name.strip_prefix("RETSU_") else { continue };
        if name == FILE_VARIABLE || (!rest.contains("__") && is_service_link(rest, value)) {
            continue;
        }
        let source = Source::Environment(shown(&name).to_owned());
        let lower = rest.to_ascii_lowercase();
        let path: Vec<&str> = lower.split("__").collect();
        match keys::meaning(&path, false) {
            Meaning::Unused => {}
            Meaning::Key(key) => match value.to_str() {
                Some(text) => fragment.push(key, text.to_owned(), source),
                None => fragment.refuse(ProblemKind::InvalidValue, key.path, &source, "must be UTF-8"),
            },
            Meaning::Section | Meaning::Unknown => {
                let rule = format!("must name a known key; {}", keys::hint(&path.join("."), keys::variable));
                fragment.refuse(ProblemKind::UnknownKey, shown(&name), &source, rule);
            }
        }
    }
    fragment
}

/// Whether Kubernetes made this variable for a Service whose name begins with `retsu`: it does so in
/// every Pod of the namespace.
fn is_service_link(rest: &str, value: &OsStr) -> bool {
    let by_name = rest.ends_with("SERVICE_HOST")
        || rest.ends_with("SERVICE_PORT")
        || rest.contains("SERVICE_PORT_")
        || rest.split_once("PORT_").is_some_and(|(_, port)| port.starts_with(|c: char| c.is_ascii_digit()));
    let by_value = value
        .to_str()
        .is_some_and(|value| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme)));
    by_name || (by_value && rest.ends_with("PORT"))
}

/// The fragment of the flags.
pub(crate) fn of_flags(flags: &[Flag]) -> Fragment {
    let mut fragment = Fragment::default();
    for flag in flags {
        let (path, value) = match &flag.assignment {
            Assignment::Key { path, value } => (*path, value.as_str()),
            Assignment::Pair(pair) => match pair.split_once('=') {
                Some(pair) => pair,
                None => {
                    let source = Source::Flag(flag.name.into());
                    fragment.refuse(ProblemKind::InvalidValue, flag.name, &source, "must be written `key=value`");
                    continue;
                }
            },
        };
        let source = Source::Flag(flag.name.into());
        let levels: Vec<&str> = path.split('.').collect();
        match keys::meaning(&levels, false) {
            Meaning::Key(key) => fragment.push(key, value.to_owned(), source),
            Meaning::Section | Meaning::Unused | Meaning::Unknown => {
                let rule = format!("must name a known key; {}", keys::hint(path, str::to_owned));
                fragment.refuse(ProblemKind::UnknownKey, shown_key(path), &source, rule);
            }
        }
    }
    fragment
}

/// libpq's variables and the keys that they stand in for; of two for one key the first wins.
const LIBPQ: [(&str, &str); 10] = [
    ("PGHOSTADDR", "database.host"),
    ("PGHOST", "database.host"),
    ("PGPORT", "database.port"),
    ("PGUSER", "database.user"),
    ("PGPASSWORD", "database.password"),
    ("PGDATABASE", "database.dbname"),
    ("PGSSLMODE", "database.sslmode"),
    ("PGSSLROOTCERT", "database.sslrootcert"),
    ("PGSSLCERT", "database.sslcert"),
    ("PGSSLKEY", "database.sslkey"),
];

/// The fragment of libpq's variables. The driver reads them, too, and takes an invalid one for unset.
pub(crate) fn of_libpq(environment: &[(OsString, OsString)]) -> Fragment {
    let mut fragment = Fragment::default();
    for (name, path) in LIBPQ {
        let Some((_, value)) = environment.iter().find(|(variable, _)| variable == name) else { continue };
        let Some(key) = keys::find(path) else { continue };
        let source = Source::Environment(name.into());
        match value.to_str() {
            Some(_) if fragment.entries.iter().any(|entry| entry.key.path == path) => {}
            Some(text) => fragment.push(key, text.to_owned(), source),
            None => fragment.refuse(ProblemKind::InvalidValue, path, &source, "must be UTF-8"),
        }
    }
    fragment
}
