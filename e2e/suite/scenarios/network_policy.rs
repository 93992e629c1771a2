//! The chart's NetworkPolicy, where something enforces it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use retsu_collector::election::Fault;
use serde_json::{Value, json};

use super::monitoring::DISCOVERED;
use crate::enforcer::{ENFORCED, enforce};
use crate::faults::pid_of;
use crate::postgresql::{self, IMAGE, Server};
use crate::prometheus::eventually_seen;
use crate::release::{PORT, Release, SETTLED};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// For how long nobody may lead without a way to the database: some attempts of each replica.
const KEPT_OUT: Duration = Duration::from_secs(10);

/// Who may reach the management port reaches it, and a replica reaches the database, DNS and the Kubernetes API; all else
/// is refused, and would not be without the policy.
pub(crate) async fn the_network_policy_lets_through_what_is_listed_and_nothing_else(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's Pod is deleted under a NetworkPolicy";
    const NOTHING_IS_SENT_HERE: u16 = 5433;
    let server = Server::start(&stage).await;
    for name in ["allowed", "stranger"] {
        let container = json!({"name": "shell", "image": IMAGE, "command": ["sleep", "infinity"]});
        postgresql::pod(&stage, name, container, &[]).await;
    }
    enforce(&stage).await;
    let policy =
        |ports: &[u16]| json!({"networkPolicy": {"enabled": true, "from": allowed(&stage), "databasePorts": ports}});

    let release = Release::install_as(&stage, "retsu", policy(&[NOTHING_IS_SENT_HERE])).await;
    let database = SocketAddr::new(server.address(), 5432);
    for replica in release.replicas() {
        refused("the database", async || reaches(&stage, &replica, database).await).await;
    }
    // A connection that was made before its Pod had rules is kept.
    server.terminate_sessions().await;
    let nobody_leads = async || server.holder().await.is_none() && release.labelled().is_empty();
    eventually(SETTLED, "nobody leads without a way to the database", nobody_leads).await;
    throughout(KEPT_OUT, "nobody leads without a way to the database", nobody_leads).await;

    // The same Pods: what has changed is the policy alone.
    release.upgrade(policy(&[5432])).await;
    let leader = release.settled(&server).await;
    for replica in release.replicas() {
        let node = replica.node.clone().unwrap();
        let destinations = destinations(&stage, &server).await;
        for (what, address) in destinations.listed {
            let reached = format!("a replica on {node} reaches {what}");
            eventually(ENFORCED, &reached, async || reaches(&stage, &replica, address).await).await;
        }
        let (what, address) = destinations.other;
        refused(&format!("{what} from {node}"), async || reaches(&stage, &replica, address).await).await;
        let entered = format!("who is allowed reaches {}", replica.name);
        eventually(ENFORCED, &entered, async || enters(&release, "allowed", &replica).await).await;
        refused("a replica by a stranger", async || enters(&release, "stranger", &replica).await).await;
    }
    release.helm(&["test", release.name()]).await.unwrap_or_else(|complaint| panic!("{complaint}"));
    scraped(&stage, &release).await;

    let recording = release.record().await;
    recording.fault(FAULT, release.bound(Fault::Graceful));
    stage.cluster.api::<Pod>(&stage.namespace).delete(&leader.name, &DeleteParams::default()).await.unwrap();
    eventually(SETTLED, "the leader's Pod is gone", async || release.replica(&leader.name).is_none()).await;
    release.settled(&server).await;
    recording.finish().assert_kept();
    scraped(&stage, &release).await;

    // Without the policy, nothing else is in the way of what it refused.
    release.upgrade(json!({"networkPolicy": {"enabled": false}})).await;
    let leader = release.settled(&server).await;
    let (what, address) = destinations(&stage, &server).await.other;
    eventually(ENFORCED, &format!("without the policy, a replica reaches {what}"), async || {
        reaches(&stage, &leader, address).await
    })
    .await;
    eventually(ENFORCED, "without the policy, a stranger reaches a replica", async || {
        enters(&release, "stranger", &leader).await
    })
    .await;
}

/// A Pod of this namespace, Prometheus, the Pod of `helm test`, and what the suite itself comes from: its own address
/// where it scrapes a Pod, and that of the node which has forwarded it where it scrapes a ClusterIP.
fn allowed(stage: &Stage) -> Value {
    let hosts = stage.cluster.hosts();
    let own = hosts.iter().map(|host| address_towards(host.address));
    let blocks = hosts.iter().map(|host| host.address).chain(own);
    let mut from: Vec<_> = blocks.map(|address| json!({"ipBlock": {"cidr": format!("{address}/32")}})).collect();
    from.extend([
        json!({"podSelector": {"matchLabels": {"app": "allowed"}}}),
        json!({"podSelector": {"matchLabels": {"app.kubernetes.io/component": "test"}}}),
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}),
    ]);
    from.into()
}

/// The address of this machine that `peer` sees.
fn address_towards(peer: IpAddr) -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((peer, 9)).unwrap();
    socket.local_addr().unwrap().ip()
}

/// Servers that listen, by the addresses that a Pod would use.
struct Destinations {
    listed: [(&'static str, SocketAddr); 3],
    other: (&'static str, SocketAddr),
}

async fn destinations(stage: &Stage, server: &Server) -> Destinations {
    let cluster_ip = async |namespace: &str, name: &str, port| {
        let service = stage.cluster.api::<Service>(namespace).get(name).await.unwrap();
        SocketAddr::new(service.spec.and_then(|spec| spec.cluster_ip).unwrap().parse().unwrap(), port)
    };
    Destinations {
        listed: [
            ("the database", SocketAddr::new(server.address(), 5432)),
            ("DNS", cluster_ip("kube-system", "kube-dns", 53).await),
            ("the Kubernetes API", cluster_ip("default", "kubernetes", 443).await),
        ],
        other: ("Prometheus", stage.cluster.prometheus().address()),
    }
}

/// Whether a connection can be made from the network of a replica's Pod; its image has no shell.
async fn reaches(stage: &Stage, replica: &Replica, address: SocketAddr) -> bool {
    let pid = pid_of(replica.container.as_deref().unwrap());
    let script = format!(
        "pid={pid}; nsenter --target $pid --net timeout 3 bash -c ': </dev/tcp/{}/{}' && echo yes || echo no",
        address.ip(),
        address.port(),
    );
    stage.cluster.on_node(replica.node.as_deref().unwrap(), &script).await.trim() == "yes"
}

/// Whether a connection to a replica's management port can be made from another Pod.
async fn enters(release: &Release, pod: &str, replica: &Replica) -> bool {
    let address = replica.address.unwrap();
    let script = format!("timeout 3 bash -c ': </dev/tcp/{address}/{PORT}' && echo yes || echo no");
    release.kubectl(&["exec", pod, "--", "bash", "-c", &script]).await.trim() == "yes"
}

/// Rules come some time after the Pod that they are for; then they stay.
async fn refused(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    eventually(ENFORCED, &format!("nothing reaches {what}"), async || !reached().await).await;
    assert!(!reached().await, "something reaches {what}");
}

/// Waits until Prometheus has scraped every replica, later than now.
async fn scraped(stage: &Stage, release: &Release) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let wanted: Vec<_> = release.replicas().into_iter().map(|replica| replica.name).collect();
    let up = format!("up{{namespace=\"{}\"}}", stage.namespace);
    let up = format!("{up} == 1 and timestamp({up}) > {now}");
    eventually_seen(DISCOVERED, "Prometheus scrapes every replica", async || {
        let series = stage.cluster.prometheus().query(&up).await;
        wanted.iter().all(|pod| series.iter().any(|series| series.labels.get("pod") == Some(pod)))
    })
    .await;
}
