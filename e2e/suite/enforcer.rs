//! An enforcer of NetworkPolicies, for one scenario: kube-router's firewall, as a process of the nodes.

use std::io::Write;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::command::built;
use crate::stage::Stage;
use crate::wait::eventually;

/// From its start to its first rules, and from a change of a policy or a Pod to the rules for it.
pub(crate) const ENFORCED: Duration = Duration::from_secs(30);

/// Starts it on every worker, until [`Stage::mend`], which leaves no rule behind.
pub(crate) async fn enforce(stage: &Stage) {
    let cluster = &stage.cluster;
    let program = built("kube-router");
    // What a kubelet may read is too little: policies, and Pods and namespaces of everybody.
    let administrator = cluster.on_node(&cluster.control_plane().name, "cat /etc/kubernetes/admin.conf").await;
    let mut kubeconfig = NamedTempFile::new().unwrap();
    kubeconfig.write_all(administrator.as_bytes()).unwrap();
    let files = [(&*program, "/usr/local/bin/kube-router"), (kubeconfig.path(), "/etc/kubernetes/kube-router.conf")];
    for host in cluster.hosts().iter().filter(|host| !host.is_control_plane) {
        // Whatever of the rest fails, the administrator's credentials do not stay there.
        stage.disturb(&host.name, ":", include_str!("enforcer/stop")).await;
        for (file, place) in files {
            cluster.engine(&["cp", file.to_str().unwrap(), &format!("{}:{place}", host.name)]).await;
        }
        cluster.on_node(&host.name, include_str!("enforcer/start")).await;
        eventually(ENFORCED, &format!("kube-router guards {}", host.name), async || {
            let guards =
                "tail /var/log/kube-router.log; kill -0 $(cat /run/kube-router.pid); iptables-save --table filter";
            cluster.on_node(&host.name, guards).await.contains("\n:KUBE-NWPLCY-DEFAULT")
        })
        .await;
    }
}
