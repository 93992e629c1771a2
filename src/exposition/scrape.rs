//! One answer of `/metrics`.

use std::sync::Arc;

use bytes::Bytes;

use super::negotiate::Answer;
use super::{Metrics, Publication, Published, View, gzip, state};
use crate::clock::BootInstant;

/// The pieces of one answer, to be written one after another.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Queue families (empty when none are published), what depends on the instant, own metrics.
    pub parts: [Bytes; 3],
    /// The queue state in it, without whose permission it must not be written.
    pub published: Option<Arc<Published>>,
}

impl Scrape {
    /// Number of bytes of the whole answer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// Assembles an answer. The publication is read exactly once, after everything that takes time, so that
/// all queue families come from one refresh and the fence is checked right before the bytes are written.
#[must_use]
pub fn scrape(metrics: &Metrics, publication: &Publication, answer: Answer) -> Scrape {
    let encoded = |text: String| if answer.gzip { gzip::member(text.as_bytes()) } else { Bytes::from(text) };
    let own = encoded(metrics.own(answer.format));

    let now = BootInstant::now();
    let view = publication.view(now);
    let queues = match &view {
        View::Published(published) if answer.gzip => published.rendered.gzip(),
        View::Published(published) => published.rendered.body(),
        View::Absent | View::Failed | View::Elected(_) => Bytes::new(),
    };
    // Gathered after the view: whoever publishes a refresh has counted it before.
    let tail = if metrics.collects() {
        state::render(&view, now, metrics.interval(), &metrics.collection(), answer.format)
    } else {
        String::new()
    };
    let published = match view {
        View::Published(published) => Some(published),
        View::Absent | View::Failed | View::Elected(_) => None,
    };
    Scrape { parts: [queues, encoded(tail), own], published }
}
