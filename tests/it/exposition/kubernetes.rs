//! The metrics of Kubernetes, and those of a replica that elects only.

use std::collections::HashSet;
use std::sync::Arc;

use retsu_collector::election::{Role, Status, Term};
use retsu_collector::exposition::{Agreement, KubernetesMetrics, Publication};

use super::{Replica, check, metrics, types};

/// All that can be seen of Kubernetes at once.
pub(super) fn see_everything(kubernetes: &KubernetesMetrics) {
    kubernetes.request("patch", "pods", "ok");
    kubernetes.denied(&[("create", "events")]);
    kubernetes.leader_label(Some(true));
    kubernetes.agreement(Some(Agreement::One));
}

#[test]
fn the_families_of_kubernetes_are_pinned_and_absent_without_it() {
    let (replica, kubernetes) = Replica::in_kubernetes();
    see_everything(&kubernetes);
    check(&replica);
    let (text, without) = (replica.text(), Replica::new().text());
    let lines: String = text.lines().filter(|line| !without.contains(line)).map(|line| format!("{line}\n")).collect();
    insta::assert_snapshot!("kubernetes", lines);
    let replica = Replica::new();
    let families = |text: &str| -> HashSet<String> { types(text).map(|(family, _)| family.to_owned()).collect() };
    let (with, without) = (families(&text), families(&replica.text()));
    assert!(with.is_superset(&without) && with.len() == without.len() + 7, "{with:?}");
}

#[test]
fn what_is_not_known_of_kubernetes_is_absent_and_the_rest_begins_with_0() {
    let (replica, kubernetes) = Replica::in_kubernetes();
    let begin = replica.text();
    for line in [
        "label_repairs_total{to=\"leader\"} 0",
        "label_repairs_total{to=\"standby\"} 0",
        "label_sweeps_total 0",
        "events_dropped_total 0",
    ] {
        assert!(begin.contains(&format!("\nretsu_collector_{line}\n")), "{line} is not in\n{begin}");
    }
    let unknown = ["leader_label", "label_agreement", "kubernetes_denied_info"];
    let is_unknown = |text: &str| unknown.iter().all(|name| !text.contains(&format!("retsu_collector_{name}")));
    assert!(is_unknown(&begin), "{begin}");
    see_everything(&kubernetes);
    kubernetes.denied(&[("patch", "pods"), ("watch", "pods")]);
    kubernetes.agreement(Some(Agreement::Wrong));
    let seen = replica.text();
    for line in [
        "leader_label 1",
        "label_agreement{state=\"none\"} 0",
        "label_agreement{state=\"one\"} 0",
        "label_agreement{state=\"two\"} 0",
        "label_agreement{state=\"wrong\"} 1",
        "kubernetes_denied_info{resource=\"pods\",verb=\"patch\"} 1",
        "kubernetes_denied_info{resource=\"pods\",verb=\"watch\"} 1",
    ] {
        assert!(seen.contains(&format!("\nretsu_collector_{line}\n")), "{line} is not in\n{seen}");
    }
    assert!(!seen.contains("resource=\"events\""), "what is permitted again is not listed:\n{seen}");
    kubernetes.leader_label(None);
    kubernetes.agreement(None);
    kubernetes.denied(&[]);
    assert!(is_unknown(&replica.text()), "{}", replica.text());
}

#[test]
fn a_replica_that_elects_only_has_no_family_of_queue_state_whatever_happens() {
    let metrics = Arc::new(metrics().without_collection());
    let replica = Replica { metrics, publication: Publication::default() };
    let status = Status {
        role: Role::Leader,
        tenure: Some(crate::support::tenure(Term { timeline: 1, number: 7 })),
        ..Status::starting()
    };
    let steps: [&dyn Fn(); 4] =
        [&|| {}, &|| replica.metrics.role(&status), &|| replica.publication.withdraw_failed(), &|| {
            replica.publication.withdraw()
        }];
    for step in steps {
        step();
        check(&replica);
        let text = replica.text();
        assert!(!text.contains("queue_") && !text.contains("last_refresh") && !text.contains("exposition_"), "{text}");
        assert!(!text.contains("retsu_collector_refresh"), "{text}");
    }
}
