//! Pods, and what a kubelet, a controller or a hand does to them.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod, PodCondition,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Cluster;
use super::cluster::SERVICE_ACCOUNT;

/// The container that is the collector.
pub(crate) const CONTAINER: &str = "retsu-collector";

/// What selects the Pods of one instance.
pub(crate) const INSTANCE_SELECTOR: &str = "app.kubernetes.io/name=retsu-collector,app.kubernetes.io/instance=retsu";

impl Cluster {
    /// Creates a Pod of the instance that runs and is ready.
    pub(crate) async fn pod(&self, name: &str) -> Pod {
        self.pod_with(name, |_| {}).await
    }

    /// Creates a Pod after `change`, for example with further labels or containers. All its containers run.
    pub(crate) async fn pod_with(&self, name: &str, change: impl FnOnce(&mut Pod)) -> Pod {
        let mut pod = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/name": "retsu-collector", "app.kubernetes.io/instance": "retsu"},
            },
            "spec": {
                "serviceAccountName": SERVICE_ACCOUNT,
                // Deletion of a Pod without a node does not wait for a kubelet.
                "nodeName": "node",
                "containers": [{"name": CONTAINER, "image": CONTAINER}],
            },
        }))
        .unwrap();
        change(&mut pod);
        let pod = self.pods().await.create(&PostParams::default(), &pod).await.unwrap();
        let spec = pod.spec.unwrap();
        let condition = |kind: &str| PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(now()),
            ..PodCondition::default()
        };
        let status = PodStatus {
            phase: Some("Running".to_owned()),
            start_time: Some(now()),
            conditions: Some(["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition).into()),
            container_statuses: Some(spec.containers.iter().map(started).collect()),
            init_container_statuses: spec.init_containers.map(|containers| containers.iter().map(started).collect()),
            ..PodStatus::default()
        };
        self.write_status(name, &status).await
    }

    /// Creates a Pod that is of no instance, to see what the API server does with one, and returns its name.
    pub(super) async fn probe(&self) -> String {
        self.pod_with("probe", |pod| pod.metadata.labels = None).await.metadata.name.unwrap()
    }

    /// A Pod as it is now, when it exists.
    pub(crate) async fn get(&self, name: &str) -> Option<Pod> {
        self.pods().await.get_opt(name).await.unwrap()
    }

    /// The collector's container in a Pod as it is now.
    pub(crate) async fn container(&self, name: &str) -> ContainerStatus {
        let status = self.get(name).await.unwrap().status.unwrap();
        let mut all = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
        all.find(|container| container.name == CONTAINER).unwrap()
    }

    /// Writes that the collector's container has ended, as the kubelet does before it starts the next.
    pub(crate) async fn terminate(&self, name: &str) -> Pod {
        self.update_container(name, |container| {
            container.state = Some(terminated(container));
            container.ready = false;
            container.started = Some(false);
        })
        .await
    }

    /// Writes that the collector's container has ended, if that was not written, and that another runs in its place.
    pub(crate) async fn restart_container(&self, name: &str) -> Pod {
        self.update_container(name, |container| {
            container.last_state = Some(terminated(container));
            container.restart_count += 1;
            run(container);
        })
        .await
    }

    /// Writes that the collector's container, if it runs, does so since now: a kubelet tells of a start after it.
    pub(crate) async fn report_start(&self, name: &str) -> Pod {
        self.update_container(name, |container| {
            if let Some(running) = container.state.as_mut().and_then(|state| state.running.as_mut()) {
                running.started_at = Some(now());
            }
        })
        .await
    }

    /// Writes a status, such as a phase, over that of a Pod.
    pub(crate) async fn merge_status(&self, name: &str, status: Value) -> Pod {
        let patch = Patch::Merge(json!({"status": status}));
        self.pods().await.patch_status(name, &PatchParams::default(), &patch).await.unwrap()
    }

    /// Deletes a Pod. With `force` it is gone at once; otherwise it stays, with a deletion timestamp, until a second
    /// call with `force`, as its kubelet makes one.
    pub(crate) async fn delete(&self, name: &str, force: bool) {
        let params = if force { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        self.pods().await.delete(name, &params).await.unwrap();
    }

    /// Sets or removes a label, with nothing but its key as the reason.
    pub(crate) async fn set_label(&self, name: &str, key: &str, value: Option<&str>) -> Pod {
        self.merge(name, json!({"metadata": {"labels": {key: value}}})).await
    }

    /// Sets or removes an annotation.
    pub(crate) async fn set_annotation(&self, name: &str, key: &str, value: Option<&str>) -> Pod {
        self.merge(name, json!({"metadata": {"annotations": {key: value}}})).await
    }

    async fn merge(&self, name: &str, patch: Value) -> Pod {
        self.pods().await.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    pub(crate) async fn update_container(&self, name: &str, update: impl FnOnce(&mut ContainerStatus)) -> Pod {
        let mut status = self.get(name).await.unwrap().status.unwrap();
        let lists = [&mut status.init_container_statuses, &mut status.container_statuses];
        let container = lists.into_iter().flatten().flatten().find(|container| container.name == CONTAINER);
        update(container.unwrap());
        self.write_status(name, &status).await
    }

    async fn write_status(&self, name: &str, status: &PodStatus) -> Pod {
        let patch = Patch::Merge(json!({"status": status}));
        self.pods().await.patch_status(name, &PatchParams::default(), &patch).await.unwrap()
    }
}

fn started(container: &Container) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        image_id: "sha256:0".to_owned(),
        ..ContainerStatus::default()
    };
    run(&mut status);
    status
}

fn run(container: &mut ContainerStatus) {
    let running = ContainerStateRunning { started_at: Some(now()) };
    container.container_id =
        Some(format!("containerd://{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()));
    container.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
    container.ready = true;
    container.started = Some(true);
}

/// The end of a container, now or when it was.
fn terminated(container: &ContainerStatus) -> ContainerState {
    let state = container.state.clone().unwrap();
    let terminated = state.terminated.unwrap_or_else(|| ContainerStateTerminated {
        container_id: container.container_id.clone(),
        exit_code: 137,
        reason: Some("Error".to_owned()),
        started_at: state.running.and_then(|running| running.started_at),
        finished_at: Some(now()),
        ..ContainerStateTerminated::default()
    });
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn now() -> Time {
    Time(Timestamp::now())
}
