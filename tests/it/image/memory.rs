//! What a standby keeps resident, out of the image.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use retsu_collector::demo::watch::get;

use super::docker::Container;
use super::resident::Resident;
use crate::support::kubernetes::{Cluster, INSTANCE_SELECTOR};
use crate::support::{Collector, eventually, free_port, queue_database, throughout};

const LIMIT_MIB: f64 = 12.0;

const LIMIT: Duration = Duration::from_secs(60);

/// Attempts at the lock and scrapes, one after the other.
const WINDOW: Duration = Duration::from_secs(30);

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A standby on the network of this machine, which may reach the servers on its loopback address.
struct Standby {
    container: Container,
    address: SocketAddr,
}

impl Standby {
    async fn start(database_url: &str, options: &[String]) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut all = vec!["--network=host".to_owned(), format!("--env=RETSU_DATABASE__URL={database_url}")];
        all.push(format!("--env=RETSU_WORKER__MANAGEMENT__BIND_ADDRESS={}", address.ip()));
        all.push(format!("--env=RETSU_WORKER__MANAGEMENT__PORT={}", address.port()));
        all.push("--env=RETSU_WORKER__QUEUE__STATE_METRICS_COLLECTOR__LEADERSHIP_RETRY_INTERVAL_SECONDS=1".to_owned());
        all.extend_from_slice(options);
        let container = Container::start(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let waits = "another session holds the advisory lock";
        eventually(LIMIT, "it waits", async || container.log().contains(waits)).await;
        Self { container, address }
    }

    /// Scrapes for a while without a pause, and then looks.
    async fn scraped(&self, what: &str) {
        let scrape = async || get(self.address, "/metrics").await.is_ok_and(|(status, _)| status == 200);
        throughout(WINDOW, "it answers", scrape).await;
        let resident = Resident::of(self.container.pid());
        println!("standby, {what}: {resident}");
        assert!(resident.peak <= LIMIT_MIB, "{resident}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_without_kubernetes_stays_within_its_limit() {
    let database = queue_database().await;
    let leader = Collector::start(&database.url(), |_| {});
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let standby = Standby::start(&database.url(), &["--env=RETSU_KUBERNETES__MODE=off".to_owned()]).await;
    standby.scraped("Kubernetes off").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_with_kubernetes_stays_within_its_limit() {
    let (cluster, database) = (Cluster::new().await, queue_database().await);
    let leader = cluster.collector("a", &database.url(), |_| {}).await;
    eventually(LIMIT, "it exports", async || leader.exports().await).await;

    let [name, namespace, uid, _] = cluster.environment("b", &cluster.server().url()).await;
    let account = tempfile::tempdir().unwrap();
    fs::set_permissions(account.path(), Permissions::from_mode(0o755)).unwrap();
    for (file, content) in [
        ("ca.crt", cluster.server().authority().certificate()),
        ("namespace", cluster.namespace()),
        ("token", &*cluster.token("b").await),
    ] {
        fs::write(account.path().join(file), content).unwrap();
    }
    let mut options = vec![format!("--volume={}:{ACCOUNT}:ro", account.path().display())];
    for (variable, value) in [
        name,
        namespace,
        uid,
        ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
        ("KUBERNETES_SERVICE_PORT", cluster.server().port().to_string()),
        ("RETSU_KUBERNETES__MODE", "on".to_owned()),
        ("RETSU_KUBERNETES__INSTANCE_SELECTOR", INSTANCE_SELECTOR.to_owned()),
    ] {
        options.push(format!("--env={variable}={value}"));
    }
    let standby = Standby::start(&database.url(), &options).await;
    eventually(LIMIT, "its label is set", async || {
        get(standby.address, "/leader").await.is_ok_and(|(_, answer)| answer.contains(r#""label":{"state":"set""#))
    })
    .await;
    standby.scraped("Kubernetes on").await;
}
