//! Whether the database answers, asked once however many ask.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

/// How long the database may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Something that can tell whether the database answers.
pub trait Ready: Send + Sync + 'static {
    /// Asks the database for an answer. The error is a stable word that says what went wrong and nothing
    /// about where the database is.
    fn ping(&self) -> BoxFuture<'static, Result<(), &'static str>>;
}

type Check = BoxFuture<'static, Result<(), &'static str>>;

/// Checks that arrive while one is under way share its outcome, so that a storm of probes uses one
/// connection of the pool.
#[derive(Clone)]
pub(super) struct Readiness {
    database: Arc<dyn Ready>,
    under_way: Arc<Mutex<Option<WeakShared<Check>>>>,
}

impl Readiness {
    pub(super) fn new(database: Arc<dyn Ready>) -> Self {
        Self { database, under_way: Arc::default() }
    }

    /// `Ok` when the database answers within its limit.
    pub(super) async fn check(&self) -> Result<(), &'static str> {
        self.join().await
    }

    fn join(&self) -> Shared<Check> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // Held weakly: when everybody who waited has left, the check ends with them instead of going on,
        // and timing out, in front of the next one.
        if let Some(check) = under_way.as_ref().and_then(WeakShared::upgrade)
            && check.peek().is_none()
        {
            return check;
        }
        let ping = self.database.ping();
        let check = async move { tokio::time::timeout(LIMIT, ping).await.unwrap_or(Err("timeout")) }.boxed().shared();
        *under_way = check.downgrade();
        check
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    struct Database {
        pings: Arc<AtomicUsize>,
        takes: Duration,
    }

    impl Ready for Database {
        fn ping(&self) -> Check {
            self.pings.fetch_add(1, Ordering::SeqCst);
            let takes = self.takes;
            async move {
                tokio::time::sleep(takes).await;
                Ok(())
            }
            .boxed()
        }
    }

    fn readiness(takes: Duration) -> (Readiness, Arc<AtomicUsize>) {
        let pings = Arc::new(AtomicUsize::new(0));
        (Readiness::new(Arc::new(Database { pings: Arc::clone(&pings), takes })), pings)
    }

    #[tokio::test(start_paused = true)]
    async fn checks_at_the_same_time_ask_the_database_once() {
        let (readiness, pings) = readiness(Duration::from_millis(100));
        let outcomes = join_all((0..500).map(|_| readiness.check())).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(pings.load(Ordering::SeqCst), 1);
        assert_eq!(readiness.check().await, Ok(()));
        assert_eq!(pings.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_takes_longer_than_two_seconds_is_not_ready() {
        let (readiness, _) = readiness(Duration::from_millis(2001));
        let asked = Instant::now();
        assert_eq!(readiness.check().await, Err("timeout"));
        assert_eq!(asked.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_everybody_left_does_not_answer_the_next_one() {
        let (readiness, pings) = readiness(Duration::from_millis(1500));
        assert!(tokio::time::timeout(Duration::from_millis(100), readiness.check()).await.is_err());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(readiness.check().await, Ok(()));
        assert_eq!(pings.load(Ordering::SeqCst), 2);
    }
}
