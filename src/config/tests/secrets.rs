use proptest::prelude::*;

use super::super::keys::variable;
use super::*;

/// Whether a text holds the secret, as it is or as a formatter would escape it.
fn holds(text: &str, secret: &str) -> bool {
    text.contains(secret) || text.contains(&secret.escape_debug().to_string())
}

/// Everything that is ever printed of these sources, and logged.
fn printed(sources: &Sources) -> Vec<String> {
    let log = Log::default();
    let _guard = log.capture();
    let mut printed = match load(sources) {
        Ok(Loaded { settings, report }) => {
            let connection = settings.database.connect_options().err();
            vec![
                format!("{settings:?}"),
                format!("{settings:#?}"),
                report.to_string(),
                format!("{report:?}"),
                connection.map_or_else(String::new, |error| format!("{error} {error:?}")),
            ]
        }
        Err(error) => vec![error.to_string(), format!("{error:?}"), format!("{error:#?}")],
    };
    printed.push(log.text());
    printed
}

/// Sources that carry a secret in the given way.
fn carrying(value: &str, path: &'static str) -> Vec<Sources> {
    let quoted = serde_json::Value::from(value).to_string();
    let name = path.rsplit('.').next().unwrap();
    let files = [
        format!("database: {{{name}: {quoted}}}"),
        format!("database: {{{name}: [{quoted}]}}"),
        format!("database: {{{name}: {{x: {quoted}}}}}"),
        format!("database: {{{name}: !t {quoted}}}"),
        format!("database: {{{name}x: {quoted}}}"),
        format!("database: {quoted}"),
        quoted.clone(),
        format!("database: {{{name}: {quoted}"),
        format!("database: {{{name}: {quoted}, {name}: {quoted}}}"),
        format!("database: {{{name}: {quoted}, host: h, url_file: f}}"),
        format!("database:\n  {name}: {value}\n"),
        format!("database:\n  {name}: {value}: {value}\n"),
    ];
    let mut all: Vec<_> = files.iter().map(|yaml| with_database(file(yaml))).collect();
    let environment = [
        (variable(path), value.to_owned()),
        (format!("{}X", variable(path)), value.to_owned()),
        (variable(path).replace("__", "_"), value.to_owned()),
        ("PGPASSWORD".into(), value.to_owned()),
    ];
    for (name, value) in &environment {
        all.push(with_database(self::environment(&[(name, value)])));
    }
    for pair in [format!("{path}={value}"), format!("{path}x={value}"), value.to_owned()] {
        let mut sources = with_database(Sources::default());
        sources.flags.push(Flag { name: "--set", assignment: Assignment::Pair(pair) });
        all.push(sources);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_password_is_never_printed(secret in "[!-~]{0,8}q7Z[!-~é]{9,20}") {
        for sources in carrying(&secret, "database.password") {
            for text in printed(&sources) {
                prop_assert!(!holds(&text, &secret), "{:?} in {}", secret, text);
                prop_assert!(!text.contains("q7Z"), "{:?} in {}", secret, text);
            }
        }
    }

    #[test]
    fn the_password_of_a_url_is_never_printed(secret in "[!-~]{0,8}q7Z[!-~é]{9,20}", port in 0_u32..70_000) {
        let encoded = percent_encoding::utf8_percent_encode(&secret, percent_encoding::NON_ALPHANUMERIC).to_string();
        for password in [&secret, &encoded] {
            for tail in ["", "?connect_timeout=1", "?x=y", "#f"] {
                let url = format!("postgres://u:{password}@h:{port}/d{tail}");
                for sources in carrying(&url, "database.url") {
                    for text in printed(&sources) {
                        prop_assert!(!text.contains("q7Z"), "{:?} in {}", url, text);
                    }
                }
            }
        }
    }
}

#[test]
fn a_secret_in_the_place_of_a_key_is_not_printed() {
    for yaml in [
        "database: {'postgres://u:tops3cret@h/d': x}",
        "database: {url: {'postgres://u:tops3cret@h/d': x}}",
        "'postgres://u:tops3cret@h/d': {x: 1}",
        "'tops3cret pass': 1\n'tops3cret pass': 2\n",
        "logging: {filter: 'postgres://u:tops3cret@h/d'}",
        "telemetry: {traces: {endpoint: 'http://u:tops3cret@h'}}",
    ] {
        let error = load(&with_database(file(yaml))).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("tops3cret"), "{yaml}: {error}");
    }
}

#[test]
fn check_shows_that_a_secret_is_set_and_where() {
    let report = load(&with_database(environment(&[("RETSU_DATABASE__PASSWORD", "tops3cret")]))).unwrap().report;
    let line = "  password: \"[redacted]\" # environment RETSU_DATABASE__PASSWORD\n";
    assert!(report.to_string().contains(line), "{report}");
}
