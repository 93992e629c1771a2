#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use clap::CommandFactory;

use super::*;
use crate::config::{Sources, load};

fn parsed(arguments: &[&str]) -> Result<Command, Answer> {
    parse_from(&std::iter::once("retsu-collector").chain(arguments.iter().copied()).map(Into::into).collect::<Vec<_>>())
}

fn refused(arguments: &[&str]) -> String {
    let answer = parsed(arguments).expect_err("usage error");
    assert_eq!(answer.code(), EXIT_USAGE, "{answer}");
    answer.to_string()
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn run_is_the_default_command_and_takes_the_same_flags() {
    for arguments in [&["--port", "1", "--config", "a.yaml"][..], &["run", "--port", "1", "--config", "a.yaml"]] {
        let Ok(Command::Run(run)) = parsed(arguments) else { panic!("{arguments:?}") };
        assert_eq!(run.config.as_deref(), Some("a.yaml".as_ref()));
        assert_eq!(run.flags().len(), 1);
    }
    assert!(matches!(parsed(&[]), Ok(Command::Run(_))));
    assert!(matches!(parsed(&["version"]), Ok(Command::Version)));
    refused(&["--port", "1", "check"]);
}

#[test]
fn every_flag_reaches_its_key() {
    let arguments = [
        "check",
        "--port=7",
        "--log-filter=debug",
        "--log-format=json",
        "--database-url-file=/run/secrets/url",
        "--set=telemetry.metrics.max_queues=9",
        "--set",
        "worker.shutdown_timeout_seconds=1.5",
    ];
    let Ok(Command::Check(check)) = parsed(&arguments) else { panic!("check") };
    let loaded = load(&Sources { flags: check.flags(), ..Sources::default() }).unwrap();
    let settings = loaded.settings;
    assert_eq!((settings.management.port, settings.max_queues), (7, 9));
    assert_eq!((settings.logging.filter.as_str(), settings.shutdown_timeout), ("debug", Duration::from_millis(1500)));
    assert_eq!(loaded.report.source("worker.management.port").unwrap().to_string(), "flag --port");
    assert_eq!(loaded.report.source("telemetry.metrics.max_queues").unwrap().to_string(), "flag --set");
}

#[test]
fn help_and_version_end_with_code_0_and_help_lists_codes_and_environment() {
    let help = parsed(&["--help"]).unwrap_err();
    assert_eq!(help.code(), EXIT_STOPPED);
    for part in ["Exit codes:", "1  failure at run time", "RETSU_CONFIG", "PGHOST", "schema", "check"] {
        assert!(help.to_string().contains(part), "{part}: {help}");
    }
    assert!(!help.to_string().contains("demo-server"), "{help}");
    assert_eq!(parsed(&["--version"]).unwrap_err().code(), EXIT_STOPPED);
}

#[test]
fn a_usage_error_ends_with_code_2() {
    for arguments in [&["--unknown"][..], &["nonsense"], &["schema", "--queues", "5"], &["run", "--port"]] {
        refused(arguments);
    }
}

#[test]
fn neither_an_error_nor_debug_output_repeats_a_secret() {
    let url = "postgres://u:tops3cret@h/d";
    let inline = format!("--database-url={url}");
    let pair = "database.password=tops3cret";
    for arguments in [&[url][..], &["run", url], &["run", &inline], &["run", pair], &["check", "--sett", pair]] {
        let text = refused(arguments);
        assert!(!text.contains("tops3cret"), "{text}");
    }
    for arguments in [&["run", "--set", pair][..], &["schema", "--database-url", url], &["--set", pair]] {
        let shown = format!("{:?}", parsed(arguments).unwrap());
        assert!(!shown.contains("tops3cret"), "{shown}");
    }
}

#[test]
fn schema_load_has_sizes_that_single_numbers_override() {
    let load = |arguments: &[&str]| match parsed(arguments) {
        Ok(Command::Schema(schema)) => schema.load(),
        other => panic!("{other:?}"),
    };
    assert_eq!(load(&["schema", "--apply"]), None);
    assert_eq!(
        load(&["schema", "--load", "large"]),
        Some(Load { queues: 10_000, messages: 1_100_000, seed: 1, ..Load::default() })
    );
    assert_eq!(
        load(&["schema", "--load", "small", "--queues", "3", "--seed", "9"]),
        Some(Load { queues: 3, messages: 1_000, seed: 9, ..Load::default() })
    );
}

#[test]
fn a_throwaway_database_is_named_by_a_flag() {
    let Ok(Command::Schema(schema)) = parsed(&["schema", "--database-url", "postgres://h/d"]) else { panic!("schema") };
    assert!(load(&Sources { flags: schema.database.flags(), ..Sources::default() }).is_ok());
    refused(&["schema", "--database-url", "postgres://h/d", "--database-url-file", "f"]);
}

const VERIFY: [&str; 7] =
    ["verify", "--namespace", "queues", "--leader-service", "retsu-leader", "--metrics-service", "retsu-metrics"];

#[test]
fn verify_finds_the_leader_service_by_its_name_in_dns_unless_it_is_told_where() {
    let options = |more: &[&str]| match parsed(&[&VERIFY, more].concat()) {
        Ok(Command::Verify(verify)) => verify.options(None).unwrap(),
        other => panic!("{other:?}"),
    };
    let (default, other) = (options(&[]), options(&["--port", "80", "--timeout", "5", "--max-age", "0.5"]));
    assert_eq!(default.leader_url, "http://retsu-leader.queues.svc:24247/metrics");
    assert_eq!((default.timeout, default.max_age), (Duration::from_secs(60), Duration::from_secs(18)));
    assert_eq!(other.leader_url, "http://retsu-leader.queues.svc:80/metrics");
    assert_eq!((other.timeout, other.max_age), (Duration::from_secs(5), Duration::from_millis(500)));
    assert_eq!(options(&["--leader-url", "http://[::1]:7/m"]).leader_url, "http://[::1]:7/m");
}

#[test]
fn verify_refuses_what_names_no_installation() {
    for missing in [1, 3, 5] {
        let mut arguments = VERIFY.to_vec();
        arguments.drain(missing..missing + 2);
        refused(&arguments);
    }
    for wrong in [
        &["--port", "0"][..],
        &["--port", "70000"],
        &["--timeout", "0"],
        &["--max-age", "soon"],
        &["--leader-url", "https://retsu-leader:24247/metrics"],
        &["--leader-url", "/metrics"],
        &["--leader-url", "http://a:1/metrics", "--port", "2"],
    ] {
        refused(&[&VERIFY, wrong].concat());
    }
    for name in ["", "a,b", "a)", "-a", "A", &"a".repeat(64)] {
        refused(&["verify", "--namespace", name, "--leader-service", "a", "--metrics-service", "b"]);
        refused(&["verify", "--namespace", "a", "--leader-service", name, "--metrics-service", "b"]);
        refused(&["verify", "--namespace", "a", "--leader-service", "b", "--metrics-service", name]);
    }
}

#[cfg(feature = "demo")]
#[test]
fn the_demo_has_its_two_ports_and_an_optional_end() {
    let Ok(Command::Demo(demo)) = parsed(&["demo"]) else { panic!("demo") };
    assert_eq!((demo.ports, demo.kill_after, demo.duration), (Ports(24350, 24351), Duration::from_secs(20), None));
    for ports in ["1", "1,1", "0,1", "1,2,3", "1,70000"] {
        refused(&["demo", "--ports", ports]);
    }
    for span in ["0", "-1", "nan", "inf", "1e9", "x"] {
        refused(&["demo", "--kill-after", span]);
    }
    let server = ["demo-server", "--postgresql-version=17.5.0", "--install-dir=i", "--data-dir=d"];
    let mut server = server.to_vec();
    server.extend(["--configuration", "max_connections=20", "--configuration", "x=a=b"]);
    let Ok(Command::DemoServer(server)) = parsed(&server) else { panic!("demo-server") };
    assert_eq!(server.configuration, [("max_connections".into(), "20".into()), ("x".into(), "a=b".into())]);
}
