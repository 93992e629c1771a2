//! Faults that are made on the nodes.

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout};

use crate::command::docker;
use crate::stage::Stage;
use crate::watched::Replica;

/// A signal to a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Signal {
    /// Ends it at once.
    Kill,
    /// Asks it to end.
    Terminate,
    /// Stops it until it is continued.
    Stop,
    /// Continues it.
    Continue,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Terminate => "TERM",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
        }
    }
}

/// A fault that is ready to be made without delay: looking for the process takes longer than what is measured.
#[derive(Debug)]
pub(crate) struct Armed {
    script: Child,
    output: BufReader<ChildStdout>,
}

/// Finds the process of a replica's container on its node.
pub(crate) async fn arm(stage: &Stage, replica: &Replica, signal: Signal) -> Armed {
    if matches!(signal, Signal::Kill | Signal::Terminate) {
        stage.ends(&replica.name);
    }
    let find = format!("pid={}", pid_of(replica.container.as_deref().unwrap()));
    arm_script(replica.node.as_deref().unwrap(), &find, &format!("kill -{} $pid", signal.name())).await
}

/// Makes ready to fill the memory of a replica's container, from outside of it: what is in its control group counts.
///
/// The kernel ends the process that it rates highest. That would be the one that fills the memory, so the replica is
/// rated higher before; the other ends next, when there is nobody else left.
pub(crate) async fn arm_out_of_memory(stage: &Stage, replica: &Replica) -> Armed {
    stage.ends(&replica.name);
    // A line of /proc/PID/cgroup is `9:memory:/path` of version 1, whose controllers have a tree each, or `0::/path`
    // of version 2, which comes last.
    let find = format!(
        "pid={}\n\
         group=/sys/fs/cgroup$(sed -n 's,^[0-9]*:memory:,/memory,p; s,^0::,,p' /proc/$pid/cgroup | sed -n 1p)\n\
         test -e $group/cgroup.procs\n\
         echo 1000 >/proc/$pid/oom_score_adj",
        pid_of(replica.container.as_deref().unwrap())
    );
    // A last line without an end is kept in memory.
    let fill = "{ echo $BASHPID >$group/cgroup.procs; exec tail /dev/zero; } </dev/null >/dev/null 2>&1 &";
    arm_script(replica.node.as_deref().unwrap(), &find, fill).await
}

/// Makes ready to lose a node: nothing that it still sends arrives, not even that its processes end.
pub(crate) async fn arm_loss(node: &str) -> Armed {
    arm_script(node, "test -e /sys/class/net/eth0", "ip link set eth0 down").await
}

async fn arm_script(node: &str, find: &str, fire: &str) -> Armed {
    let script = format!("{find}\necho armed\nread -r _\n{fire}\necho fired");
    let mut script = docker()
        .args(["exec", "--interactive", node, "bash", "-euo", "pipefail", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let output = BufReader::new(script.stdout.take().unwrap());
    let mut armed = Armed { script, output };
    armed.hear("armed").await;
    armed
}

impl Armed {
    /// Makes the fault.
    pub(crate) async fn fire(mut self) {
        self.script.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
        self.hear("fired").await;
        assert!(self.script.wait().await.unwrap().success());
    }

    async fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).await.unwrap();
        assert_eq!(line.trim(), word, "the script on the node has ended");
    }
}

/// Sends a signal to the process of a replica.
pub(crate) async fn signal(stage: &Stage, replica: &Replica, signal: Signal) {
    arm(stage, replica, signal).await.fire().await;
}

/// Loses every packet between a replica and another address, both ways, until [`Stage::mend`].
pub(crate) async fn cut(stage: &Stage, replica: &Replica, peer: IpAddr) {
    lose(stage, replica, &format!("--destination {peer}"), &format!("--source {peer}")).await;
}

/// The same for one TCP port of the other address.
pub(crate) async fn cut_from_port(stage: &Stage, replica: &Replica, peer: SocketAddr) {
    let (address, port) = (peer.ip(), peer.port());
    let to = format!("--destination {address} --protocol tcp --destination-port {port}");
    lose(stage, replica, &to, &format!("--source {address} --protocol tcp --source-port {port}")).await;
}

async fn lose(stage: &Stage, replica: &Replica, to: &str, from: &str) {
    let own = replica.address.unwrap();
    let rules = |action: &str| {
        format!(
            "iptables --wait {action} FORWARD --source {own} {to} --jump DROP\n\
             iptables --wait {action} FORWARD --destination {own} {from} --jump DROP"
        )
    };
    stage.disturb(replica.node.as_deref().unwrap(), &rules("--insert"), &rules("--delete")).await;
}

/// What a shell on the node has to run for the process id of a container.
pub(crate) fn pid_of(container: &str) -> String {
    format!("$(crictl inspect --output go-template --template '{{{{.info.pid}}}}' {container})")
}
