//! A filter that is asked anew for every event.

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// `F`, without its promise that a callsite is always enabled.
///
/// A layer's filter leaves its verdict to the layer in a thread-local. Code that only asks whether something
/// would be logged, as sqlx does for each statement, leaves a verdict that no event picks up. A callsite
/// that is always enabled is not evaluated, its event finds that verdict, and a line is lost
/// (<https://github.com/tokio-rs/tracing/issues/2519>).
pub(super) struct Evaluated<F>(pub(super) F);

impl<S: Subscriber, F: Filter<S>> Filter<S> for Evaluated<F> {
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        let interest = self.0.callsite_enabled(metadata);
        if interest.is_always() { Interest::sometimes() } else { interest }
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        self.0.enabled(metadata, context)
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        self.0.event_enabled(event, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.max_level_hint()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.0.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.0.on_record(id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.on_close(id, context);
    }
}
