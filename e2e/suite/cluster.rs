//! The cluster that the suite runs on: its API, its nodes, and the programs that people use on it.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::command::{built, docker, run};
use crate::prometheus::Prometheus;

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A machine of the cluster, which is a container of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Its name, and that of its container.
    pub(crate) name: String,
    /// Its address in the network of the nodes.
    pub(crate) address: IpAddr,
    /// Whether the API server runs on it.
    pub(crate) is_control_plane: bool,
}

/// The cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    kubeconfig: PathBuf,
    client: Client,
    hosts: Vec<Host>,
    prometheus: Prometheus,
    /// Held while something starts: what leads already must not starve meanwhile.
    pub(crate) starting: Arc<Mutex<()>>,
}

impl Cluster {
    /// Connects to the cluster of `KUBECONFIG`, and fails when it lacks what the suite needs.
    pub(crate) async fn connect() -> Self {
        let kubeconfig = std::env::var_os("KUBECONFIG").expect("KUBECONFIG is not set: run `make e2e-test`");
        let kubeconfig = PathBuf::from(kubeconfig);
        let read = Kubeconfig::read_from(&kubeconfig).unwrap_or_else(|error| panic!("KUBECONFIG: {error}"));
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let nodes = Api::<Node>::all(client.clone()).list(&Default::default()).await;
        let nodes =
            nodes.unwrap_or_else(|error| panic!("the cluster of {} does not answer: {error}", kubeconfig.display()));
        let hosts: Vec<_> = nodes.items.iter().map(host).collect();
        let workers = hosts.iter().filter(|host| !host.is_control_plane).count();
        assert!(workers >= 2, "the suite needs two workers besides the control plane, and there are {workers}");
        let prometheus = Prometheus::find(&client).await;
        Self { kubeconfig, client, hosts, prometheus, starting: Arc::default() }
    }

    /// A client of the administrator.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The objects of one kind in a namespace.
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + Debug,
        <K as Resource>::DynamicType: Default,
    {
        Api::namespaced(self.client(), namespace)
    }

    /// The Prometheus of the Operator.
    pub(crate) fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    /// Every node.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The node that the API server runs on.
    pub(crate) fn control_plane(&self) -> &Host {
        self.hosts.iter().find(|host| host.is_control_plane).unwrap()
    }

    /// What kubectl prints; it has to succeed.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).await.unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// What kubectl prints, or what it complains of.
    pub(crate) async fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        run(Command::new(built("kubectl")).env("KUBECONFIG", &self.kubeconfig).args(arguments)).await
    }

    /// What Helm prints, or what it complains of.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        run(&mut self.helm_command(arguments)).await
    }

    /// A call of Helm.
    pub(crate) fn helm_command(&self, arguments: &[&str]) -> Command {
        let mut helm = Command::new(built("helm"));
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e-helm");
        for kind in ["CACHE", "CONFIG", "DATA"] {
            helm.env(format!("HELM_{kind}_HOME"), home.join(kind));
        }
        helm.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        helm
    }

    /// What a script prints that is run on a node, as root; it has to succeed.
    pub(crate) async fn on_node(&self, node: &str, script: &str) -> String {
        let script = run(docker().args(["exec", node, "bash", "-euo", "pipefail", "-c", script])).await;
        script.unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// What the engine's client prints, of the node's container; it has to succeed.
    pub(crate) async fn engine(&self, arguments: &[&str]) -> String {
        run(docker().args(arguments)).await.unwrap_or_else(|complaint| panic!("{complaint}"))
    }
}

fn host(node: &Node) -> Host {
    let name = node.metadata.name.clone().unwrap();
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let address =
        addresses.filter(|address| address.type_ == "InternalIP").find_map(|found| found.address.parse().ok());
    Host {
        address: address.unwrap_or_else(|| panic!("node {name} has no InternalIP")),
        is_control_plane: node.metadata.labels.iter().flatten().any(|(label, _)| label == CONTROL_PLANE),
        name,
    }
}
