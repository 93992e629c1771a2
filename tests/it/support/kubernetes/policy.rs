//! The admission policy of `manifests/admission-policy.yaml`.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, Error};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Cluster;
use super::cluster::{SERVICE_ACCOUNT, SETTLED, create};
use crate::support::eventually;

const FILE: &str = "manifests/admission-policy.yaml";

impl Cluster {
    /// Puts the policy in force for the namespace, and waits until it is.
    pub(crate) async fn enforce_admission_policy(&self) {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap();
        // It is rendered for the release `retsu` and the account `retsu-collector` in `default`.
        let renamed = |text: String, of: &str, to: String| {
            assert!(text.contains(of), "{FILE} has no {of}");
            text.replace(of, &to)
        };
        let namespace = self.namespace();
        let text = renamed(
            text,
            "retsu-collector.default.retsu-collector",
            format!("retsu-collector.{namespace}.retsu-collector"),
        );
        let account = format!("system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}");
        let text = renamed(text, "system:serviceaccount:default:retsu-collector", account);
        let text = renamed(text, "metadata.name: \"default\"", format!("metadata.name: {namespace}"));
        let mut documents =
            serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
        let [policy, binding] = [documents.next().unwrap(), documents.next().unwrap()];
        assert_eq!(documents.next(), None, "{FILE} has more than a policy and its binding");
        let admin = self.admin().await;
        create(&Api::<ValidatingAdmissionPolicy>::all(admin.clone()), policy).await;
        create(&Api::<ValidatingAdmissionPolicyBinding>::all(admin), binding).await;

        let probe = self.probe().await;
        let pods = self.api::<k8s_openapi::api::core::v1::Pod>(&self.unbound_client().await);
        let (dry, patch) = (PatchParams { dry_run: true, ..PatchParams::default() }, Patch::Merge(json!({})));
        eventually(SETTLED, "the policy is in force", async || match pods.patch(&probe, &dry, &patch).await {
            Ok(_) => false,
            Err(Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => true,
            Err(error) => panic!("{error}"),
        })
        .await;
        self.delete(&probe, true).await;
    }
}
