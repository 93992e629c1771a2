//! Network namespaces, links between them, and frames that are lost on the way.
//!
//! The server and each collector have a namespace of their own. A *data link* joins the server's and a collector's,
//! a *management link* a collector's and ours, so that the recorder still reaches a collector whose way to the
//! database is cut.
//!
//! A namespace lives as long as the process that holds it, and that ends when its standard input closes: whatever
//! becomes of this process, nothing of the network stays behind.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// What the network is made with.
const NEEDED: &str = "the chaos suite needs root, and the Debian packages iproute2 and util-linux";

/// Says two process ids, its own and that of its child, and lives until standard input ends. `/proc` is still the
/// outer one, so the ids are outer ones. It stays a shell: the first process of a namespace has to take the orphans,
/// which `cat` would not.
const HOLD: &str = "exec 3<&0; read -r pid rest < /proc/self/stat; echo $pid; \
    sh -c 'read -r pid rest < /proc/self/stat; echo $pid; exec cat <&3'; exit";

/// Namespaces of the kinds that it was made with.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Child,
    pid: u32,
    /// The shell's own child.
    waits: u32,
    kinds: &'static [&'static str],
}

impl Namespace {
    /// A network of its own, without a link to any other.
    pub(crate) fn network() -> Self {
        Self::hold(&["--net"])
    }

    /// A network, mounts and processes of its own. Its processes end with it.
    pub(crate) fn host() -> Self {
        Self::hold(&["--net", "--mount", "--pid"])
    }

    fn hold(kinds: &'static [&'static str]) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(kinds);
        if kinds.contains(&"--pid") {
            unshare.args(["--fork", "--kill-child"]);
        }
        let mut holder = unshare
            .args(["--", "sh", "-c", HOLD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run unshare: {error}; {NEEDED}"));
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        let mut id = || lines.next()?.ok()?.parse().ok();
        let (Some(pid), Some(waits)) = (id(), id()) else { panic!("unshare has made no namespaces; {NEEDED}") };
        let namespace = Self { holder, pid, waits, kinds };
        namespace.run("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    /// Arguments of `nsenter` that run what follows them inside.
    pub(crate) fn enter(&self) -> Vec<String> {
        let target = ["--target".to_owned(), self.pid.to_string()];
        target.into_iter().chain(self.kinds.iter().map(|kind| (*kind).to_owned())).collect()
    }

    /// A command inside.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.enter()).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a command inside and fails the test when that fails.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) {
        run(self.command(program).args(arguments));
    }

    /// A file inside, as a path outside.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("root").join(path.strip_prefix("/").unwrap())
    }

    /// The ids, outside, of every process inside that was put there.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.pid);
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&pid| pid != self.pid && pid != self.waits && namespace(pid) == own)
            .collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; {NEEDED}"));
    assert!(output.status.success(), "{command:?}: {}; {NEEDED}", String::from_utf8_lossy(&output.stderr));
}

/// Which frames of a data link are lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lost {
    /// Both ways.
    Both,
    /// Those towards the server.
    ToServer,
    /// Those from the server.
    FromServer,
}

/// The links of one collector.
#[derive(Debug)]
pub(crate) struct Links {
    place: usize,
    collector: Namespace,
    /// The server's namespace.
    server: Vec<String>,
    management: Block,
}

/// The hardware address of no interface: a frame to it is lost, and nobody is told.
const NOWHERE: &str = "02:00:00:00:ff:ff";

impl Links {
    /// Joins a new namespace to that of the server and to ours.
    pub(crate) fn new(server: &Namespace, place: usize) -> Self {
        let collector = Namespace::network();
        let links = Self { place, server: server.enter(), management: Block::take(&collector), collector };
        let (at_server, at_collector) = (links.hardware(true), links.hardware(false));
        let name = links.server_interface();
        let ends = [("netns", server.pid.to_string()), ("address", at_server)];
        let peer = [("name", "data".to_owned()), ("netns", links.collector.pid.to_string()), ("address", at_collector)];
        let words = |pairs: &[(&str, String)]| {
            pairs.iter().flat_map(|(key, value)| [(*key).to_owned(), value.clone()]).collect::<Vec<_>>()
        };
        run(Command::new("ip")
            .args(["link", "add", "name", &name])
            .args(words(&ends))
            .args(["type", "veth", "peer"])
            .args(words(&peer)));
        server.run("ip", &["address", "add", &format!("{}/30", links.server_address()), "dev", &name]);
        links.collector.run("ip", &["address", "add", &format!("{}/30", links.collector_address()), "dev", "data"]);
        server.run("ip", &["link", "set", &name, "up"]);
        links.collector.run("ip", &["link", "set", "data", "up"]);
        links.mend();
        links
    }

    /// The server's address on this collector's data link.
    pub(crate) fn server_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, u8::try_from(self.place).unwrap(), 1)
    }

    fn collector_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, u8::try_from(self.place).unwrap(), 2)
    }

    /// The collector's address on its management link.
    pub(crate) fn management_address(&self) -> Ipv4Addr {
        self.management.address(2)
    }

    /// Arguments of `nsenter` that run what follows them in the collector's namespace.
    pub(crate) fn enter(&self) -> Vec<String> {
        self.collector.enter()
    }

    /// Loses frames of the data link from now on. Whoever sends them is not told, as on a real wire.
    pub(crate) fn cut(&self, lost: Lost) {
        if lost != Lost::FromServer {
            self.neighbour(false, NOWHERE);
        }
        if lost != Lost::ToServer {
            self.neighbour(true, NOWHERE);
        }
    }

    /// Loses nothing any more.
    pub(crate) fn mend(&self) {
        self.neighbour(false, &self.hardware(true));
        self.neighbour(true, &self.hardware(false));
    }

    /// Sets where one end of the data link believes the other to be.
    fn neighbour(&self, at_server: bool, hardware: &str) {
        let (enter, device, other) = if at_server {
            (self.server.clone(), self.server_interface(), self.collector_address())
        } else {
            (self.collector.enter(), "data".to_owned(), self.server_address())
        };
        run(Command::new("nsenter")
            .args(enter)
            .args(["ip", "neighbour", "replace", &other.to_string(), "lladdr", hardware])
            .args(["dev", &device, "nud", "permanent"]));
    }

    fn server_interface(&self) -> String {
        format!("collector{}", self.place)
    }

    fn hardware(&self, at_server: bool) -> String {
        format!("02:00:00:00:{:02x}:{:02x}", self.place, u8::from(!at_server))
    }
}

/// Four addresses of 198.18.0.0/15, which is set aside for tests of networks, and the interface of that number
/// in our own namespace.
#[derive(Debug)]
struct Block(u16);

impl Block {
    /// Links `collector` to us over a block that nobody uses.
    fn take(collector: &Namespace) -> Self {
        const BLOCKS: u16 = 1 << 15;
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Processes that run at the same time begin at different places.
        let start = (std::process::id() % u32::from(BLOCKS)) as u16;
        let pid = collector.pid.to_string();
        for _ in 0..BLOCKS {
            let block = Self((start.wrapping_mul(8) + NEXT.fetch_add(1, Ordering::Relaxed)) % BLOCKS);
            let made = Command::new("ip")
                .args(["link", "add", "name", &block.interface(), "type", "veth"])
                .args(["peer", "name", "management", "netns", &pid])
                .output()
                .unwrap_or_else(|error| panic!("cannot run ip: {error}; {NEEDED}"));
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            if said.contains("File exists") {
                // Not ours to remove when it is dropped.
                std::mem::forget(block);
                continue;
            }
            assert!(made.status.success(), "ip link add: {said}; {NEEDED}");
            let ends = [1, 2].map(|end| format!("{}/30", block.address(end)));
            run(Command::new("ip").args(["address", "add", &ends[0], "dev", &block.interface()]));
            collector.run("ip", &["address", "add", &ends[1], "dev", "management"]);
            run(Command::new("ip").args(["link", "set", &block.interface(), "up"]));
            collector.run("ip", &["link", "set", "management", "up"]);
            return block;
        }
        panic!("every management address is in use");
    }

    fn interface(&self) -> String {
        format!("chaos{}", self.0)
    }

    fn address(&self, end: u32) -> Ipv4Addr {
        (u32::from(Ipv4Addr::new(198, 18, 0, 0)) + u32::from(self.0) * 4 + end).into()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // It would go with the collector's namespace too, only later.
        let _ = Command::new("ip").args(["link", "delete", &self.interface()]).stderr(Stdio::null()).status();
    }
}

/// How many datagrams have arrived at `namespace` for a port that nobody listens on.
fn arrived(namespace: &Namespace) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{}/net/snmp", namespace.pid)).unwrap();
    let mut rows = counters.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let place = names.split(' ').position(|name| name == "NoPorts").unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

#[tokio::test]
async fn frames_are_lost_in_the_directions_that_are_cut_and_in_no_other() {
    let server = Namespace::network();
    let links = Links::new(&server, 3);
    let send = |from: &Namespace, to: Ipv4Addr| from.run("bash", &["-c", &format!("echo > /dev/udp/{to}/9")]);
    let (mut at_server, mut at_collector) = (0, 0);
    for (lost, to_server, from_server) in [
        (None, 1, 1),
        (Some(Lost::ToServer), 0, 1),
        (Some(Lost::FromServer), 1, 0),
        (Some(Lost::Both), 0, 0),
        (None, 1, 1),
    ] {
        links.mend();
        if let Some(lost) = lost {
            links.cut(lost);
        }
        send(&links.collector, links.server_address());
        send(&server, links.collector_address());
        // What arrives after the mending shows that what was sent before it is lost and not late.
        links.mend();
        send(&links.collector, links.server_address());
        send(&server, links.collector_address());
        at_server += to_server + 1;
        at_collector += from_server + 1;
        let what = format!("{lost:?}: {at_server} at the server, {at_collector} at the collector");
        crate::eventually(std::time::Duration::from_secs(5), &what, async || {
            (arrived(&server), arrived(&links.collector)) == (at_server, at_collector)
        })
        .await;
    }
    let interface = links.management.interface();
    let exists = || Path::new("/sys/class/net").join(&interface).exists();
    assert!(exists());
    drop(links);
    assert!(!exists(), "the management link is left behind");
}
