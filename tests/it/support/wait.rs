//! Conditions with a limit and a name.

use std::time::{Duration, Instant};

use crate::POLL;

/// Waits until `condition` holds, and fails the test with `what` when it does not within `limit`.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Fails the test with `what` as soon as `condition` does not hold, for the whole of `window`.
pub(crate) async fn throughout(window: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while began.elapsed() < window {
        assert!(condition().await, "after {:?}, not throughout {window:?}: {what}", began.elapsed());
        tokio::time::sleep(POLL).await;
    }
}
