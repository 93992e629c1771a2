//! Tells Kubernetes who leads. It has no vote: PostgreSQL decides, and nothing here is asked about it.
//!
//! ```text
//! election::Status ──▶ reconciler ──▶ patch of the own Pod ──▶ API ──▶ watch ──▶ view ──▶ witness ──▶ election
//!                          ▲                                                      │
//!                          └──────────────────────────────────────────────────────┘
//! ```

mod announcer;
mod backoff;
mod calls;
mod changes;
mod client;
mod denials;
mod events;
mod label;
mod note;
mod outage;
mod pod;
mod reconciler;
mod repairs;
mod report;
mod request_error;
mod requests;
mod retry_after;
mod rivals;
mod slices;
#[cfg(test)]
mod tests;
mod view;
mod watch;
mod witness;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch::{Receiver, Sender};
use tokio_util::sync::CancellationToken;

pub use client::ClientError;
pub use report::{LabelReport, LabelState, Permission};
pub(crate) use request_error::{RequestError, chain};
pub(crate) use slices::{SERVICE_NAME, Slices};

use self::announcer::Announcer;
use self::calls::Calls;
use self::client::Access;
use self::denials::Denials;
use self::events::Writer;
use self::label::Desired;
use self::reconciler::{Known, Reconciler};
use self::requests::Requests;
use self::view::View;
use self::watch::Watch;
use self::witness::{Told, Witness};
use crate::clock::process_started;
use crate::config::KubernetesSettings;
use crate::election::{Platform, Status};
use crate::exposition::KubernetesMetrics;
use crate::http::Serving;

/// How long the last events may take to be written.
const EVENTS_LIMIT: Duration = Duration::from_millis(500);

/// The cluster of this process: what follows its role, and what its election learns there.
pub struct Kubernetes {
    reconciler: Reconciler,
    watch: Watch,
    announcer: Announcer,
    writer: Writer,
    platform: Arc<Witness>,
    report: Receiver<LabelReport>,
}

impl Kubernetes {
    /// A process with these `settings` that follows `status`. Nothing is sent yet. To be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// The address of the API or the credentials are unusable.
    pub fn new(
        settings: KubernetesSettings,
        status: &Receiver<Status>,
        metrics: &Arc<KubernetesMetrics>,
        serving: Arc<Serving>,
    ) -> Result<Self, ClientError> {
        let settings = Arc::new(settings);
        let access = settings.kubeconfig.clone().map_or(Access::ServiceAccount, Access::Kubeconfig);
        let client = client::connect(&access, settings.request_timeout)?;
        let (denials, counted) = (Denials::new(), Arc::clone(metrics));
        let denied = denials.subscribe();
        let count = Arc::new(move |verb, resource, outcome| counted.request(verb, resource, outcome));
        let calls = Calls::new(settings.request_timeout, count, denials);
        let requests =
            Requests::new(client.clone(), &settings.pod.namespace, &settings.instance_selector, calls.clone());
        let dropped = Arc::clone(metrics);
        let (events, writer) =
            events::events(client, settings.pod.clone(), calls, Arc::new(move || dropped.event_dropped()));

        let (view, vacancies) = (Sender::new(View::default()), Sender::new(0));
        let (told, report) = (Sender::new(Told::default()), Sender::new(LabelReport::pending()));
        let platform = Witness {
            settings: Arc::clone(&settings),
            requests: requests.clone(),
            view: view.subscribe(),
            vacancies: vacancies.subscribe(),
            told: told.subscribe(),
            metrics: Arc::clone(metrics),
        };
        let reported = report.subscribe();
        let reconciler = Reconciler {
            settings: Arc::clone(&settings),
            requests: requests.clone(),
            status: status.clone(),
            view: view.subscribe(),
            report,
            told,
            metrics: Arc::clone(metrics),
            serving,
            started: process_started().unwrap_or_else(SystemTime::now),
            wanted: Desired::of(&status.borrow()),
            known: Known::default(),
        };
        let announcer = Announcer { status: status.clone(), denied, events, metrics: Arc::clone(metrics) };
        let watch = Watch { settings, requests, view, vacancies };
        Ok(Self { reconciler, watch, announcer, writer, platform: Arc::new(platform), report: reported })
    }

    /// What the election is to be told by and to tell.
    #[must_use]
    pub fn platform(&self) -> Arc<dyn Platform> {
        Arc::<Witness>::clone(&self.platform)
    }

    /// What is known of the label of the own Pod.
    #[must_use]
    pub fn report(&self) -> Receiver<LabelReport> {
        self.report.clone()
    }

    /// Follows the status until `stop` is cancelled, and writes the last events after that.
    pub async fn run(self, stop: CancellationToken) {
        let Self { reconciler, watch, announcer, writer, .. } = self;
        let told = CancellationToken::new();
        tokio::join!(
            reconciler.run(stop.clone()),
            Box::pin(watch.run(stop.clone())),
            // The last events are told before what writes them looks for the last time.
            async {
                announcer.run(stop).await;
                told.cancel();
            },
            Box::pin(writer.run(told.clone(), EVENTS_LIMIT)),
        );
    }
}
