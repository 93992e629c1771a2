//! What every connection is waiting for, and which of them have waited too long.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Limits;

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// The first byte of a request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The handler, with the request's body if it has one.
    Handler,
    /// The client, who takes the answer.
    Write,
    /// The client, who takes the last bytes of the answer.
    Last,
}

/// The phase of one connection and its beginning, written by the connection and read by the accept loop.
#[derive(Debug)]
pub(super) struct Pulse {
    origin: Instant,
    /// Microseconds from `origin` to the beginning of the phase, then three bits for the phase: one word, so
    /// that a reader never pairs the phase of one moment with the beginning of another.
    state: AtomicU64,
}

const PHASE_BITS: u32 = 3;
const PHASE_MASK: u64 = (1 << PHASE_BITS) - 1;

impl Pulse {
    pub(super) fn new(origin: Instant) -> Self {
        let pulse = Self { origin, state: AtomicU64::new(0) };
        // A connection that says nothing at all is cut like one that is slow to finish its head.
        pulse.enter(Phase::Head);
        pulse
    }

    pub(super) fn enter(&self, phase: Phase) {
        let since = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX >> PHASE_BITS);
        self.state.store(since << PHASE_BITS | phase as u64, Ordering::Relaxed);
    }

    /// The body of the answer has been handed over in full; the time for the answer goes on.
    pub(super) fn body_ended(&self) {
        let since = self.state.load(Ordering::Relaxed) & !PHASE_MASK;
        self.state.store(since | Phase::Last as u64, Ordering::Relaxed);
    }

    /// The kernel has taken every byte handed over so far. Returns whether that was the end of an answer.
    pub(super) fn flushed(&self) -> bool {
        let ended = self.phase() == Phase::Last;
        if ended {
            self.enter(Phase::Idle);
        }
        ended
    }

    pub(super) fn phase(&self) -> Phase {
        self.read().0
    }

    fn read(&self) -> (Phase, Instant) {
        let state = self.state.load(Ordering::Relaxed);
        let phase = match state & PHASE_MASK {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Handler,
            3 => Phase::Write,
            _ => Phase::Last,
        };
        (phase, self.origin + Duration::from_micros(state >> PHASE_BITS))
    }

    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.read().1)
    }
}

/// The connections that are open, by the identity of their task.
pub(super) struct Slots<K, H> {
    open: HashMap<K, (H, Arc<Pulse>)>,
}

impl<K: Copy + Eq + Hash, H> Slots<K, H> {
    pub(super) fn new() -> Self {
        Self { open: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn insert(&mut self, key: K, handle: H, pulse: Arc<Pulse>) {
        self.open.insert(key, (handle, pulse));
    }

    pub(super) fn remove(&mut self, key: K) {
        self.open.remove(&key);
    }

    /// Takes out every connection that has been in its phase for longer than `limits` allow, and says in
    /// which one.
    pub(super) fn expired(&mut self, now: Instant, limits: &Limits) -> Vec<(H, Phase)> {
        let expired: Vec<K> = self
            .open
            .iter()
            .filter(|(_, (_, pulse))| {
                let (phase, since) = pulse.read();
                let limit = match phase {
                    Phase::Idle => limits.idle,
                    Phase::Head => limits.head,
                    Phase::Handler => limits.handler,
                    Phase::Write | Phase::Last => limits.answer,
                };
                now.saturating_duration_since(since) > limit
            })
            .map(|(key, _)| *key)
            .collect();
        expired.iter().filter_map(|key| self.take(*key)).collect()
    }

    /// Takes out the connection that has been in its phase the longest, if that is `grace` or more.
    pub(super) fn longest_waiting(&mut self, now: Instant, grace: Duration) -> Option<H> {
        let (key, waited) =
            self.open.iter().map(|(key, (_, pulse))| (*key, pulse.waited(now))).max_by_key(|(_, waited)| *waited)?;
        if waited < grace {
            return None;
        }
        self.take(key).map(|(handle, _)| handle)
    }

    fn take(&mut self, key: K) -> Option<(H, Phase)> {
        self.open.remove(&key).map(|(handle, pulse)| (handle, pulse.phase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(origin: Instant, phase: Phase, since: Duration) -> Arc<Pulse> {
        let pulse = Pulse::new(origin);
        let micros = u64::try_from(since.as_micros()).unwrap_or_default();
        pulse.state.store(micros << PHASE_BITS | phase as u64, Ordering::Relaxed);
        Arc::new(pulse)
    }

    #[test]
    fn each_phase_has_its_own_limit() {
        let origin = Instant::now();
        let limits = Limits {
            idle: Duration::from_secs(4),
            head: Duration::from_secs(1),
            handler: Duration::from_secs(2),
            answer: Duration::from_secs(3),
            ..Limits::default()
        };
        for (phase, limit) in
            [(Phase::Idle, 4), (Phase::Head, 1), (Phase::Handler, 2), (Phase::Write, 3), (Phase::Last, 3)]
        {
            let mut slots = Slots::new();
            slots.insert(1, "connection", pulse(origin, phase, Duration::from_secs(10)));
            let at_limit = origin + Duration::from_secs(10 + limit);
            assert!(slots.expired(at_limit, &limits).is_empty(), "{phase:?}");
            assert_eq!(slots.expired(at_limit + Duration::from_millis(1), &limits), [("connection", phase)]);
            assert_eq!(slots.len(), 0);
        }
    }

    #[test]
    fn the_longest_waiting_makes_room_but_not_within_its_grace() {
        let origin = Instant::now();
        let grace = Duration::from_secs(1);
        let mut slots = Slots::new();
        slots.insert(1, "young", pulse(origin, Phase::Write, Duration::from_secs(9)));
        slots.insert(2, "old", pulse(origin, Phase::Write, Duration::from_secs(2)));
        slots.insert(3, "middle", pulse(origin, Phase::Idle, Duration::from_secs(5)));
        let now = origin + Duration::from_millis(9500);
        assert_eq!(slots.longest_waiting(now, grace), Some("old"));
        assert_eq!(slots.longest_waiting(now, grace), Some("middle"));
        assert_eq!(slots.longest_waiting(now, grace), None);
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn a_phase_begins_when_it_is_entered() {
        let pulse = Pulse::new(Instant::now());
        for phase in [Phase::Idle, Phase::Handler, Phase::Write, Phase::Last, Phase::Head] {
            let before = Instant::now();
            pulse.enter(phase);
            let (read, since) = pulse.read();
            // Stored in microseconds, rounded down.
            assert!(read == phase && since + Duration::from_micros(1) >= before && since <= Instant::now());
        }
    }

    #[test]
    fn the_time_for_an_answer_goes_on_until_its_last_byte_has_left() {
        let origin = Instant::now();
        let pulse = pulse(origin, Phase::Write, Duration::from_secs(1));
        pulse.flushed();
        assert_eq!(pulse.read(), (Phase::Write, origin + Duration::from_secs(1)));
        pulse.body_ended();
        assert_eq!(pulse.read(), (Phase::Last, origin + Duration::from_secs(1)));
        pulse.flushed();
        assert_eq!(pulse.phase(), Phase::Idle);
    }
}
