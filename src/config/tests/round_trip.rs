use proptest::prelude::*;

use super::super::keys::{KEYS, Key, variable};
use super::super::kind::Kind;
use super::*;

/// A text that the key takes. Secrets are left out, since `check` does not print them.
fn value(key: &'static Key) -> BoxedStrategy<String> {
    match key.kind {
        // `on` needs more than a configuration says.
        _ if key.path == "kubernetes.mode" => prop::sample::select(&["auto", "off"]).prop_map(str::to_owned).boxed(),
        Kind::Integer { min, max } => (min..=max).prop_map(|number| number.to_string()).boxed(),
        Kind::Seconds { min, max } => {
            ((min * 1e3) as u64..=(max * 1e3) as u64).prop_map(|millis| (millis as f64 / 1e3).to_string()).boxed()
        }
        Kind::Ratio => (0_u32..=1000).prop_map(|thousandths| (f64::from(thousandths) / 1e3).to_string()).boxed(),
        Kind::Boolean => any::<bool>().prop_map(|value| value.to_string()).boxed(),
        Kind::Choice(words) => prop::sample::select(words).prop_map(str::to_owned).boxed(),
        Kind::Text => "[^\\p{Cc},]{1,20}".boxed(),
        Kind::Path => "/[^\\p{Cc}]{1,20}".boxed(),
        Kind::Address => any::<std::net::IpAddr>().prop_map(|address| address.to_string()).boxed(),
        Kind::Filter => "(info|debug)(,[a-z]{8}=(warn|trace)){0,3}".boxed(),
        Kind::Endpoint => "http://[a-z]{1,9}(:[1-9][0-9]{0,3})?(/[a-z]{1,5})?".boxed(),
        Kind::LockKey => any::<(i32, i32)>().prop_map(|(class, object)| format!("{class},{object}")).boxed(),
        Kind::QualifiedName => "([a-z]{4,8}\\.io/)?[A-Za-z]([A-Za-z0-9_.-]{0,20}[a-z0-9])?".boxed(),
        Kind::DnsLabel => "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?".boxed(),
        // With a prefix that no other key has: a selector may not look at the role label.
        Kind::LabelSelector => {
            "a\\.io/[a-z]{1,9}(|=[a-z]{0,9}| (not)?in \\([a-z]{1,9}(, ?[a-z]{1,9})?\\))(, ?!a\\.io/b)?".boxed()
        }
        Kind::Secret | Kind::ConnectionUrl => Just(String::new()).boxed(),
    }
}

const LEASE: &str = "worker.queue.state_metrics_collector.lease.";

/// The keys of the lease with values that hold together: the defaults, on another scale.
fn lease() -> impl Strategy<Value = Vec<(&'static Key, String)>> {
    let value = |key: &Key, seconds: f64, ppm: u32| match key.kind {
        Kind::Seconds { .. } => (key.default.unwrap().parse::<f64>().unwrap() * seconds).to_string(),
        _ => ppm.to_string(),
    };
    (0.35..200.0, 0_u32..=100_000).prop_map(move |(seconds, ppm)| {
        KEYS.iter().filter(|key| key.path.starts_with(LEASE)).map(|key| (key, value(key, seconds, ppm))).collect()
    })
}

/// Some keys with values that hold together.
fn values() -> impl Strategy<Value = Vec<(&'static Key, String)>> {
    let keys: Vec<_> = KEYS
        .iter()
        .filter(|key| !key.kind.is_secret() && !key.path.starts_with("database.ssl"))
        .filter(|key| !key.path.starts_with(LEASE))
        .filter(|key| key.path != "database.url_file" && (cfg!(feature = "otlp") || !key.path.ends_with("enabled")))
        .map(|key| prop::option::of(value(key)).prop_map(move |value| Some((key, value?))))
        .collect();
    (keys, prop::option::of(lease()))
        .prop_map(|(values, lease)| values.into_iter().flatten().chain(lease.into_iter().flatten()).collect())
}

/// The effective configuration without the comments that say where it came from.
fn effective(sources: &Sources) -> String {
    let report = load(sources).unwrap_or_else(|error| panic!("{error}")).report.to_string();
    report.lines().map(|line| line.rsplit_once(" # ").map_or(line, |(line, _)| line)).collect::<Vec<_>>().join("\n")
}

proptest! {
    /// The environment, the flags and the file that `check` printed say the same.
    #[test]
    fn what_check_prints_is_a_configuration_with_the_same_effect(values in values()) {
        let variables = values.iter().map(|(key, value)| (variable(key.path).into(), value.into())).collect();
        let environment = with_database(Sources { environment: variables, ..Sources::default() });
        let flags = values.iter().map(|(key, value)| flag(key.path, value)).collect();
        let flags = with_database(Sources { flags, ..Sources::default() });
        let printed = load(&environment).unwrap_or_else(|error| panic!("{error}")).report.to_string();
        let wanted = effective(&environment);
        prop_assert_eq!(&effective(&flags), &wanted);
        prop_assert_eq!(&effective(&file(&printed)), &wanted);
    }
}
