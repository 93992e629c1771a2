//! Follows the watch, and notices when the leader's place seems to be free.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::pod::PodState;
use super::requests::Requests;
use super::view::View;
use crate::config::KubernetesSettings;

/// The one watch of this process.
pub(super) struct Watch {
    pub(super) settings: Arc<KubernetesSettings>,
    pub(super) requests: Requests,
    pub(super) view: watch::Sender<View>,
    pub(super) vacancies: watch::Sender<u64>,
}

impl Watch {
    /// Runs until `stop` is cancelled.
    pub(super) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(self) {
        let uid = &self.settings.pod.uid;
        let mut selected = true;
        let mut events = pin!(self.requests.watch());
        while let Some(event) = events.next().await {
            let Ok(event) = event else {
                self.view.send_if_modified(View::interrupted);
                continue;
            };
            let (event, listed) = (self.trimmed(&event), matches!(event, Event::InitDone));
            let mut vacant = false;
            self.view.send_modify(|view| {
                let before = view.clone();
                view.apply(event);
                vacant = view.has_vacancy_since(&before, uid);
            });
            if vacant {
                self.vacancies.send_modify(|count| *count += 1);
            }
            if listed && std::mem::replace(&mut selected, self.view.borrow().pod(uid).is_some()) && !selected {
                tracing::warn!(
                    selector = self.settings.instance_selector,
                    pod = self.settings.pod.name,
                    "kubernetes.instance_selector does not select the Pod of this process"
                );
            }
        }
    }

    fn trimmed(&self, event: &Event<Pod>) -> Event<PodState> {
        let trim = |pod| PodState::of(pod, &self.settings);
        match event {
            Event::Apply(pod) => Event::Apply(trim(pod)),
            Event::Delete(pod) => Event::Delete(trim(pod)),
            Event::Init => Event::Init,
            Event::InitApply(pod) => Event::InitApply(trim(pod)),
            Event::InitDone => Event::InitDone,
        }
    }
}
