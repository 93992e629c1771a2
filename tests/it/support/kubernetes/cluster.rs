//! A namespace for one test: who the collector is there, and what it may do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Patch, PatchParams, PostParams, ValidationDirective};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ApiServer;
use crate::support::eventually;

/// Until what was written to the API server has reached its own caches.
pub(super) const SETTLED: Duration = Duration::from_secs(20);

/// The service account of every collector.
pub(super) const SERVICE_ACCOUNT: &str = "retsu-collector";

/// What the collector is allowed: verb and resource.
pub(crate) const GRANTED: [(&str, &str); 6] = [
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("patch", "pods"),
    ("create", "events"),
    ("patch", "events"),
];

/// A namespace of its own on an API server, with a service account that has the rights of the collector and no
/// others. When its test fails, the end of the API server's log is printed.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: Arc<ApiServer>,
    namespace: String,
    granted: Mutex<BTreeSet<(String, String)>>,
    /// Tokens and kubeconfigs.
    pub(super) files: TempDir,
}

impl Cluster {
    /// On the API server that all tests share.
    pub(crate) async fn new() -> Self {
        Self::on(ApiServer::shared().await).await
    }

    /// On a given API server.
    pub(crate) async fn on(server: Arc<ApiServer>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let namespace = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let granted = GRANTED.map(|(verb, resource)| (verb.to_owned(), resource.to_owned())).into();
        let files = tempfile::tempdir().unwrap();
        let cluster = Self { server, namespace, granted: Mutex::new(granted), files };
        let client = cluster.admin().await;
        let name = json!({"name": SERVICE_ACCOUNT});
        create(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": cluster.namespace}})).await;
        create(&cluster.api::<ServiceAccount>(&client), json!({"metadata": name})).await;
        create(&cluster.api::<Role>(&client), json!({"metadata": name, "rules": cluster.rules()})).await;
        let binding = json!({
            "metadata": name,
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SERVICE_ACCOUNT},
        });
        create(&cluster.api::<RoleBinding>(&client), binding).await;
        for (verb, resource) in GRANTED {
            cluster.wait_until_authorized(verb, resource, true).await;
        }
        cluster
    }

    /// Its API server.
    pub(crate) fn server(&self) -> &Arc<ApiServer> {
        &self.server
    }

    /// Its name, unique in this process.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client that may do anything. It belongs to the runtime it is made on.
    pub(crate) async fn admin(&self) -> Client {
        self.server.admin().await
    }

    /// The Pods of the namespace, for somebody who may do anything.
    pub(crate) async fn pods(&self) -> Api<Pod> {
        self.api(&self.admin().await)
    }

    /// The objects of one kind in the namespace.
    pub(crate) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Takes a verb on `pods` or `events` away from the collectors, and waits until it is refused.
    pub(crate) async fn revoke(&self, verb: &str, resource: &str) {
        let taken = self.granted.lock().unwrap().remove(&(verb.to_owned(), resource.to_owned()));
        assert!(taken, "{verb} {resource} is not granted");
        self.write_role().await;
        self.wait_until_authorized(verb, resource, false).await;
    }

    /// Gives a verb back after [`revoke`](Self::revoke), or one that no collector needs, and waits until it is allowed.
    pub(crate) async fn grant(&self, verb: &str, resource: &str) {
        self.granted.lock().unwrap().insert((verb.to_owned(), resource.to_owned()));
        self.write_role().await;
        self.wait_until_authorized(verb, resource, true).await;
    }

    async fn write_role(&self) {
        let roles: Api<Role> = self.api(&self.admin().await);
        let patch = Patch::Merge(json!({"rules": self.rules()}));
        roles.patch(SERVICE_ACCOUNT, &PatchParams::default(), &patch).await.unwrap();
    }

    fn rules(&self) -> Vec<Value> {
        let granted = self.granted.lock().unwrap();
        let rule = |(verb, resource): &(String, String)| json!({"apiGroups": [group(resource)], "resources": [resource], "verbs": [verb]});
        granted.iter().map(rule).collect()
    }

    async fn wait_until_authorized(&self, verb: &str, resource: &str, allowed: bool) {
        let reviews: Api<SubjectAccessReview> = Api::all(self.admin().await);
        let review = json!({"spec": {
            "user": self.user(),
            "resourceAttributes": {
                "namespace": self.namespace,
                "verb": verb,
                "group": group(resource),
                "resource": resource.split('/').next(),
                "subresource": resource.split('/').nth(1),
            },
        }});
        let what = format!("{verb} {resource} is {}", if allowed { "allowed" } else { "refused" });
        eventually(SETTLED, &what, async || {
            create(&reviews, review.clone()).await.status.is_some_and(|status| status.allowed == allowed)
        })
        .await;
    }

    /// The user name of the service account.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{SERVICE_ACCOUNT}", self.namespace)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server.explain();
    }
}

/// Applies an object without keeping it; a field that the API server does not know is an error.
pub(crate) fn strict_dry_run() -> PatchParams {
    PatchParams {
        dry_run: true,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("test").force()
    }
}

/// Creates an object of its JSON.
pub(super) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

fn group(resource: &str) -> &'static str {
    match resource {
        "events" => "events.k8s.io",
        "endpointslices" => "discovery.k8s.io",
        _ => "",
    }
}
