//! A real kube-apiserver and its etcd. No kubelet, no scheduler, no controller: the tests write what those would.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};
use kube::{Client, Config};
use rcgen::KeyPair;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::authority::{Authority, Certified};
use super::keeper::Keeper;
use crate::support::free_port;

/// Until both programs answer, on a machine that does other things as well.
const START: Duration = Duration::from_secs(60);

/// Lines of each log that a failing test shows.
const LINES: usize = 40;

/// One API server with its etcd; gone when dropped. The logs' ends are printed when its test fails.
#[derive(Debug)]
pub(crate) struct ApiServer {
    etcd: Keeper,
    etcd_port: u16,
    /// `None` while it is stopped.
    server: Mutex<Option<Keeper>>,
    port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
    authority: Authority,
    admin: Admin,
}

/// The certificate of somebody who may do anything.
struct Admin(Certified);

impl ApiServer {
    /// The one that all tests of this process share.
    pub(crate) async fn shared() -> Arc<Self> {
        // Its processes end with this one: a static is never dropped, but their pipes close.
        static SHARED: OnceCell<Arc<ApiServer>> = OnceCell::const_new();
        Arc::clone(SHARED.get_or_init(|| Self::own(&[])).await)
    }

    /// One for a test that stops, restarts or compacts it, with further flags such as `--watch-cache=false`.
    pub(crate) async fn own(flags: &[&str]) -> Arc<Self> {
        let authority = Authority::new();
        let admin = Admin(authority.issue("admin", "system:masters"));
        let (etcd_port, port) = (free_port(), free_port());
        let etcd = start_etcd(etcd_port);
        let directory = tempfile::Builder::new().prefix("kube-apiserver-").tempdir().unwrap().keep();
        write_credentials(&directory, &authority);
        let mut arguments = arguments(&directory, etcd_port, port);
        arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        let server = Mutex::new(Some(Keeper::start(&directory, &program("kube-apiserver"), &arguments)));
        let server = Self { etcd, etcd_port, server, port, directory, arguments, authority, admin };
        server.wait_until_ready().await;
        Arc::new(server)
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback address; stays the same over restarts.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Who has signed its certificate.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A client that may do anything. It belongs to the runtime it is made on.
    pub(crate) async fn admin(&self) -> Client {
        Client::try_from(config(self.admin_kubeconfig("default")).await).unwrap()
    }

    /// What another program needs to do anything, in a namespace unless it names another.
    pub(crate) fn admin_kubeconfig(&self, namespace: &str) -> Kubeconfig {
        let Certified { certificate, key } = &self.admin.0;
        let admin = AuthInfo {
            client_certificate_data: Some(base64(certificate)),
            client_key_data: Some(base64(key).into()),
            ..AuthInfo::default()
        };
        self.kubeconfig(&self.url(), namespace, admin)
    }

    /// A client that has nothing but this bearer token, and that retries nothing. It reaches the API server at `url`,
    /// its own or that of a proxy.
    pub(crate) async fn with_token(&self, url: &str, token: &str) -> Client {
        let user = AuthInfo { token: Some(SecretString::from(token)), ..AuthInfo::default() };
        let mut config = config(self.kubeconfig(url, "default", user)).await;
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// What a client needs to reach it at `url`, which is its own or that of a proxy.
    pub(crate) fn kubeconfig(&self, url: &str, namespace: &str, user: AuthInfo) -> Kubeconfig {
        let cluster = Cluster {
            server: Some(url.to_owned()),
            certificate_authority_data: Some(base64(self.authority.certificate())),
            ..Cluster::default()
        };
        let name = || "it".to_owned();
        let context = Context {
            cluster: name(),
            user: Some(name()),
            namespace: Some(namespace.to_owned()),
            ..Context::default()
        };
        Kubeconfig {
            clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
            auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(user), ..NamedAuthInfo::default() }],
            contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
            current_context: Some(name()),
            ..Kubeconfig::default()
        }
    }

    /// The directories of etcd and of the API server.
    pub(crate) fn directories(&self) -> [PathBuf; 2] {
        [self.etcd.directory().to_owned(), self.directory.clone()]
    }

    /// Kills the API server; etcd and what is in it stay.
    pub(crate) fn stop(&self) {
        self.server().take().expect("it is stopped already").stop();
    }

    /// Starts the API server again after [`stop`](Self::stop), and waits until it is ready.
    pub(crate) async fn start(&self) {
        let server = Keeper::start(&self.directory, &program("kube-apiserver"), &self.arguments);
        assert!(self.server().replace(server).is_none(), "it runs already");
        self.wait_until_ready().await;
    }

    /// Makes etcd forget history: a watch that has missed something answers 410. One of a server with a watch cache
    /// does so only when the server was restarted as well.
    pub(crate) async fn compact(&self) {
        // At the revision of an object's last change etcd would still send that change, without what was before,
        // which the API server answers with 500. So the last revision is of something else: the key `compacted`.
        let put = self.etcd("put", json!({"key": "Y29tcGFjdGVk", "value": ""})).await;
        let revision = &put["header"]["revision"];
        self.etcd("compaction", json!({"revision": revision, "physical": true})).await;
    }

    async fn etcd(&self, call: &str, body: Value) -> Value {
        let url = format!("http://127.0.0.1:{}/v3/kv/{call}", self.etcd_port);
        let answer = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{call}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    fn server(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.server.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    async fn wait_until_ready(&self) {
        let client = self.admin().await;
        let began = Instant::now();
        loop {
            let ready = http::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(ready).await.is_ok_and(|text| text == "ok") {
                return;
            }
            let runs = self.etcd.is_running() && self.server().as_ref().is_some_and(Keeper::is_running);
            assert!(runs && began.elapsed() < START, "the API server is not ready\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The end of both logs.
    fn logs(&self) -> String {
        let server = self.server().as_ref().map(|server| server.log(LINES));
        let server = server.unwrap_or_else(|| "(stopped)".to_owned());
        format!("--- end of the log of etcd\n{}\n--- end of the log of kube-apiserver\n{server}", self.etcd.log(LINES))
    }

    /// Prints the end of both logs when the test of this thread has failed.
    pub(crate) fn explain(&self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admin")
    }
}

async fn config(kubeconfig: Kubeconfig) -> Config {
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

fn start_etcd(port: u16) -> Keeper {
    let directory = tempfile::Builder::new().prefix("etcd-").tempdir().unwrap().keep();
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()));
    let arguments = [
        format!("--data-dir={}", directory.join("data").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // Nothing in it has to survive the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    Keeper::start(&directory, &program("etcd"), &arguments)
}

fn arguments(directory: &Path, etcd_port: u16, port: u16) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file("server.pem")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("authority.pem")),
        "--authorization-mode=RBAC".to_owned(),
        "--anonymous-auth=false".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-signing-key-file={}", file("tokens.key")),
        format!("--service-account-key-file={}", file("tokens.pem")),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        // It waits for a controller to make the service account of a namespace.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        // History ends when a test says so.
        "--etcd-compaction-interval=0".to_owned(),
    ]
}

fn write_credentials(directory: &Path, authority: &Authority) {
    let Certified { certificate, key } = authority.issue("kube-apiserver", "servers");
    let tokens = KeyPair::generate().unwrap();
    for (name, text) in [
        ("authority.pem", authority.certificate()),
        ("server.pem", &certificate),
        ("server.key", &key),
        ("tokens.key", &tokens.serialize_pem()),
        ("tokens.pem", &tokens.public_key_pem()),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
}

fn base64(text: &str) -> String {
    let encoded = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
    encoded.as_str().unwrap().to_owned()
}

/// A program such as `etcd` from `$ETCD`, or from `target/tools`.
pub(crate) fn program(name: &str) -> PathBuf {
    let variable = name.to_uppercase().replace('-', "_");
    let named = std::env::var_os(&variable).map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(name);
    let found = named.unwrap_or(built);
    assert!(found.is_file(), "no {name} at {}: run `make tools`, or set {variable}", found.display());
    found
}
