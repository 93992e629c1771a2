//! Each fault, and how long the server takes to free the lock after it.

use std::time::Duration;

use super::{
    CLIENT_CONNECTION_CHECK_INTERVAL, FIRST_RETRANSMISSION, RECONNECT, TCP_KEEPALIVES_IDLE, TCP_KEEPALIVES_INTERVAL,
    Timing,
};

/// What can happen to a leader, or to what is between it and its lock.
///
/// Every bound is counted from the fault, except that of [`ServerRestarted`](Self::ServerRestarted). Faults come
/// one at a time: a server's clock that is set back while a leader is away for another reason lengthens
/// PostgreSQL's own timers, and so the bound of a paused process and of a statement in flight, by the step.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Fault {
    /// The leader is asked to stop, and closes its session.
    Graceful,
    /// The leader's process is killed, and its kernel closes its connections.
    ProcessKilled,
    /// The leader's host vanishes without a word.
    HostLost,
    /// Packets between leader and server are lost both ways.
    NetworkCut,
    /// Packets from the leader to the server are lost, those back arrive.
    NetworkCutToServer,
    /// Packets from the server to the leader are lost, those to the server arrive.
    NetworkCutToClient,
    /// The server stops and starts. Counted from the instant when it accepts connections again.
    ServerRestarted,
    /// The lock session's backend is terminated.
    BackendTerminated,
    /// The leader's process stops between two refreshes, while its kernel goes on.
    PausedIdle,
    /// The leader's process stops while a refresh runs.
    PausedInRefresh,
    /// The clock of the server's host is set forward, which may end the session as a termination does. Set
    /// back, it ends nothing.
    ServerClockStepped,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 11] = [
        Self::Graceful,
        Self::ProcessKilled,
        Self::HostLost,
        Self::NetworkCut,
        Self::NetworkCutToServer,
        Self::NetworkCutToClient,
        Self::ServerRestarted,
        Self::BackendTerminated,
        Self::PausedIdle,
        Self::PausedInRefresh,
        Self::ServerClockStepped,
    ];

    /// The value of the label `fault`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::ProcessKilled => "process_killed",
            Self::HostLost => "host_lost",
            Self::NetworkCut => "network_cut",
            Self::NetworkCutToServer => "network_cut_to_server",
            Self::NetworkCutToClient => "network_cut_to_client",
            Self::ServerRestarted => "server_restarted",
            Self::BackendTerminated => "backend_terminated",
            Self::PausedIdle => "paused_idle",
            Self::PausedInRefresh => "paused_in_refresh",
            Self::ServerClockStepped => "server_clock_stepped",
        }
    }

    /// From the fault until the server has freed the lock, when a statement in flight returns soon.
    pub(super) fn detection(self, timing: &Timing) -> Duration {
        let lease = timing.lease();
        match self {
            // An idle backend reads the end at once. One that runs a statement reads nothing and looks now and
            // then; a shutdown does not wait for the refresh that it cancels, so that counts for it, too.
            Self::Graceful => timing.hand_over + CLIENT_CONNECTION_CHECK_INTERVAL,
            Self::ProcessKilled => CLIENT_CONNECTION_CHECK_INTERVAL,
            // `keepalives` comes first while nothing is sent; `idle_session_timeout` needs no help from the kernel.
            Self::HostLost | Self::NetworkCut | Self::NetworkCutToServer => {
                lease.idle_session_timeout.max(keepalives(timing) + CLIENT_CONNECTION_CHECK_INTERVAL)
            }
            // The next heartbeat still arrives, and its answer is not acknowledged. That the leader closes its
            // session after the heartbeat's timeout is not counted on: behind a packet whose acknowledgement
            // was lost, its kernel may keep the FIN back.
            Self::NetworkCutToClient => (lease.heartbeat_interval + unacknowledged(timing))
                .max(keepalives(timing) + CLIENT_CONNECTION_CHECK_INTERVAL),
            Self::BackendTerminated | Self::ServerClockStepped => Duration::ZERO,
            // A standby whose connection was refused just now tries again within that time.
            Self::ServerRestarted => RECONNECT,
            // The kernel of a stopped process acknowledges everything: only PostgreSQL's own timers see it.
            Self::PausedIdle => lease.idle_session_timeout,
            // A result that finds the stopped reader's window closed is given up sooner, after `unacknowledged`.
            Self::PausedInRefresh => timing.refresh_timeout + lease.idle_session_timeout,
        }
    }

    /// The same, whenever a statement that was in flight returns.
    pub(super) fn detection_in_statement(self, timing: &Timing) -> Duration {
        let returns = match self {
            // A statement that returns just before keepalives would have given up sends its result, which
            // stops them: the wait for an acknowledgement begins only now.
            Self::HostLost | Self::NetworkCut | Self::NetworkCutToServer => {
                timing.refresh_timeout.min(keepalives(timing))
            }
            // The leader's kernel repeats a query whose acknowledgement was lost, and that keeps keepalives quiet.
            Self::NetworkCutToClient => timing.refresh_timeout,
            _ => return self.detection(timing),
        };
        self.detection(timing).max(returns + unacknowledged(timing))
    }
}

/// After which silence the server's kernel gives a connection up on which nothing is unacknowledged. It looks
/// at each probe whether `tcp_user_timeout` has passed, and not before the second.
fn keepalives(timing: &Timing) -> Duration {
    TCP_KEEPALIVES_IDLE + timing.lease().tcp_user_timeout.max(TCP_KEEPALIVES_INTERVAL)
}

/// After which time without an acknowledgement of what was sent the server's kernel gives a connection up.
fn unacknowledged(timing: &Timing) -> Duration {
    FIRST_RETRANSMISSION + timing.lease().tcp_user_timeout
}
