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

/// A signal that is ready to be sent without delay: looking for the process takes longer than what is measured.
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
    let container = replica.container.as_deref().unwrap();
    let script = format!("pid={}; echo armed; read -r _; kill -{} $pid; echo fired", pid_of(container), signal.name());
    let node = replica.node.as_deref().unwrap();
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
    /// Sends the signal.
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
fn pid_of(container: &str) -> String {
    format!("$(crictl inspect --output go-template --template '{{{{.info.pid}}}}' {container})")
}
