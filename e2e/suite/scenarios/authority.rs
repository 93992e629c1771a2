//! Who may write labels: permissions that are taken away, labels that somebody else writes, and a token that was stolen.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use retsu_collector::election::Fault;
use serde_json::{Value, json};

use super::takeovers::NEXT;
use crate::postgresql::Server;
use crate::recording::Recording;
use crate::release::{Release, answered, exposition, read, says, value};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::{ROLE, Replica};

/// From a change of what is permitted to its effect on everybody; a request that is refused is tried again after 4 s.
const PERMITTED: Duration = Duration::from_secs(30);

/// From a change of a label to its repair. That takes a proof of the lease and a patch.
const REPAIRED: Duration = Duration::from_secs(10);

/// For how long a leader without permissions is looked at.
const DENIED: Duration = Duration::from_secs(15);

/// How often a replica set its own label to the leader's again.
const REPAIRS_TO_LEADER: &str = "retsu_collector_label_repairs_total{to=\"leader\"} ";

/// The same, to a standby's.
const REPAIRS_TO_STANDBY: &str = "retsu_collector_label_repairs_total{to=\"standby\"} ";

/// First `patch` of Pods is taken away, then everything, with a hand-over each time; then all is given back.
pub(crate) async fn without_its_permissions_it_leads_and_exports_unlabelled(stage: Arc<Stage>) {
    const WITHOUT_PATCH: &str = "the leader's Pod is deleted, without `patch` of Pods";
    const WITHOUT_ANY: &str = "the leader's Pod is deleted, without any permission";
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let name = release.fullname();
    let roles = stage.cluster.api::<Role>(&stage.namespace);
    let bindings = stage.cluster.api::<RoleBinding>(&stage.namespace);
    let (mut role, mut binding) = (roles.get(&name).await.unwrap(), bindings.get(&name).await.unwrap());
    let recording = release.record().await;

    let leader = release.settled(&server).await;
    roles.replace(&name, &PostParams::default(), &without_patch_of_pods(&role)).await.unwrap();
    permitted(&release, "patch", "pods", false).await;
    let leader = hand_over(&stage, &release, &recording, WITHOUT_PATCH, &leader.name).await;
    eventually(PERMITTED, "the new leader says that its label is denied", async || {
        let label = says(&leader).await.map(|says| says["label"].clone()).unwrap_or_default();
        label["state"] == "denied" && label["denied"] == json!({"verb": "patch", "resource": "pods"})
    })
    .await;
    eventually(PERMITTED, "an Event says what is denied", async || {
        let mut events = release.events_of(&leader.name).await.into_iter();
        events.any(|(reason, note)| reason == "LabelDenied" && note.contains("patch pods"))
    })
    .await;
    eventually(PERMITTED, "the leader Service leads nowhere", async || {
        release.labelled().is_empty() && stage.watched.seen().endpoints_of(&release.leader_service()).is_empty()
    })
    .await;

    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    permitted(&release, "list", "pods", false).await;
    recording.fault("no permission is left", Duration::ZERO);
    // That it exports all the time is told by the checker: a scrape that is late is no gap.
    throughout(DENIED, "nobody else leads", async || recording.exporting().iter().all(|name| *name == leader.name))
        .await;
    let leader = hand_over(&stage, &release, &recording, WITHOUT_ANY, &leader.name).await;

    recording.fault("the permissions are given back", Duration::ZERO);
    role.metadata.resource_version = None;
    roles.replace(&name, &PostParams::default(), &role).await.unwrap();
    binding.metadata.resource_version = None;
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    assert_eq!(release.settled(&server).await.name, leader.name);
    eventually(PERMITTED, "nothing is denied", async || {
        let replicas = release.replicas();
        let mut expositions = replicas.iter().map(exposition);
        expositions.all(|text| text.is_some_and(|text| !text.contains("\nretsu_collector_kubernetes_denied_info{")))
    })
    .await;

    let recorded = recording.finish();
    recorded.assert_kept();
    for fault in [WITHOUT_PATCH, WITHOUT_ANY] {
        stage.report.lock().unwrap().add(fault, recorded.takeovers(fault));
    }
}

/// The leader's label is taken away, a standby is given it, and then both at once; the gauges go on through all of it.
pub(crate) async fn labels_edited_by_hand_are_set_right(stage: Arc<Stage>) {
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({"replicaCount": 3})).await;
    let leader = release.settled(&server).await;
    let standbys: Vec<_> = release.replicas().into_iter().filter(|replica| replica.name != leader.name).collect();
    let [first, second] = &standbys[..] else { panic!("{standbys:?}") };
    let recording = release.record().await;
    let edits: [(&str, &[(&Replica, Value)]); 4] = [
        ("the leader's label is taken away", &[(&leader, Value::Null)]),
        ("the leader's label says standby", &[(&leader, json!("standby"))]),
        ("a standby is labelled leader", &[(first, json!("leader"))]),
        (
            "only the standbys are labelled leader",
            &[(&leader, Value::Null), (first, json!("leader")), (second, json!("leader"))],
        ),
    ];
    let pods = stage.cluster.api::<Pod>(&stage.namespace);
    for (edit, labels) in edits {
        let counts =
            || -> Option<Vec<_>> { labels.iter().map(|(replica, _)| set_right(&release, replica, &leader)).collect() };
        let before = answered(&format!("{edit}: how often each was set right so far"), counts).await;
        recording.fault(edit, Duration::ZERO);
        for (replica, label) in labels {
            pods.patch(&replica.name, &PatchParams::default(), &labelled(label)).await.unwrap();
        }
        eventually(REPAIRED, &format!("{edit}: it is counted that each is set right"), async || {
            counts().is_some_and(|now| now.iter().zip(&before).all(|(now, before)| now > before))
        })
        .await;
        assert_eq!(release.settled_within(&server, REPAIRED).await.name, leader.name, "{edit}");
        eventually(REPAIRED, &format!("{edit}: the others are standbys"), async || {
            let roles = standbys.iter().filter_map(|standby| release.replica(&standby.name)?.role);
            roles.eq(["standby", "standby"])
        })
        .await;
    }
    eventually(REPAIRED, "every replica sees that lock and label agree", async || {
        let replicas = release.replicas();
        let one = "retsu_collector_label_agreement{state=\"one\"}";
        replicas.iter().all(|replica| value(replica, one) == Some(1.0))
    })
    .await;
    recording.finish().assert_kept();
}

/// With the token of one replica, and with the admission policy, what the collector itself does is permitted and
/// nothing else; and with the policy, a hand-over is as quick as without.
pub(crate) async fn a_stolen_token_gives_no_role_to_another_pod(stage: Arc<Stage>) {
    const FAULT: &str = "the leader's Pod is deleted, with the admission policy";
    let server = Server::start(&stage).await;
    let values = json!({"replicaCount": 3, "admissionPolicy": {"enabled": true}});
    let release = Release::install(&stage, &server, values).await;
    let leader = release.settled(&server).await;
    let standbys: Vec<_> = release.replicas().into_iter().filter(|replica| replica.name != leader.name).collect();
    let [own, other] = &standbys[..] else { panic!("{standbys:?}") };
    let stolen = pods_with(&stage, &token(&release, Some(own)).await).await;
    let unbound = pods_with(&stage, &token(&release, None).await).await;
    let (leads, rehearsed) = (labelled(&json!("leader")), PatchParams::default().dry_run());
    eventually(PERMITTED, "the policy is in force", async || {
        matches!(stolen.patch(&other.name, &rehearsed, &leads).await, Err(kube::Error::Api(status)) if status.code == 403)
    })
    .await;

    let recording = release.record().await;
    recording.fault("a stolen token is tried", Duration::ZERO);
    let (other, own) = (&*other.name, &*own.name);
    let annotated = |key: &str| json!({"metadata": {"annotations": {key: "{}"}}});
    let annotation = "retsu.io/collector-term";
    let image = json!({"spec": {"containers": [{"name": "retsu-collector", "image": "another"}]}});
    let refused = [
        (&stolen, other, json!({"metadata": {"labels": {ROLE: "leader"}}}), "gives no role to Pod"),
        (&stolen, other, json!({"metadata": {"labels": {ROLE: null}}}), "gives no role to Pod"),
        (&stolen, other, annotated(annotation), "may remove the annotations of Pod"),
        (&stolen, own, json!({"metadata": {"labels": {ROLE: "king"}}}), "is no role of a collector"),
        (
            &stolen,
            own,
            json!({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}),
            "does not change the labels",
        ),
        (&stolen, own, annotated("example.com/any"), "does not change the annotations"),
        (&stolen, own, json!({"metadata": {"finalizers": ["example.com/any"]}}), "changes nothing of a Pod but"),
        (&stolen, own, image, "changes nothing of a Pod but"),
        (&stolen, "postgresql", json!({"metadata": {"labels": {ROLE: "leader"}}}), "is not of the instance retsu"),
        (&unbound, own, json!({"metadata": {"labels": {ROLE: "leader"}}}), "must be bound to its Pod"),
    ];
    for (pods, pod, patch, why) in refused {
        let answer = pods.patch(pod, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        let Err(kube::Error::Api(status)) = answer else { panic!("{patch} of {pod} is permitted") };
        assert_eq!(status.code, 403, "{patch} of {pod}: {status:?}");
        let policy = status.message.contains("ValidatingAdmissionPolicy 'retsu-collector.");
        assert!(policy && status.message.contains(why), "{patch} of {pod}: {status:?}");
    }
    // The own role is the process's, which sets it right again; and of a sibling the leader's label may be taken away.
    stolen.patch(own, &PatchParams::default(), &leads).await.unwrap();
    let before = read(&leader, REPAIRS_TO_LEADER).await;
    stolen.patch(&leader.name, &PatchParams::default(), &labelled(&Value::Null)).await.unwrap();
    eventually(REPAIRED, "the leader has its label again", async || value(&leader, REPAIRS_TO_LEADER) > Some(before))
        .await;
    assert_eq!(release.settled_within(&server, REPAIRED).await.name, leader.name);

    hand_over(&stage, &release, &recording, FAULT, &leader.name).await;
    release.settled(&server).await;
    let recorded = recording.finish();
    recorded.assert_kept();
    stage.report.lock().unwrap().add(FAULT, recorded.takeovers(FAULT));
    // The policy belongs to no namespace.
    release.helm(&["uninstall", release.name(), "--wait"]).await.unwrap();
}

/// Deletes the leader's Pod while every replica is ready, and waits for the next leader.
async fn hand_over(stage: &Stage, release: &Release, recording: &Recording, fault: &str, leader: &str) -> Replica {
    eventually(NEXT, "every replica is ready", async || {
        let replicas = release.replicas();
        replicas.len() >= 2 && replicas.iter().all(|replica| replica.ready)
    })
    .await;
    recording.fault(fault, release.bound(Fault::Graceful));
    stage.cluster.api::<Pod>(&stage.namespace).delete(leader, &DeleteParams::default()).await.unwrap();
    let mut next = None;
    eventually(NEXT, "another replica exports", async || {
        next = recording.exporting().into_iter().find(|name| name != leader);
        next.is_some() && release.replica(leader).is_none()
    })
    .await;
    release.replica(&next.unwrap()).unwrap()
}

/// How often the label of a replica was set right, by its own process or by the leader's sweep; `None` while one of those
/// who know does not answer.
fn set_right(release: &Release, replica: &Replica, leader: &Replica) -> Option<f64> {
    if replica.name == leader.name {
        return value(replica, REPAIRS_TO_LEADER);
    }
    Some(value(replica, REPAIRS_TO_STANDBY)? + sweeps(release)?)
}

fn sweeps(release: &Release) -> Option<f64> {
    release.replicas().iter().map(|replica| value(replica, "retsu_collector_label_sweeps_total ")).sum()
}

/// A patch of the role label.
fn labelled(role: &Value) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"labels": {ROLE: role}}}))
}

/// The Role, without the verb that labels are written with.
pub(crate) fn without_patch_of_pods(role: &Role) -> Role {
    let mut role = role.clone();
    let rules = role.rules.iter_mut().flatten();
    for rule in rules.filter(|rule| rule.resources.iter().flatten().any(|resource| resource == "pods")) {
        rule.verbs.retain(|verb| verb != "patch");
    }
    role
}

/// Waits until the API permits a verb to the release's service account, or does not.
pub(crate) async fn permitted(release: &Release, verb: &str, resource: &str, wanted: bool) {
    let account = account(release).await;
    eventually(PERMITTED, &format!("whether {verb} of {resource} is permitted: {wanted}"), async || {
        release.can(&account, verb, resource).await == Some(wanted)
    })
    .await;
}

/// The service account of the replicas.
async fn account(release: &Release) -> String {
    let deployment = format!("deployment/{}", release.fullname());
    release.kubectl(&["get", &deployment, "--output=jsonpath={.spec.template.spec.serviceAccountName}"]).await
}

/// A token of the replicas' service account, as a Pod's is, or bound to nothing.
async fn token(release: &Release, bound: Option<&Replica>) -> String {
    let account = account(release).await;
    let pod = bound.map(|pod| [format!("--bound-object-name={}", pod.name), format!("--bound-object-uid={}", pod.uid)]);
    let mut arguments = vec!["create", "token", &account];
    if let Some([name, uid]) = &pod {
        arguments.extend(["--bound-object-kind=Pod", name, uid]);
    }
    release.kubectl(&arguments).await.trim().to_owned()
}

/// The Pods of the namespace, for whoever has a token and nothing else.
async fn pods_with(stage: &Stage, token: &str) -> Api<Pod> {
    let kubeconfig = Kubeconfig::read_from(std::env::var_os("KUBECONFIG").unwrap()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    Api::namespaced(Client::try_from(config).unwrap(), &stage.namespace)
}
