//! What is asked of the API about Pods, and how.

use futures_util::Stream;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::ObjectList;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use serde::de::Error as _;
use serde_json::Value;

use super::calls::Calls;
use super::changes;
use super::request_error::RequestError;

/// The name under which the server notes what this program has written.
pub(super) const FIELD_MANAGER: &str = "retsu-collector";

const PODS: &str = "pods";

/// How long the server keeps a watch open.
pub(super) const WATCH_SECONDS: u32 = 60;

/// Requests about the Pods of one namespace that a selector matches. Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    pods: Api<Pod>,
    selector: String,
    calls: Calls,
}

impl Requests {
    /// The Pods of `namespace` that the label selector `selector` matches.
    pub(super) fn new(client: Client, namespace: &str, selector: &str, calls: Calls) -> Self {
        Self { pods: Api::namespaced(client, namespace), selector: selector.to_owned(), calls }
    }

    /// The Pod `name` as it is now, whether the selector matches it or not.
    ///
    /// # Errors
    ///
    /// Any [`RequestError`].
    pub(super) async fn get(&self, name: &str) -> Result<Pod, RequestError> {
        self.calls.run("get", PODS, whole(self.pods.get(name))).await
    }

    /// The Pods as they are now, not older than the request, with the resourceVersion of the list.
    ///
    /// # Errors
    ///
    /// Any [`RequestError`].
    pub(super) async fn list(&self) -> Result<ObjectList<Pod>, RequestError> {
        let parameters = ListParams::default().labels(&self.selector);
        self.calls.run("list", PODS, self.pods.list(&parameters)).await
    }

    /// Applies a JSON merge patch to the Pod `name`. Returns the Pod as it is then.
    ///
    /// # Errors
    ///
    /// Any [`RequestError`]; of the preconditions `metadata.uid` and `metadata.resourceVersion` see its kinds.
    pub(super) async fn merge(&self, name: &str, patch: &Value) -> Result<Pod, RequestError> {
        self.patch(name, &Patch::Merge(patch)).await
    }

    /// Applies a JSON patch, an array of operations, to the Pod `name`. Returns the Pod as it is then.
    ///
    /// # Errors
    ///
    /// Any [`RequestError`]; it is `invalid` when a `test` does not hold.
    pub(super) async fn json_patch(&self, name: &str, operations: Value) -> Result<Pod, RequestError> {
        let operations = serde_json::from_value(operations).map_err(kube::Error::SerdeError);
        let request = async { self.pods.patch(name, &manager(), &Patch::Json::<()>(operations?)).await };
        self.calls.run("patch", PODS, whole(request)).await
    }

    async fn patch(&self, name: &str, patch: &Patch<&Value>) -> Result<Pod, RequestError> {
        self.calls.run("patch", PODS, whole(self.pods.patch(name, &manager(), patch))).await
    }

    /// The Pods and every change of them, without end: a list, then what happens after it, and again from the list
    /// when that is lost. After an error the stream goes on by itself, a little later.
    pub(super) fn watch(&self) -> impl Stream<Item = Result<Event<Pod>, RequestError>> + Send + use<> {
        changes::of(self.clone())
    }

    /// Watches from `version` on, for [`WATCH_SECONDS`] at most.
    pub(super) async fn watch_from(
        &self,
        version: &str,
    ) -> Result<BoxStream<'static, kube::Result<WatchEvent<Pod>>>, RequestError> {
        let parameters = WatchParams::default().labels(&self.selector).timeout(WATCH_SECONDS);
        let events = self.calls.run("watch", PODS, self.pods.watch(&parameters, version)).await?;
        Ok(events.boxed())
    }

    /// A watch that had begun well has ended with `error`.
    pub(super) fn watch_failed(&self, error: &kube::Error) -> RequestError {
        let error = RequestError::new("watch", PODS, error);
        self.calls.failed(&error);
        error
    }

    /// The list that was read has no version to watch from.
    pub(super) fn unversioned(&self) -> RequestError {
        let error = RequestError::unreadable("list", PODS, "the list has no resourceVersion");
        self.calls.failed(&error);
        error
    }
}

/// The answer to `request`. Any JSON object can be read as a Pod; one without a uid is none of the API server's, and
/// says nothing of the Pod.
async fn whole(request: impl Future<Output = kube::Result<Pod>>) -> kube::Result<Pod> {
    let pod = request.await?;
    if pod.metadata.uid.is_some() {
        Ok(pod)
    } else {
        Err(kube::Error::SerdeError(serde_json::Error::custom("a Pod without a uid")))
    }
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}
