//! `verify` on real collectors, a real PostgreSQL and the EndpointSlices of a real API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::support::kubernetes::{ApiProxy, Cluster};
use crate::support::{
    Collector, Config, Database, EXECUTABLE, Proxy, eventually, free_port, queue_database, slow_down,
};

const LIMIT: Duration = Duration::from_secs(40);

const LEADER: &str = "retsu-leader";
const METRICS: &str = "retsu-metrics";

/// An address of this machine: the API server takes no loopback address for an endpoint. Nothing is sent.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).expect("a route that leads off this machine");
    socket.local_addr().unwrap().ip()
}

/// A collector that can be an endpoint, and exports if it is to.
async fn collector(database: &Database, exports: bool, configure: impl FnOnce(&mut Config)) -> Collector {
    let collector = Collector::start(&database.url(), |config| {
        config.set("worker.management.bind_address", Ipv4Addr::UNSPECIFIED);
        configure(config);
    });
    if exports {
        eventually(LIMIT, "it exports", async || collector.exports().await).await;
    } else {
        collector.wait_for_log("another session holds the advisory lock", LIMIT).await;
    }
    collector
}

fn address_of(collector: &Collector) -> SocketAddr {
    (own_address(), collector.address().port()).into()
}

fn metrics_of(collector: &Collector) -> String {
    format!("http://{}/metrics", address_of(collector))
}

/// What the program has said, and how it ended.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

impl Said {
    /// Fails the test unless something does not hold, and each of these is said of it, and nothing else.
    fn assert_finds(&self, findings: &[String]) {
        assert_eq!((self.code, self.out.as_str()), (Some(1), ""), "{self:?}");
        let found: Vec<_> = self.error.lines().filter_map(|line| line.strip_prefix("- ")).collect();
        assert_eq!(found, findings, "{}", self.error);
    }
}

/// `verify` through a kubeconfig.
async fn verify(kubeconfig: &Path, arguments: &[&str]) -> Said {
    let mut command = tokio::process::Command::new(EXECUTABLE);
    command.env_clear().env("KUBECONFIG", kubeconfig).kill_on_drop(true).arg("verify").args(arguments);
    let output = tokio::time::timeout(LIMIT, command.output()).await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
}

/// The Services of one installation, with a token that may do what the documentation says.
struct Installation {
    cluster: Cluster,
    api: ApiProxy,
    kubeconfig: PathBuf,
}

impl Installation {
    async fn new() -> Self {
        let installation = Self::without_permission().await;
        installation.cluster.grant("list", "endpointslices").await;
        installation
    }

    async fn without_permission() -> Self {
        let cluster = Cluster::new().await;
        let api = ApiProxy::start(cluster.server()).await;
        cluster.environment("verify", &api.url()).await;
        let kubeconfig = cluster.kubeconfig("verify", &api.url());
        Self { cluster, api, kubeconfig }
    }

    /// How often the program has begun to look.
    fn looks(&self) -> usize {
        self.api.count(|call| call.is("list", "endpointslices"))
    }

    /// Waits until the program has begun to look for the `n`th time.
    async fn wait_for_look(&self, n: usize) {
        eventually(LIMIT, "it looks", async || self.looks() >= n).await;
    }

    /// Writes the slice of one endpoint, as the controller of a cluster does.
    async fn endpoint(&self, service: &str, pod: &str, address: SocketAddr, ready: Option<bool>) {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": format!("{service}-{pod}"), "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": address.port()}],
            "endpoints": [{
                "addresses": [address.ip()],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod, "uid": format!("uid-{pod}")},
            }],
        }))
        .unwrap();
        let slices = self.cluster.api::<EndpointSlice>(&self.cluster.admin().await);
        slices.create(&PostParams::default(), &slice).await.unwrap();
    }

    async fn remove_endpoint(&self, service: &str, pod: &str) {
        let slices = self.cluster.api::<EndpointSlice>(&self.cluster.admin().await);
        slices.delete(&format!("{service}-{pod}"), &DeleteParams::default()).await.unwrap();
    }

    /// `verify` with the leader Service at this URL.
    async fn verify(&self, leader_url: &str, more: &[&str]) -> Said {
        let installation =
            ["--namespace", self.cluster.namespace(), "--leader-service", LEADER, "--metrics-service", METRICS];
        verify(&self.kubeconfig, &[&installation[..], &["--leader-url", leader_url], more].concat()).await
    }
}

/// A leader `a`, to which the leader Service leads, and a standby `b`.
struct Pair {
    installation: Installation,
    database: Database,
    a: Collector,
    b: Collector,
}

impl Pair {
    async fn start(configure: impl FnOnce(&mut Config)) -> Self {
        let (installation, database) = (Installation::new().await, queue_database().await);
        let a = collector(&database, true, configure).await;
        let b = collector(&database, false, |_| {}).await;
        installation.endpoint(LEADER, "a", address_of(&a), None).await;
        installation.endpoint(METRICS, "a", address_of(&a), Some(true)).await;
        // Not ready, and behind this Service all the same.
        installation.endpoint(METRICS, "b", address_of(&b), Some(false)).await;
        Self { installation, database, a, b }
    }

    async fn verify(&self, more: &[&str]) -> Said {
        self.installation.verify(&metrics_of(&self.a), more).await
    }
}

/// `name` as an endpoint is called.
fn called(name: &str) -> String {
    format!("{name} ({})", own_address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_and_a_standby_are_verified_and_told_even_without_a_queue() {
    let pair = Pair::start(|_| {}).await;
    let began = Instant::now();
    let said = pair.verify(&[]).await;
    assert_eq!((said.code, said.error.as_str()), (Some(0), ""), "{said:?}");
    println!("verified within {:?}", began.elapsed());
    let metrics = pair.a.metrics().await.unwrap();
    let number = metrics.lines().find_map(|line| line.strip_prefix("retsu_collector_term ")).unwrap();
    for line in [
        format!("Service {LEADER}: one endpoint, {}", called("a")),
        format!("Service {METRICS}: the leader alone exports, of replicas: 2"),
        format!("term: 1/{number}"),
    ] {
        assert!(said.out.lines().any(|found| found == line), "{line:?} is not in\n{}", said.out);
    }
    let age = format!("{}: state gauges, ", metrics_of(&pair.a));
    assert!(said.out.contains(&age) && said.out.contains("old, of 18s at most"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_service_must_have_one_ready_endpoint_and_is_waited_for() {
    let pair = Pair::start(|_| {}).await;
    let Pair { installation, a, b, .. } = &pair;
    installation.endpoint(LEADER, "b", address_of(b), None).await;
    let two = format!("Service {LEADER} has 2 endpoints: {}, {}", called("a"), called("b"));
    pair.verify(&["--timeout", "2"]).await.assert_finds(&[two]);

    installation.remove_endpoint(LEADER, "a").await;
    installation.remove_endpoint(LEADER, "b").await;
    installation.endpoint(LEADER, "b", address_of(b), Some(false)).await;
    let began = Instant::now();
    let none = format!("Service {LEADER} has no endpoint: no ready Pod has the label of the leader");
    pair.verify(&["--timeout", "2.5"]).await.assert_finds(&[none]);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2500) && took < Duration::from_secs(20), "{took:?}");

    let (url, looked) = (metrics_of(a), installation.looks());
    let late = async {
        installation.wait_for_look(looked + 1).await;
        installation.endpoint(LEADER, "a", address_of(a), Some(true)).await;
        Instant::now()
    };
    let (said, written) = tokio::join!(installation.verify(&url, &["--timeout", "30"]), late);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(written.elapsed() < Duration::from_secs(20), "it ends when everything holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_leads_to_a_standby_or_nowhere_is_found() {
    let Pair { installation, b, .. } = &Pair::start(|_| {}).await;
    installation.remove_endpoint(LEADER, "a").await;
    installation.endpoint(LEADER, "b", address_of(b), Some(true)).await;
    let url = metrics_of(b);
    let another = format!("Service {LEADER} leads to {}, and {} has the state gauges", called("b"), called("a"));
    let none = format!("{url} has no state gauges");
    installation.verify(&url, &["--timeout", "2"]).await.assert_finds(&[none, another.clone()]);

    let nowhere = format!("http://{}:{}/metrics", own_address(), free_port());
    let said = installation.verify(&nowhere, &["--timeout", "2"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let silent = format!("- {nowhere} does not answer: client error (Connect)");
    assert!(said.error.contains(&silent) && said.error.contains("Connection refused"), "{said:?}");
    let elsewhere = format!("http://{}/metric", address_of(b));
    let said = installation.verify(&elsewhere, &["--timeout", "2"]).await;
    said.assert_finds(&[format!("{elsewhere} does not answer: the answer has status 404 Not Found"), another]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_look_asks_the_service_over_a_new_connection() {
    let pair = Pair::start(|_| {}).await;
    let Pair { installation, a, b, .. } = &pair;
    let (service, url) = Proxy::start(&metrics_of(b)).await;
    let corrected = async {
        // The first look is over: its connection leads to the standby.
        installation.wait_for_look(2).await;
        service.retarget(a.address().port());
    };
    let (said, ()) = tokio::join!(installation.verify(&url, &["--timeout", "20"]), corrected);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_that_are_too_old_are_found() {
    let interval = "worker.queue.state_metrics_collector.collection_interval_seconds";
    let pair = Pair::start(|config| _ = config.set(interval, 600)).await;
    let age = async || {
        let metrics = pair.a.metrics().await.unwrap();
        let age = metrics.lines().find_map(|line| line.strip_prefix("queue_state_snapshot_age_seconds "));
        age.unwrap().parse::<f64>().unwrap()
    };
    eventually(LIMIT, "the snapshot is a second old", async || age().await > 1.0).await;
    let said = pair.verify(&["--timeout", "2", "--max-age", "1"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.error.contains("old, and 1s is allowed") && said.error.lines().count() == 2, "{said:?}");
    let said = pair.verify(&["--max-age", "603"]).await;
    assert!(said.code == Some(0) && said.out.contains("of 603s at most"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_that_are_withdrawn_because_a_refresh_hangs_are_missed() {
    let timeout = "worker.queue.state_metrics_collector.refresh_timeout_seconds";
    let pair = Pair::start(|config| _ = config.set(timeout, 120)).await;
    slow_down(&pair.database.pool().await, 60.0).await;
    eventually(LIMIT, "the snapshot is too old to be served", async || !pair.a.exports().await).await;
    pair.verify(&["--timeout", "2"]).await.assert_finds(&[
        "no replica has state gauges, of replicas: 2".to_owned(),
        format!("{} has no state gauges", metrics_of(&pair.a)),
    ]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_exporter_is_found_even_when_it_is_not_ready_and_so_is_a_replica_that_does_not_answer() {
    let pair = Pair::start(|_| {}).await;
    pair.b.sigstop();
    let said = pair.verify(&["--timeout", "2"]).await;
    said.assert_finds(&[format!("replica {} does not answer: no answer within 1s", called("b"))]);
    pair.b.sigcont();

    let other = queue_database().await;
    let c = collector(&other, true, |_| {}).await;
    pair.installation.endpoint(METRICS, "c", address_of(&c), Some(false)).await;
    let two = format!("2 replicas have state gauges: {}, {}", called("a"), called("c"));
    pair.verify(&["--timeout", "2"]).await.assert_finds(&[two]);

    // The Service's own way leads to the leader of another database.
    pair.installation.remove_endpoint(METRICS, "c").await;
    let said = pair.installation.verify(&metrics_of(&c), &["--timeout", "2"]).await;
    assert!(said.code == Some(1) && said.error.contains("answers as the leader of term"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_api_refuses_is_named_and_so_is_an_api_that_does_not_answer() {
    let installation = Installation::without_permission().await;
    let database = queue_database().await;
    let a = collector(&database, true, |_| {}).await;
    let url = metrics_of(&a);
    let said = installation.verify(&url, &["--timeout", "2"]).await;
    let namespace = installation.cluster.namespace();
    let refused = format!(
        "- the Kubernetes API refuses what a Role has to permit in namespace {namespace}: \
         list endpointslices.discovery.k8s.io: endpointslices.discovery.k8s.io is forbidden"
    );
    assert!(said.code == Some(1) && said.error.contains(&refused), "{said:?}");

    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Who is silent is given up by the limit of the connection or by that of the request, which are one time.
    let given_up = ["no answer within 1s", "request timed out"];
    for (port, why) in [(silent.local_addr().unwrap().port(), &given_up[..]), (free_port(), &["refused"])] {
        let kubeconfig = installation.cluster.kubeconfig("verify", &format!("https://127.0.0.1:{port}"));
        let names = ["--namespace", namespace, "--leader-service", LEADER, "--metrics-service", METRICS];
        let said = verify(&kubeconfig, &[&names[..], &["--leader-url", &url, "--timeout", "2"]].concat()).await;
        let start =
            "- the Kubernetes API does not say who is behind the Services: list endpointslices.discovery.k8s.io";
        assert!(said.code == Some(1) && said.error.contains(start), "{said:?}");
        assert!(why.iter().any(|why| said.error.contains(why)), "{said:?}");
    }
}

#[tokio::test]
async fn wrong_usage_and_no_way_to_the_api_end_with_code_2() {
    let names = ["--namespace", "a", "--leader-service", "b", "--metrics-service", "c"];
    for (kubeconfig, arguments, why) in [
        ("/nowhere", &names[..4], "--metrics-service"),
        ("/nowhere", &[&names[..], &["--port", "0"]].concat(), "--port"),
        ("/nowhere", &names, "the kubeconfig is unusable"),
        ("", &names, "the service account is unusable"),
    ] {
        let said = verify(Path::new(kubeconfig), arguments).await;
        assert!(said.code == Some(2) && said.error.contains(why), "{said:?}");
    }
}
