//! Names, which a container asks a DNS server for: there is nothing else in it that could know them.

use std::fs;

use super::docker::{Container, Dns, Network, run};
use crate::support::Secure;

/// A name of the database as one in a cluster: of a Service `postgres` in the namespace `queues`.
pub(super) const HOST: &str = "postgres.queues.svc.cluster.test";

/// What the kubelet writes into the `resolv.conf` of a Pod, but for the domain.
const SEARCH: [&str; 4] = ["--dns-search", "svc.cluster.test", "--dns-option", "ndots:5"];

const RULES: &str = "local all all trust
hostssl all all all scram-sha-256
";

/// A database with TLS on this machine, as containers of a network reach it.
pub(super) struct Site {
    pub(super) network: Network,
    pub(super) dns: Dns,
    pub(super) database: Secure,
}

impl Site {
    /// Names are those that DNS knows; the certificate of the server is for [`HOST`].
    pub(super) async fn start(names: &[&str]) -> Self {
        let network = Network::new();
        let dns = Dns::start(&network, names).await;
        let addresses = format!("listen_addresses = '127.0.0.1,{}'\n", network.gateway());
        let database = Secure::start(&[HOST], RULES, &addresses).await;
        retsu_collector::schema::apply(&mut database.superuser().await).await.unwrap();
        database.execute("CREATE ROLE collector LOGIN PASSWORD 'p' IN ROLE pg_read_all_data").await;
        Self { network, dns, database }
    }

    /// The database at `host`, with parameters such as `sslmode`.
    pub(super) fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://collector:p@{host}:{}/postgres?{parameters}", self.database.port())
    }

    /// A container on the network, with its DNS server and the database of `url`.
    pub(super) fn container(&self, url: &str, options: &[&str]) -> Container {
        let url = format!("RETSU_DATABASE__URL={url}");
        Container::start(&[&self.options(&url)[..], options].concat())
    }

    /// Exit code and outputs of such a container that ends by itself.
    pub(super) fn run(&self, url: &str, options: &[&str]) -> (i32, String) {
        let url = format!("RETSU_DATABASE__URL={url}");
        run(&[&self.options(&url)[..], options].concat(), &[])
    }

    fn options<'a>(&'a self, url: &'a str) -> [&'a str; 6] {
        ["--network", self.network.name(), "--dns", self.network.gateway(), "--env", url]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_found_by_dns() {
    let site = Site::start(&[HOST]).await;
    let container = site.container(&site.url(HOST, "sslmode=require"), &[]);
    container.wait_until_leading().await;
    let hosts = fs::read_to_string(container.inspect(".HostsPath")).unwrap();
    assert!(!hosts.contains("postgres"), "{hosts}");
    assert!(site.dns.log().contains(&format!("query[A] {HOST} from ")), "{}", site.dns.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_name_is_completed_as_in_a_cluster() {
    let site = Site::start(&[HOST]).await;
    let container = site.container(&site.url("postgres.queues", "sslmode=require"), &SEARCH);
    container.wait_until_leading().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_dns_does_not_know_is_an_error_that_says_so() {
    let site = Site::start(&[]).await;
    let (code, said) = site.run(&site.url(HOST, "sslmode=require"), &[]);
    assert!(code == 1 && said.contains("failed to lookup address information"), "{code} {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_etc_hosts_is_found_though_dns_says_that_there_is_none() {
    let site = Site::start(&[]).await;
    // As the hostAliases of a Pod.
    let alias = format!("alias.test:{}", site.network.gateway());
    let container = site.container(&site.url("alias.test", "sslmode=require"), &["--add-host", &alias]);
    container.wait_until_leading().await;
}
