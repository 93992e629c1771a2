//! What a process has that runs in a Pod: a token, a kubeconfig, its environment.

use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::AuthInfo;
use kube::{Api, Client, Error};
use rustix::process::getuid;
use serde_json::{Value, json};

use super::Cluster;
use super::cluster::{SERVICE_ACCOUNT, SETTLED, create};
use super::pods::INSTANCE_SELECTOR;
use crate::support::{Collector, Config, eventually};

/// Where a kubelet mounts the files of a service account; `/var/run` leads to `/run`.
const MOUNT: &str = "/run/secrets/kubernetes.io/serviceaccount";

impl Cluster {
    /// A token as the kubelet mounts it into a Pod: it names the Pod, and dies with it.
    pub(crate) async fn token(&self, pod: &str) -> String {
        let uid = self.get(pod).await.unwrap().metadata.uid;
        let object = json!({"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid});
        self.request_token(json!({"boundObjectRef": object})).await
    }

    /// A token of the service account that is bound to no Pod.
    pub(crate) async fn unbound_token(&self) -> String {
        self.request_token(json!({})).await
    }

    async fn request_token(&self, mut spec: Value) -> String {
        // By default those of the API server itself.
        spec["audiences"] = json!([]);
        let accounts = self.api::<ServiceAccount>(&self.admin().await);
        let request = json!({"spec": spec});
        let request: TokenRequest =
            accounts.create_subresource("token", SERVICE_ACCOUNT, &PostParams::default(), &request).await.unwrap();
        request.status.unwrap().token
    }

    /// A client with a fresh token of a Pod and nothing else.
    pub(crate) async fn client_of(&self, pod: &str) -> Client {
        self.client_at(&self.server().url(), pod).await
    }

    /// As [`client_of`](Self::client_of), with the API server at the URL of a proxy.
    pub(crate) async fn client_at(&self, url: &str, pod: &str) -> Client {
        self.server().with_token(url, &self.token(pod).await).await
    }

    /// A client with a token that is bound to no Pod.
    pub(crate) async fn unbound_client(&self) -> Client {
        self.server().with_token(&self.server().url(), &self.unbound_token().await).await
    }

    /// Whom the API server takes a client for: the user, and the Pod that its token is bound to.
    pub(crate) async fn user_of(&self, client: &Client) -> (String, Option<String>) {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        let user = create(&reviews, json!({})).await.status.unwrap().user_info.unwrap();
        let pod = user.extra.and_then(|extra| extra.get("authentication.kubernetes.io/pod-name")?.first().cloned());
        (user.username.unwrap(), pod)
    }

    /// Waits until a client's token is refused, as that of a Pod that is gone.
    pub(crate) async fn wait_until_unauthorized(&self, client: &Client) {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        eventually(SETTLED, "the token is refused", async || {
            let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
            matches!(answer, Err(Error::Api(status)) if status.code == 401)
        })
        .await;
    }

    /// The file in which a Pod finds its token.
    pub(crate) fn token_file(&self, pod: &str) -> PathBuf {
        self.files.path().join(format!("{pod}.token"))
    }

    /// Puts `token` into the file of a Pod, at once as a whole.
    pub(crate) fn write_token(&self, pod: &str, token: &str) {
        let (file, next) = (self.token_file(pod), self.files.path().join(format!("{pod}.token.next")));
        fs::write(&next, token).unwrap();
        fs::rename(next, file).unwrap();
    }

    /// Puts a fresh token into the file of a Pod, and returns it.
    pub(crate) async fn rotate_token(&self, pod: &str) -> String {
        let token = self.token(pod).await;
        self.write_token(pod, &token);
        token
    }

    /// Writes a kubeconfig that reaches the API server at `url`, its own or a proxy's, with the token file of a Pod.
    pub(crate) fn kubeconfig(&self, pod: &str, url: &str) -> PathBuf {
        let token_file = Some(self.token_file(pod).display().to_string());
        let user = AuthInfo { token_file, ..AuthInfo::default() };
        let kubeconfig = self.server().kubeconfig(url, self.namespace(), user);
        let file = self.files.path().join(format!("{pod}.kubeconfig"));
        fs::write(&file, serde_yaml::to_string(&kubeconfig).unwrap()).unwrap();
        file
    }

    /// Starts the real program as the container of a Pod, which is created if it does not exist.
    pub(crate) async fn collector(
        &self,
        pod: &str,
        database_url: &str,
        configure: impl FnOnce(&mut Config),
    ) -> Collector {
        self.collector_at(&self.server().url(), pod, database_url, configure).await
    }

    /// As [`collector`](Self::collector), with the API server at the URL of a proxy.
    pub(crate) async fn collector_at(
        &self,
        url: &str,
        pod: &str,
        database_url: &str,
        configure: impl FnOnce(&mut Config),
    ) -> Collector {
        let environment = self.environment(pod, url).await;
        let collector = start(&environment, database_url, configure);
        self.report_start(pod).await;
        collector
    }

    /// As [`collector`](Self::collector), with a kubelet that has not told of the start yet.
    pub(crate) async fn unreported_collector(
        &self,
        pod: &str,
        database_url: &str,
        configure: impl FnOnce(&mut Config),
    ) -> Collector {
        start(&self.environment(pod, &self.server().url()).await, database_url, configure)
    }

    /// As [`collector_at`](Self::collector_at), with a token that is bound to no Pod.
    pub(crate) async fn unbound_collector_at(&self, url: &str, pod: &str, database_url: &str) -> Collector {
        let environment = self.environment(pod, url).await;
        self.write_token(pod, &self.unbound_token().await);
        start(&environment, database_url, |_| {})
    }

    /// As [`collector_at`](Self::collector_at), with what a Pod has instead of a kubeconfig: the service account's
    /// files where the kubelet mounts them, in a mount namespace of its own, and the address of the API server in the
    /// environment. `kubernetes.mode` is the program's default.
    pub(crate) async fn collector_in_cluster(
        &self,
        url: &str,
        pod: &str,
        database_url: &str,
        configure: impl FnOnce(&mut Config),
    ) -> Collector {
        let [name, namespace, uid, _] = self.environment(pod, url).await;
        let account = self.files.path().join(format!("{pod}.account"));
        fs::create_dir_all(&account).unwrap();
        fs::write(account.join("ca.crt"), self.server().authority().certificate()).unwrap();
        fs::write(account.join("namespace"), self.namespace()).unwrap();
        let (account, token) = (account.display().to_string(), self.token_file(pod).display().to_string());
        let mount = format!(
            "mount -t tmpfs tmpfs /run && mkdir -p {MOUNT} && ln -s {account}/* {MOUNT}/ && \
             ln -s {token} {MOUNT}/token && exec \"$@\""
        );
        let port = url.rsplit(':').next().unwrap();
        Collector::start(database_url, |config| {
            // Only root may mount without a user namespace around it.
            let user: &[&str] = if getuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
            config.inside("unshare", &[user, &["--mount", "sh", "-c", &mount, "sh"]].concat());
            config.set("kubernetes.instance_selector", INSTANCE_SELECTOR);
            for (name, value) in [name, namespace, uid] {
                config.env(name, &value);
            }
            config.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", port);
            configure(config);
        })
    }

    /// The environment of a container of a Pod, which is created if it does not exist, with a fresh token in its
    /// file. The API server is at `url`, its own or a proxy's.
    pub(crate) async fn environment(&self, pod: &str, url: &str) -> [(&'static str, String); 4] {
        let existing = match self.get(pod).await {
            Some(existing) => existing,
            None => self.pod(pod).await,
        };
        self.rotate_token(pod).await;
        [
            ("POD_NAME", pod.to_owned()),
            ("POD_NAMESPACE", self.namespace().to_owned()),
            ("POD_UID", existing.metadata.uid.unwrap()),
            ("KUBECONFIG", self.kubeconfig(pod, url).display().to_string()),
        ]
    }
}

fn start(environment: &[(&'static str, String)], database_url: &str, configure: impl FnOnce(&mut Config)) -> Collector {
    Collector::start(database_url, |config| {
        config.set("kubernetes.mode", "on").set("kubernetes.instance_selector", INSTANCE_SELECTOR);
        for (name, value) in environment {
            config.env(name, value);
        }
        configure(config);
    })
}
