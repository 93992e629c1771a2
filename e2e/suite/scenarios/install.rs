//! The first steps of a user: the chart with its defaults, and `manifests/` without Helm.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use sqlx::Row;

use crate::command::run;
use crate::postgresql::Server;
use crate::release::{Release, exposition, exposition_at, image};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// From a change of the queues to gauges that tell of it: the collection interval of the chart's defaults, and a slow
/// machine.
const REFRESHED: Duration = Duration::from_secs(25);

/// From a change of label or state to what controllers and Events say of it.
const TOLD: Duration = Duration::from_secs(15);

/// For how long a standby is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// Messages of every kind that is counted apart: waiting, expired, leased, with a lease that has elapsed, and the last
/// of these when no attempt is left.
const MESSAGES: &str = "
    INSERT INTO queue_message (queue_id, payload, priority, state, enqueued_at, expires_at, delivery_attempts,
        receipt_handle, available_after, last_delivered_at)
    SELECT queue.id, 'payload', message.priority, CASE WHEN attempts > 0 THEN 'IN_FLIGHT' ELSE 'READY' END,
        now() - interval '2 hours', now() + expires, attempts, CASE WHEN attempts > 0 THEN gen_random_uuid() END,
        CASE WHEN attempts > 0 THEN now() + lease ELSE now() - interval '2 hours' END,
        CASE WHEN attempts > 0 THEN now() - interval '90 minutes' END
    FROM queue, LATERAL (VALUES
        (3, 4, interval '1 day', 0, interval '0'),
        (3, 2, interval '-1 hour', 0, interval '0'),
        (2, 3, interval '1 day', 1, interval '1 hour'),
        (2, 1, interval '1 day', 1, interval '-1 hour'),
        (1, 1, interval '1 day', max_delivery_attempts, interval '-1 hour')
    ) AS message (priority, number, expires, attempts, lease), generate_series(1, number)
    WHERE queue.name = 'emails'";

/// What the gauges have to say, by plain counting.
const COUNTS: &str = "
    SELECT queue.name, label,
        count(*) FILTER (WHERE expires_at > now()
            AND (state = 'READY' OR (available_after <= now() AND delivery_attempts < max_delivery_attempts))),
        count(*) FILTER (WHERE state = 'IN_FLIGHT' AND available_after > now())
    FROM queue CROSS JOIN (VALUES (3, 'HIGH'), (2, 'MEDIUM'), (1, 'LOW')) AS priorities (priority, label)
    LEFT JOIN queue_message ON queue_id = queue.id AND queue_message.priority = priorities.priority
    GROUP BY queue.name, label";

/// `helm install` with an image and a Secret, `helm test`, and what there is to see then.
pub(crate) async fn the_chart_is_installed_with_its_defaults(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    let (release, notes) = Release::install_with_defaults(&stage).await;
    let command = format!("helm -n {} test {}", stage.namespace, release.name());
    assert!(notes.contains(&command), "the notes do not say `{command}`: {notes}");
    let leader = release.settled(&server).await;
    let tested = release.test().await;
    for line in [format!("one endpoint, {}", leader.name), "the leader alone exports, of replicas: 2".to_owned()] {
        assert!(tested.contains(&line), "`helm test` does not say `{line}`: {tested}");
    }
    let standbys: Vec<_> = release.replicas().into_iter().filter(|replica| replica.name != leader.name).collect();
    let [standby] = &standbys[..] else { panic!("there is another number of standbys than one: {standbys:?}") };
    assert!(standby.ready && standby.role.as_deref() == Some("standby"), "{standby:?}");

    server.execute(MESSAGES).await;
    let counted = counted(&server).await;
    assert!(counted.values().any(|(ready, _)| *ready == 4), "no message is counted: {counted:?}");
    let mut exported = BTreeMap::new();
    let cluster_ip = release.cluster_ip().await;
    for (who, address) in [("the leader", None), ("the ClusterIP", Some(cluster_ip))] {
        eventually(REFRESHED, &format!("{who} exports {counted:?}"), async || {
            let text = address.map_or_else(|| exposition(&leader), exposition_at);
            exported = text.as_deref().map(gauges).unwrap_or_default();
            exported == counted
        })
        .await;
    }

    let budgets = stage.cluster.api::<PodDisruptionBudget>(&stage.namespace);
    eventually(TOLD, "the budget allows a disruption", async || {
        let budget = budgets.get(&release.fullname()).await.unwrap();
        budget.status.is_some_and(|status| status.disruptions_allowed >= 1)
    })
    .await;
    eventually(TOLD, "an Event tells of the leader", async || release.tells_of_its_term(&leader).await).await;
    standby_exports_no_state(standby).await;
    let of_standby = release.events_of(&standby.name).await;
    assert!(of_standby.iter().all(|(reason, _)| !reason.starts_with("Leadership")), "{of_standby:?}");
}

/// `kubectl apply -k` of an overlay beside the example, with its namespace and image.
pub(crate) async fn the_manifests_are_applied_with_an_overlay(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let copy = tempfile::tempdir().unwrap();
    run(tokio::process::Command::new("cp").arg("-r").arg(&source).arg(copy.path())).await.unwrap();
    let overlay = copy.path().join("manifests/examples/overlay");
    let (repository, tag) = image();
    let mut text = std::fs::read_to_string(overlay.join("kustomization.yaml")).unwrap();
    for (theirs, ours) in [
        ("namespace: queues", format!("namespace: {}", stage.namespace)),
        ("newName: registry.example.com/retsu-collector", format!("newName: {repository}\n    newTag: \"{tag}\"")),
    ] {
        assert!(text.contains(theirs), "the overlay has no `{theirs}`: {text}");
        text = text.replace(theirs, &ours);
    }
    std::fs::write(overlay.join("kustomization.yaml"), text).unwrap();
    let release = Release::of_manifests(&stage);
    release.kubectl(&["apply", "--kustomize", overlay.to_str().unwrap()]).await;
    let leader = release.settled(&server).await;
    assert_eq!(release.replicas().len(), 3, "the overlay asks for three replicas");
    eventually(TOLD, "an Event tells of the leader", async || release.tells_of_its_term(&leader).await).await;
}

/// A replica that has never led has none of the families of the queues.
async fn standby_exports_no_state(standby: &Replica) {
    let mut answers = 0;
    throughout(WATCHED, "the standby exports nothing of a queue", async || {
        // One that is late says nothing.
        let Some(text) = exposition(standby) else { return true };
        answers += 1;
        text.lines().all(|line| !line.starts_with("queue_") && !line.starts_with("# TYPE queue_"))
    })
    .await;
    assert!(answers > 0, "the standby has not answered");
}

/// Ready and in flight, by queue and priority.
type Counts = BTreeMap<(String, String), (i64, i64)>;

async fn counted(server: &Server) -> Counts {
    let mut connection = server.connect().await;
    let rows = sqlx::query(COUNTS).fetch_all(&mut connection).await.unwrap();
    rows.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3)))).collect()
}

fn gauges(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Some((family, labels)) = series.split_once('{') else { continue };
        let mut labels = labels.split('"');
        let (Some(queue), Some(priority)) = (labels.nth(1), labels.nth(1)) else { continue };
        let entry = counts.entry((queue.to_owned(), priority.to_owned()));
        match family {
            "queue_messages_ready" => entry.or_default().0 = value.parse().unwrap(),
            "queue_messages_in_flight" => entry.or_default().1 = value.parse().unwrap(),
            _ => {}
        }
    }
    counts
}
