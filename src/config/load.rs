//! The second and third stage: fragments merged, then validated as a whole.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::connection_url;
use super::error::{ConfigError, Problem, ProblemKind};
use super::fragment::{self, Entry, Fragment};
use super::keys::{KEYS, Key};
use super::kind::{FromValue, Value};
use super::kubernetes;
use super::report::{Line, Report};
use super::session_options;
use super::settings::{
    CollectorSettings, DatabaseParts, DatabaseSettings, DatabaseSource, KubernetesMode, LeaseSettings, LogFormat,
    LoggingSettings, ManagementSettings, OnRefreshFailure, Settings, TracesSettings,
};
use super::source::{Source, Sources};
use crate::election::{Timing, Violation};

/// The parts form, in the order in which a clash names them.
const PARTS: [&str; 10] = [
    "database.host",
    "database.port",
    "database.user",
    "database.password",
    "database.password_file",
    "database.dbname",
    "database.sslmode",
    "database.sslrootcert",
    "database.sslcert",
    "database.sslkey",
];

/// Those of [`PARTS`] that say which database is meant.
const NAMES_A_DATABASE: [&str; 4] = ["database.host", "database.port", "database.user", "database.dbname"];

/// The variable with session options.
const PGOPTIONS: &str = "PGOPTIONS";

/// The section of election and collection.
const COLLECTOR: &str = "worker.queue.state_metrics_collector";

/// A configuration that holds.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What the program does.
    pub settings: Settings,
    /// What `check` prints.
    pub report: Report,
}

/// Merges the sources, in the rising order default, file, environment, flags, and validates the result.
/// Only values that take effect are validated; names are, everywhere.
///
/// # Errors
///
/// Everything that is wrong, at once. No message contains a secret.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut fragments = vec![];
    fragments.extend(sources.file.as_ref().map(|(path, content)| fragment::of_file(path, content)));
    fragments.push(fragment::of_environment(&sources.environment));
    fragments.push(fragment::of_flags(&sources.flags));
    let mut problems = Vec::new();
    let mut entries = BTreeMap::new();
    for Fragment { entries: ours, problems: theirs } in fragments {
        problems.extend(theirs);
        entries.extend(ours.into_iter().map(|entry| (entry.key.path, entry)));
    }

    settle_database(&mut entries, fragment::of_libpq(&sources.environment), &mut problems);
    problems.extend(libpq_options(&sources.environment));
    let effective = Effective::of(&entries, &mut problems);
    validate(&effective, &mut problems);
    let kubernetes = kubernetes::decide(&effective, sources, &mut problems);
    let collector = effective.collector();
    match timing(&effective, &collector, &mut problems) {
        Some(timing) if problems.is_empty() => {
            let on = matches!(kubernetes, KubernetesMode::On(_));
            let timing = if on { timing.on_platform() } else { timing };
            Ok(Loaded { settings: effective.settings(collector, timing, kubernetes), report: effective.report() })
        }
        _ => Err(ConfigError::new(problems)),
    }
}

/// Decides between the URL, the file with a URL and the parts, and lets `PG*` fill in the parts.
fn settle_database(entries: &mut BTreeMap<&'static str, Entry>, libpq: Fragment, problems: &mut Vec<Problem>) {
    let part = PARTS.into_iter().find(|path| entries.contains_key(path));
    let forms = [Some("database.url"), Some("database.url_file"), part];
    let given: Vec<&Entry> = forms.into_iter().flatten().filter_map(|path| entries.get(path)).collect();
    for (at, first) in given.iter().enumerate() {
        problems.extend(given.iter().skip(at + 1).map(|second| exclusive(first, second)));
    }
    if let (Some(first), Some(second)) = (entries.get("database.password"), entries.get("database.password_file")) {
        problems.push(exclusive(first, second));
    }
    problems.extend(libpq.problems);

    let url_form = entries.contains_key("database.url") || entries.contains_key("database.url_file");
    for entry in libpq.entries {
        let path = entry.key.path;
        if url_form {
            // The driver completes a URL from these itself, and takes what it cannot read for unset.
            problems.extend(parsed(&entry).err());
        } else if !(path == "database.password" && entries.contains_key("database.password_file")) {
            entries.entry(path).or_insert(entry);
        }
    }
    if !url_form && !NAMES_A_DATABASE.iter().any(|path| entries.contains_key(path)) {
        let rule = "nothing names one: set `database.url_file`, `database.url`, `database.host` with its companions, or \
                    libpq's variables such as `PGHOST`";
        problems.push(Problem::new(ProblemKind::Missing, "database", None, rule));
    }
}

/// What is wrong with `PGOPTIONS`, which the driver adds to every connection.
fn libpq_options(environment: &[(OsString, OsString)]) -> Option<Problem> {
    let (_, options) = environment.iter().find(|(name, _)| name == PGOPTIONS)?;
    let refusal = session_options::check(options.to_str()?).err()?;
    let source = Source::Environment(PGOPTIONS.into());
    Some(Problem::new(ProblemKind::Conflict, "database", source, refusal.to_string()))
}

fn exclusive(first: &Entry, second: &Entry) -> Problem {
    let rule = format!("excludes `{}` ({}); give one of them", second.key.path, second.source);
    Problem::new(ProblemKind::Conflict, first.key.path, first.source.clone(), rule)
}

/// Parses the text of an entry.
fn parsed(entry: &Entry) -> Result<Value, Problem> {
    entry.key.kind.parse(&entry.text).map_err(|rule| {
        Problem::new(ProblemKind::InvalidValue, entry.key.path, entry.source.clone(), rule)
            .with_value(shown_value(entry.key, &entry.text))
    })
}

/// The offending value, unless it is or may contain a secret.
fn shown_value(key: &Key, text: &str) -> Option<String> {
    Some(if key.kind.is_secret() { REDACTED.to_owned() } else { shown_text(text) })
}

/// The text of a value that is no secret, unless it may contain one all the same.
pub(super) fn shown_text(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.contains("://") || text.contains('@') {
        return REDACTED.to_owned();
    }
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

const REDACTED: &str = "[redacted]";

/// One effective value for each key; `None` where a key is unset.
pub(super) struct Effective(BTreeMap<&'static str, (Option<Value>, Source)>);

impl Effective {
    fn of(entries: &BTreeMap<&'static str, Entry>, problems: &mut Vec<Problem>) -> Self {
        let mut values = BTreeMap::new();
        for key in KEYS {
            let default = || key.default.and_then(|text| key.kind.parse(text).ok());
            let (value, source) = match entries.get(key.path) {
                Some(entry) => match parsed(entry) {
                    Ok(value) => (Some(value), entry.source.clone()),
                    Err(problem) => {
                        problems.push(problem);
                        (default(), Source::Default)
                    }
                },
                None => (default(), Source::Default),
            };
            values.insert(key.path, (value, source));
        }
        Self(values)
    }

    pub(super) fn get<T: FromValue>(&self, path: &str) -> Option<T> {
        self.0.get(path).and_then(|(value, _)| value.as_ref()).and_then(T::from_value)
    }

    #[expect(
        clippy::expect_used,
        reason = "the table gives each such key a default of its type; a test reads them all"
    )]
    pub(super) fn always<T: FromValue>(&self, path: &str) -> T {
        self.get(path).expect("a key with a default")
    }

    pub(super) fn source(&self, path: &str) -> Option<Source> {
        self.0.get(path).map(|(_, source)| source.clone())
    }

    fn parts(&self) -> DatabaseParts {
        DatabaseParts {
            host: self.get("database.host"),
            port: self.get("database.port"),
            user: self.get("database.user"),
            password: self.get("database.password"),
            password_file: self.get("database.password_file"),
            dbname: self.get("database.dbname"),
            sslmode: self.get("database.sslmode"),
            sslrootcert: self.get("database.sslrootcert"),
            sslcert: self.get("database.sslcert"),
            sslkey: self.get("database.sslkey"),
        }
    }

    fn collector(&self) -> CollectorSettings {
        let collector = COLLECTOR;
        CollectorSettings {
            collection_interval: self.always(&format!("{collector}.collection_interval_seconds")),
            leadership_retry_interval: self.always(&format!("{collector}.leadership_retry_interval_seconds")),
            refresh_timeout: self.always(&format!("{collector}.refresh_timeout_seconds")),
            on_refresh_failure: match self.always::<String>(&format!("{collector}.on_refresh_failure")).as_str() {
                "step_down" => OnRefreshFailure::StepDown,
                _ => OnRefreshFailure::Exit,
            },
            lock_key: self.always(&format!("{collector}.lock_key")),
            collection: self.always::<String>(&format!("{collector}.collection")) != "off",
            lease: LeaseSettings {
                heartbeat_interval: self.always(&format!("{collector}.lease.heartbeat_interval_seconds")),
                heartbeat_timeout: self.always(&format!("{collector}.lease.heartbeat_timeout_seconds")),
                fence: self.always(&format!("{collector}.lease.fence_seconds")),
                clock_drift_ppm: self.always(&format!("{collector}.lease.clock_drift_ppm")),
                idle_session_timeout: self.always(&format!("{collector}.lease.idle_session_timeout_seconds")),
                tcp_user_timeout: self.always(&format!("{collector}.lease.tcp_user_timeout_seconds")),
            },
        }
    }

    fn settings(&self, collector: CollectorSettings, timing: Timing, kubernetes: KubernetesMode) -> Settings {
        let source = match (self.get("database.url"), self.get("database.url_file")) {
            (Some(url), _) => DatabaseSource::Url(url),
            (None, Some(path)) => DatabaseSource::UrlFile(path),
            (None, None) => DatabaseSource::Parts(Box::new(self.parts())),
        };
        Settings {
            database: DatabaseSettings {
                source,
                max_connections: self.always("database.max_connections"),
                acquire_timeout: self.always("database.acquire_timeout_seconds"),
            },
            management: ManagementSettings {
                bind_address: self.get("worker.management.bind_address"),
                port: self.always("worker.management.port"),
            },
            collector,
            timing,
            shutdown_timeout: self.always("worker.shutdown_timeout_seconds"),
            logging: LoggingSettings {
                filter: self.always("logging.filter"),
                format: match self.always::<String>("logging.format").as_str() {
                    "json" => LogFormat::Json,
                    _ => LogFormat::Pretty,
                },
            },
            max_queues: self.always("telemetry.metrics.max_queues"),
            traces: TracesSettings {
                enabled: self.always("telemetry.traces.enabled"),
                endpoint: self.always("telemetry.traces.endpoint"),
                sample_ratio: self.always("telemetry.traces.sample_ratio"),
                service_name: self.always("telemetry.traces.service_name"),
            },
            kubernetes,
        }
    }

    fn report(&self) -> Report {
        let line = |key: &'static Key| {
            let (value, source) = self.0.get(key.path)?;
            Some(Line { key, value: value.as_ref().map(Value::to_string), source: source.clone() })
        };
        Report::new(KEYS.iter().filter_map(line).collect())
    }
}

/// The rules between keys.
fn validate(effective: &Effective, problems: &mut Vec<Problem>) {
    let refuse = |path: &str, rule: String| Problem::new(ProblemKind::Conflict, path, effective.source(path), rule);
    let parts = effective.parts();
    if let Err((rule, path)) = connection_url::check_tls(&parts) {
        problems.push(refuse(path, rule.to_string()));
    }
    if let Some(Err(rule)) = parts.host.as_deref().map(connection_url::host_name) {
        problems.push(refuse("database.host", rule.to_string()));
    }
    let traces: bool = effective.always("telemetry.traces.enabled");
    if traces && effective.always::<String>("telemetry.traces.endpoint").starts_with("https:") {
        let rule = "must begin with `http:`: this program sends traces without TLS";
        problems.push(refuse("telemetry.traces.endpoint", rule.to_owned()));
    }
    if traces && !cfg!(feature = "otlp") {
        let rule = "must be false: this program was built without the feature `otlp`";
        problems.push(refuse("telemetry.traces.enabled", rule.to_owned()));
    }
}

/// The inequalities of the lease.
fn timing(effective: &Effective, collector: &CollectorSettings, problems: &mut Vec<Problem>) -> Option<Timing> {
    // A value that was refused has left its default behind, against which nothing is to be held.
    if problems.iter().any(|problem| problem.subject().starts_with(COLLECTOR)) {
        return None;
    }
    let broken = |violation: Violation| {
        Problem::new(ProblemKind::Conflict, violation.key, effective.source(violation.key), violation.to_string())
            .with_value(violation.value.as_secs_f64().to_string())
    };
    Timing::new(collector).map_err(|violations| problems.extend(violations.into_iter().map(broken))).ok()
}
