//! One server and several collectors, each on a host of its own, under a recorder.

use std::time::Duration;

use crate::checker::{Answer, Injected, Sample, Term, Verdict, check};
use crate::eventually;
use crate::network::Links;
use crate::process::Collector;
use crate::recorder::Recorder;
use crate::server::Server;

/// Limit of everything that should happen at some time.
const LIMIT: Duration = Duration::from_secs(90);

/// How long one alone must export before a fault, or after it.
const STEADY: Duration = Duration::from_millis(300);

/// The settings of a collector that decide about time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) interval: Duration,
    pub(crate) retry: Duration,
    pub(crate) refresh_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) heartbeat_timeout: Duration,
    pub(crate) fence: Duration,
    pub(crate) idle_session_timeout: Duration,
    pub(crate) tcp_user_timeout: Duration,
}

impl Settings {
    /// The defaults of the program, with the retry interval of the chart.
    pub(crate) const CHART: Self = Self {
        interval: Duration::from_secs(15),
        retry: Duration::from_secs(2),
        refresh_timeout: Duration::from_secs(10),
        heartbeat_interval: Duration::from_secs(1),
        heartbeat_timeout: Duration::from_secs(1),
        fence: Duration::from_secs(3),
        idle_session_timeout: Duration::from_secs(4),
        tcp_user_timeout: Duration::from_millis(2500),
    };

    /// The same with many refreshes, so that faults meet them.
    pub(crate) const REFRESHING: Self =
        Self { interval: Duration::from_secs(2), refresh_timeout: Duration::from_secs(4), ..Self::CHART };

    /// About half of those times.
    pub(crate) const SHORT: Self = Self {
        interval: Duration::from_secs(1),
        retry: Duration::from_millis(500),
        refresh_timeout: Duration::from_secs(2),
        heartbeat_interval: Duration::from_millis(500),
        heartbeat_timeout: Duration::from_millis(700),
        fence: Duration::from_millis(1600),
        idle_session_timeout: Duration::from_millis(2200),
        tcp_user_timeout: Duration::from_millis(1500),
    };

    /// The same with few refreshes: it is the fence that silences a leader after a pause, before its snapshot is
    /// too old.
    pub(crate) const SHORT_AND_IDLE: Self = Self { interval: Duration::from_secs(7), ..Self::SHORT };

    /// With a third of the fence, a heartbeat that fits it, and frequent attempts: whoever waits only for its own
    /// fence exports while another may.
    pub(crate) fn with_a_smaller_fence(self) -> Self {
        Self {
            fence: self.fence / 3,
            heartbeat_interval: self.heartbeat_interval / 3,
            heartbeat_timeout: self.heartbeat_timeout / 3,
            retry: self.retry / 4,
            ..self
        }
    }

    /// The greatest age of a snapshot that may be served.
    fn oldest(self) -> Duration {
        self.interval + self.fence
    }
}

/// A host with a collector, or with none for the moment.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) links: Links,
    pub(crate) settings: Settings,
    /// Whether the collector connects through PgBouncer.
    pub(crate) pooled: bool,
    collector: Option<Collector>,
}

impl Node {
    /// The collector.
    pub(crate) fn collector(&mut self) -> &mut Collector {
        self.collector.as_mut().unwrap()
    }

    /// Ends the collector that is there, and starts one.
    pub(crate) fn restart(&mut self) {
        self.collector = None;
        let enter = self.links.enter();
        let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
        let settings = self.settings;
        self.collector = Some(Collector::start(&Server::url(self.links.server_address(), self.pooled), |config| {
            let section = "worker.queue.state_metrics_collector";
            config
                // Not even when this process is killed does it stay behind.
                .inside("setpriv", &["--pdeathsig", "KILL"])
                .inside("nsenter", &enter)
                .set("worker.management.bind_address", self.links.management_address())
                .port(24_247)
                .set("database.acquire_timeout_seconds", 2)
                .set(&format!("{section}.on_refresh_failure"), "step_down");
            for (key, value) in [
                ("collection_interval", settings.interval),
                ("leadership_retry_interval", settings.retry),
                ("refresh_timeout", settings.refresh_timeout),
                ("lease.heartbeat_interval", settings.heartbeat_interval),
                ("lease.heartbeat_timeout", settings.heartbeat_timeout),
                ("lease.fence", settings.fence),
                ("lease.idle_session_timeout", settings.idle_session_timeout),
                ("lease.tcp_user_timeout", settings.tcp_user_timeout),
            ] {
                config.set(&format!("{section}.{key}_seconds"), value.as_secs_f64());
            }
        }));
    }
}

/// The whole. Its fields go in this order: the recorder before what it scrapes, the server last.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) recorder: Recorder,
    pub(crate) nodes: Vec<Node>,
    pub(crate) server: Server,
    /// Every fault so far.
    pub(crate) injected: Vec<Injected>,
    /// The greatest age of a snapshot on each node.
    oldest: Vec<Duration>,
}

impl Cluster {
    /// Starts a server and `size` collectors.
    pub(crate) async fn start(size: usize, settings: Settings) -> Self {
        let server = Server::start().await;
        let mut nodes = Vec::new();
        for place in 0..size {
            let mut node = Node { links: Links::new(server.host(), place), settings, pooled: false, collector: None };
            node.restart();
            nodes.push(node);
        }
        let addresses: Vec<_> = nodes.iter_mut().map(|node| node.collector().address()).collect();
        let recorder = Recorder::start(&addresses);
        let cluster = Self { recorder, nodes, server, injected: Vec::new(), oldest: vec![settings.oldest(); size] };
        cluster.settle().await;
        cluster
    }

    /// Waits until every process answers and one alone exports for a while. Returns which.
    pub(crate) async fn settle(&self) -> usize {
        let answers = |sample: &Option<Sample>| sample.is_some_and(|sample| sample.answer != Answer::Unreachable);
        // The sole exporter, and since when it is that.
        let mut sole: Option<(usize, Duration)> = None;
        eventually(LIMIT, "every process answers and one alone exports", async || {
            let now = self.recorder.elapsed();
            let leader = match self.recorder.exporting()[..] {
                [leader] if self.recorder.last().iter().all(answers) => Some(leader),
                _ => None,
            };
            sole = leader.map(|leader| sole.filter(|&(same, _)| same == leader).unwrap_or((leader, now)));
            sole.is_some_and(|(_, since)| now - since >= STEADY)
        })
        .await;
        sole.unwrap().0
    }

    /// The greatest term that is exported now.
    pub(crate) fn term(&self) -> Option<Term> {
        let term = |sample: Sample| match sample.answer {
            Answer::Exporting(exported) => exported.term,
            _ => None,
        };
        self.recorder.last().into_iter().flatten().filter_map(term).max()
    }

    /// Waits until a term after `old` is exported.
    pub(crate) async fn wait_for_term_after(&self, old: Option<Term>) {
        eventually(LIMIT, "a new term is exported", async || self.term() > old).await;
    }

    /// What the recording shows.
    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.recorder.samples(), &self.injected, &self.oldest)
    }

    /// The bound that the processes declare for a fault: the greatest, because any of them may be the next leader.
    pub(crate) async fn bound(&self, fault: &str) -> Duration {
        let name = format!("retsu_collector_failover_bound_seconds{{fault=\"{fault}\"}} ");
        let mut greatest = Duration::ZERO;
        for node in &self.nodes {
            let exposition = node.collector.as_ref().unwrap().metrics().await.unwrap();
            let bound = exposition.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
            let bound = bound.unwrap_or_else(|| panic!("no process declares a bound for {fault}"));
            greatest = greatest.max(Duration::from_secs_f64(bound));
        }
        greatest
    }
}

/// What was seen so far, when a test fails.
impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for violation in self.verdict().violations {
                eprintln!("VIOLATION {violation}");
            }
        }
    }
}
