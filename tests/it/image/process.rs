//! The program as the first process of a container.

use std::time::{Duration, Instant};

use super::docker::{Container, Network, run};
use super::names::{HOST, Site};

/// What Kubernetes gives a Pod by default to end in.
const GRACE: Duration = Duration::from_secs(30);

/// A stop has nothing to wait for here but its own session's end.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_leads_as_a_user_without_rights_on_a_root_that_cannot_be_written_and_stops_on_sigterm() {
    let site = Site::start(&[HOST]).await;
    let container = site.container(&site.url(HOST, "sslmode=require"), &[]);
    container.wait_until_leading().await;

    assert_eq!(container.status("NSpid").split(' ').next_back(), Some("1"));
    for (field, expected) in [
        ("Uid", "65532 65532 65532 65532"),
        ("Gid", "65532 65532 65532 65532"),
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
    ] {
        assert_eq!(container.status(field), expected, "{field}");
    }
    let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", container.pid())).unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap();
    assert!(root.split(' ').nth(3).unwrap().split(',').any(|option| option == "ro"), "{root}");

    let began = Instant::now();
    let code = container.stop(GRACE);
    let took = began.elapsed();
    println!("stopped after {took:?}");
    assert_eq!(code, 0);
    assert!(took < STOPS_WITHIN, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stops_on_sigterm_while_it_waits_for_a_database_that_is_away() {
    let network = Network::new();
    // Nobody listens there.
    let url = format!("RETSU_DATABASE__URL=postgres://collector@{}:1/none", network.gateway());
    let stays = "RETSU_WORKER__QUEUE__STATE_METRICS_COLLECTOR__ON_REFRESH_FAILURE=step_down";
    let container = Container::start(&["--network", network.name(), "--env", &url, "--env", stays]);
    crate::support::eventually(GRACE, "it waits", async || container.log().contains("trying until they work")).await;
    let began = Instant::now();
    assert_eq!(container.stop(GRACE), 0);
    assert!(began.elapsed() < STOPS_WITHIN, "{:?}", began.elapsed());
}

#[test]
fn a_bad_configuration_is_named_and_ends_it_with_code_2() {
    for (options, named) in [
        (&[][..], "database"),
        (&["--env", "RETSU_WORKER__MANAGEMENT__PORT=70000"], "worker.management.port"),
        (&["--env", "RETSU_DATABSE__HOST=db"], "RETSU_DATABSE__HOST"),
    ] {
        let (code, said) = run(options, &[]);
        assert!(code == 2 && said.contains(named), "{options:?}: {code} {said}");
    }
}
