//! What is checked: the size of a cluster, its settings in ticks, and the guard that is taken out.

use std::time::Duration;

use retsu_collector::config::{CollectorSettings, LeaseSettings, LockKey, OnRefreshFailure};
use retsu_collector::election::Timing;

use super::action::Action;

/// One part of the design without which two replicas can export, or nobody does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guard {
    /// A process exports no later than its fence.
    Fence,
    /// A new leader waits before it exports.
    Wait,
    /// A proof is good only from the session that holds the lock when the server answers.
    ExclusiveProofs,
    /// The wait is longer than the fence by what two clocks may run apart.
    DriftAllowance,
    /// The allowance is for two clocks, one slow and one fast, not for one of them.
    AllowanceForTwo,
    /// The wait begins when the grant is received, not when it was asked for.
    WaitFromReceipt,
    /// The fence counts from before the proof was sent, not from its answer.
    FenceFromSending,
    /// The clock goes on while its process is stopped, as CLOCK_BOOTTIME does.
    ClockThroughPauses,
    /// The wait is that of the longest fence which a holder was seen to advertise, if that is longer than the own.
    AdvertisedFence,
    /// A fence that was seen counts for as long as the process runs, not until the process has replaced its holder.
    RememberedFences,
    /// Until its own wait is over, a new leader advertises the fence that it waits for.
    AdvertisedWhileWaiting,
    /// The server ends a session that is silent for too long.
    IdleLimit,
    /// A leader serves only after a good proof that it has sent since its wait is over.
    OpeningProof,
    /// A sighting counts only if it is less than one fence old.
    SightingAge,
    /// It is as old as the attempt that saw the holder, not as the answer to that.
    SightingFromSending,
    /// It has to be that young when the grant is received, not when that was asked for.
    SightingUntilReceipt,
    /// The holder was free to export.
    Exported,
    /// What its Pod says is about the very term that was seen.
    SameTerm,
    /// The container that was killed is the one that had the term.
    ContainerOfTerm,
    /// An end is claimed by one new leader only.
    ClaimedOnce,
    /// What is removed for that is what was judged.
    ClaimOfJudged,
    /// A process that has written that it has withdrawn does not write that again.
    MarkedOnce,
    /// A write that is late is refused when the Pod has changed meanwhile.
    Precondition,
}

/// How many units the clock of a process may advance in one tick of true time: each process, each tick,
/// whichever the checker likes. The two rates are 1 - 1/3 and 1 + 1/3 times their mean.
pub const RATES: [u8; 2] = [1, 2];

/// A cluster of `N` processes and one server. Fences are in units of a process's clock, everything else in
/// ticks of true time.
#[derive(Clone, Debug)]
pub struct Cluster<const N: usize> {
    /// F of each process.
    pub fences: [u8; N],
    /// How long a proof or an attempt may be without its answer, in units of the process's own clock.
    pub timeout: u8,
    /// After how many ticks of silence the server ends a session.
    pub idle_limit: u8,
    /// The most that a standby lets pass between two attempts.
    pub poll: u8,
    /// Whether a new leader may skip its wait.
    pub skips: bool,
    /// By how much longer than a fence a sighting counts, in units of the process's own clock.
    pub sighting_slack: u8,
    /// Whether what a process writes to the platform may be stored later than it is written.
    pub late_writes: bool,
    /// Whether an attempt that its process has given up may still reach the server, which grants it to nobody.
    pub abandoned_attempts: bool,
    /// Whether processes are paused. One that is not, and takes no step, exports no less, so that the largest runs do
    /// without.
    pub pauses: bool,
    /// Whether a refresh may succeed while its process still waits. That changes nothing until the wait is over, so
    /// that the largest runs do without.
    pub early_refreshes: bool,
    /// Whether states that differ only in which process is which are checked once. The processes must have the
    /// same fence, and paths tell less.
    pub interchangeable: bool,
    /// What has happened before the check begins, for a way that is long and known up to there.
    pub after: Vec<Action<N>>,
    /// The guard that is missing.
    pub without: Option<Guard>,
    /// In how many ticks after the last fault somebody has to export. `None`: faults never end, and
    /// only safety is checked.
    pub bound: Option<u8>,
}

impl<const N: usize> Cluster<N> {
    /// Processes with the same fence, and every guard.
    pub fn of(fence: u8) -> Self {
        Self {
            fences: [fence; N],
            timeout: 2,
            idle_limit: 2,
            poll: 2,
            skips: false,
            sighting_slack: 0,
            late_writes: false,
            abandoned_attempts: false,
            pauses: true,
            early_refreshes: true,
            interchangeable: false,
            after: Vec::new(),
            without: None,
            bound: None,
        }
    }

    /// The same cluster with one guard taken out.
    pub fn without(self, guard: Guard) -> Self {
        Self { without: Some(guard), ..self }
    }

    pub fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// For how many units of its own clock a new leader exports nothing, whose fence is `own` and which has seen that
    /// `seen` is advertised. It is the collector's own arithmetic, with a unit for a second.
    pub fn take_over_wait(&self, own: u8, seen: u8) -> u8 {
        let drift = match self.without {
            Some(Guard::Wait) => return 0,
            Some(Guard::DriftAllowance) => 0,
            Some(Guard::AllowanceForTwo) => MILLION / 3,
            _ => u32::from(RATES[1] - RATES[0]) * MILLION / u32::from(RATES[0]),
        };
        let mut timing = Timing::new(&settings(own, drift)).expect("settings that hold together");
        timing.saw(Duration::from_secs(seen.into()));
        let wait = timing.take_over_wait();
        let units = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        u8::try_from(units).expect("a wait of at most 255 units")
    }

    /// The declared bound, in ticks: the server finds a dead holder out or a process gives its request up,
    /// then a standby polls, then it waits by a slow clock.
    pub fn declared_bound(&self) -> u8 {
        let slow = |units: u8| units.div_ceil(RATES[0]);
        let fence = self.fences.into_iter().max().unwrap_or(0);
        self.idle_limit.max(slow(self.timeout)) + self.poll + slow(self.take_over_wait(fence, 0))
    }
}

const MILLION: u32 = 1_000_000;

/// Of these only fence and drift matter here: where the others count, they are parts of a `Cluster`.
fn settings(fence: u8, clock_drift_ppm: u32) -> CollectorSettings {
    let (millisecond, second) = (Duration::from_millis(1), Duration::from_secs(1));
    CollectorSettings {
        collection_interval: second,
        leadership_retry_interval: second,
        refresh_timeout: second,
        on_refresh_failure: OnRefreshFailure::StepDown,
        lock_key: LockKey::RETSU,
        collection: true,
        lease: LeaseSettings {
            heartbeat_interval: millisecond,
            heartbeat_timeout: millisecond,
            fence: second * u32::from(fence),
            clock_drift_ppm,
            idle_session_timeout: second,
            tcp_user_timeout: millisecond,
        },
    }
}
