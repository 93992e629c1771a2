//! The manifest of what this program may do.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde_json::Value;

const MANIFEST: &str = include_str!("../../../manifests/base/rbac.yaml");

/// The objects of the manifest.
fn objects() -> Vec<Value> {
    use serde::Deserialize;
    serde_yaml::Deserializer::from_str(MANIFEST).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The only object of a kind, every field of which is one that the type has.
fn only<T: DeserializeOwned + serde::Serialize>(kind: &str) -> T {
    let mut found: Vec<_> = objects().into_iter().filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    let object = found.remove(0);
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), object);
    typed
}

#[test]
fn the_role_permits_what_requests_need_and_nothing_else() {
    let role: Role = only("Role");
    let mut permitted = BTreeSet::new();
    for rule in role.rules.unwrap() {
        assert!(rule.resource_names.is_none() && rule.non_resource_urls.is_none(), "{rule:?}");
        for group in rule.api_groups.unwrap() {
            for resource in rule.resources.as_ref().unwrap() {
                permitted.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource} in {group:?}")));
            }
        }
    }
    let expected = [
        "get pods in \"\"",
        "list pods in \"\"",
        "watch pods in \"\"",
        "patch pods in \"\"",
        "create events in \"events.k8s.io\"",
        "patch events in \"events.k8s.io\"",
    ];
    assert_eq!(permitted, expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn the_role_is_given_to_the_account_and_to_nobody_else() {
    assert_eq!(objects().len(), 3);
    let (account, role): (ServiceAccount, Role) = (only("ServiceAccount"), only("Role"));
    let binding: RoleBinding = only("RoleBinding");
    assert_eq!(account.automount_service_account_token, Some(false));
    assert_eq!(
        (binding.role_ref.kind.as_str(), Some(&binding.role_ref.name), &binding.metadata.namespace),
        ("Role", role.metadata.name.as_ref(), &role.metadata.namespace)
    );
    let subjects = binding.subjects.unwrap();
    assert_eq!(subjects.len(), 1);
    assert_eq!(
        (subjects[0].kind.as_str(), Some(&subjects[0].name), &subjects[0].namespace),
        ("ServiceAccount", account.metadata.name.as_ref(), &account.metadata.namespace)
    );
}
