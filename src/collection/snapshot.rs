//! The immutable result of one refresh.

use std::time::{Duration, SystemTime};

use crate::clock::BootInstant;

/// A message priority, exported as the label `message_priority`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Priority {
    /// Stored as 3.
    High,
    /// Stored as 2.
    Medium,
    /// Stored as 1.
    Low,
}

impl Priority {
    /// Every priority, in the order of export.
    pub const ALL: [Self; 3] = [Self::High, Self::Medium, Self::Low];

    /// The value of the label `message_priority`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::High => "HIGH",
            Self::Medium => "MEDIUM",
            Self::Low => "LOW",
        }
    }
}

/// What is known of one priority of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PriorityState {
    /// Messages that a consumer could receive now.
    pub ready: u64,
    /// Messages under a live lease.
    pub in_flight: u64,
    /// Seconds since the oldest ready message was enqueued, 0 when there is none.
    pub oldest_ready_age: f64,
    /// Seconds since the oldest message under a live lease was enqueued, 0 when there is none.
    pub oldest_in_flight_age: f64,
}

/// One queue with all three priorities, zeros included.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueState {
    /// The queue's unique name.
    pub name: String,
    /// One state for each of [`Priority::ALL`], in that order.
    pub priorities: [PriorityState; 3],
}

/// The immutable result of one refresh: everything in it was true at [`database_time`](Self::database_time).
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// At most `max_queues` queues, ordered by name, no two of the same name.
    pub queues: Vec<QueueState>,
    /// How many queues the database has.
    pub queues_found: u64,
    /// The database's time at which every value was read.
    pub database_time: SystemTime,
    /// The instant before the query was sent: the snapshot is at most as old as the time since.
    pub sent_at: BootInstant,
    /// How long the query took, from sending it to its last row.
    pub duration: Duration,
}

impl Snapshot {
    /// How many queues are left out of [`queues`](Self::queues) for the budget `max_queues`.
    #[must_use]
    pub fn queues_dropped(&self) -> u64 {
        self.queues_found.saturating_sub(self.queues.len() as u64)
    }
}
