//! What the chart takes as `config`: the part `settings` of its schema is generated from the table of keys.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::config::keys::{KEYS, Key};
use crate::config::kind::Kind;

/// Keys that the chart itself answers for, in a sentence that says what to set instead: whatever they hold, the schema
/// lets them pass.
const SENTENCES: [&str; 10] = [
    "database.url",
    "database.url_file",
    "database.password",
    "database.password_file",
    "database.sslrootcert",
    "database.sslcert",
    "database.sslkey",
    "kubernetes.mode",
    "kubernetes.instance_selector",
    "kubernetes.container_name",
];

/// Text without control characters.
const TEXT: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";

const QUALIFIED_NAME: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                              [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// What the schema asks of a value of this kind. Null leaves a key unset.
fn rules(kind: Kind) -> Vec<(&'static str, Value)> {
    let text = |pattern: &str| vec![("type", json!(["string", "null"])), ("pattern", json!(pattern))];
    match kind {
        Kind::Integer { min, max } => {
            vec![("type", json!(["integer", "null"])), ("minimum", json!(min)), ("maximum", json!(max))]
        }
        Kind::Seconds { min, max } => {
            vec![("type", json!(["number", "null"])), ("minimum", json!(min)), ("maximum", json!(max))]
        }
        Kind::Ratio => vec![("type", json!(["number", "null"])), ("minimum", json!(0)), ("maximum", json!(1))],
        Kind::Boolean => vec![("type", json!(["boolean", "null"]))],
        Kind::Choice(words) => {
            // YAML 1.1, which Helm reads, takes an unquoted `on` or `off` for a boolean.
            let booleans = words.contains(&"on").then_some([json!(true), json!(false)]);
            let all = words.iter().map(|word| json!(word)).chain(booleans.into_iter().flatten());
            vec![("enum", all.chain([Value::Null]).collect())]
        }
        Kind::Text | Kind::Path | Kind::Secret | Kind::ConnectionUrl | Kind::Filter | Kind::LabelSelector => text(TEXT),
        Kind::Address => text("^[0-9A-Fa-f:.]+$"),
        // The path of a host, and nothing that the program would refuse: user, query, fragment.
        Kind::Endpoint => text(r"^http://[^\s?#@]+$"),
        Kind::LockKey => vec![
            ("type", json!(["array", "string", "null"])),
            ("items", json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX})),
            ("minItems", json!(2)),
            ("maxItems", json!(2)),
            ("pattern", json!(r"^\s*-?[0-9]+\s*,\s*-?[0-9]+\s*$")),
        ],
        Kind::QualifiedName => text(QUALIFIED_NAME),
        Kind::DnsLabel => text("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
    }
}

/// One key, on one line.
fn of_key(key: &Key) -> String {
    let mut rules = match key.path {
        path if SENTENCES.contains(&path) => vec![],
        // A container and a Service have no port 0.
        "worker.management.port" => rules(Kind::Integer { min: 1, max: 65_535 }),
        _ => rules(key.kind),
    };
    rules.insert(0, ("description", json!(key.help)));
    let members: Vec<_> = rules.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

/// The keys below `path`, which ends with a dot or is empty, as an object that stands `indent` deep.
fn of_section(path: &str, indent: usize) -> String {
    let below = KEYS.iter().filter_map(|key| Some((key.path.strip_prefix(path)?, key)));
    let mut members = below
        .map(|(rest, key)| match rest.split_once('.') {
            None => (rest, of_key(key)),
            Some((level, _)) => (level, of_section(&format!("{path}{level}."), indent + 4)),
        })
        .collect::<Vec<_>>();
    members.dedup_by_key(|(level, _)| *level);
    let mut text = String::from("{\n");
    let pad = " ".repeat(indent);
    writeln!(text, "{pad}  \"type\": [\"object\", \"null\"],\n{pad}  \"additionalProperties\": false,").unwrap();
    writeln!(text, "{pad}  \"properties\": {{").unwrap();
    let members: Vec<_> = members.iter().map(|(level, value)| format!("{pad}    \"{level}\": {value}")).collect();
    write!(text, "{}\n{pad}  }}\n{pad}}}", members.join(",\n")).unwrap();
    text
}

#[test]
fn the_schema_of_the_chart_has_the_keys_of_the_program() {
    const SETTINGS: &str = "\n    \"settings\": ";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/retsu-collector/values.schema.json");
    let found = std::fs::read_to_string(path).unwrap();
    // It is the last part of the file; what is before it is written by hand.
    let (by_hand, _) = found.split_once(SETTINGS).expect("the definition `settings`");
    let wanted = format!("{by_hand}{SETTINGS}{}\n  }}\n}}\n", of_section("", 4));
    serde_json::from_str::<Value>(&wanted).expect("JSON");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert!(found == wanted, "{path} is out of date: run UPDATE_DOCS=1 cargo test --lib config");
}

#[test]
fn what_the_chart_answers_for_are_keys() {
    for path in SENTENCES {
        assert!(crate::config::keys::find(path).is_some(), "{path}");
    }
}
