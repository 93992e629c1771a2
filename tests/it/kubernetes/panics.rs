//! A term that ends by a panic, in the election itself and with a platform of the test.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use retsu_collector::collection::Collector;
use retsu_collector::config::LockKey;
use retsu_collector::election::{Elector, Grant, Liveness, Platform, Role, Sighting, Status, Term, Timing};
use retsu_collector::exposition::{Metrics, PoolState, Publication};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::stage::{Holder, LIMIT};
use crate::support::{self, eventually, lock_holders, open, throughout};

/// A platform on which the search for an old holder's end panics.
struct Faulty {
    vacancies: watch::Sender<u64>,
    /// The term whose end it was asked to tell.
    asked: watch::Sender<Option<Term>>,
    told: CancellationToken,
}

impl Platform for Faulty {
    fn predecessors_ended(&self, _grant: Grant, _last: Sighting) -> BoxFuture<'static, ()> {
        async { panic!("a fault of this test") }.boxed()
    }

    fn withdrawal_told(&self, term: Term) -> BoxFuture<'static, ()> {
        self.asked.send_replace(Some(term));
        self.told.clone().cancelled_owned().boxed()
    }

    fn nobody_stands_by(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    fn vacancies(&self) -> watch::Receiver<u64> {
        self.vacancies.subscribe()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_told_before_the_lock_is_free_and_goes_on_after_that() {
    let database = support::queue_database().await;
    let observer = database.pool().await;
    // The search begins only with a holder that was seen before.
    let holder = Holder::take(&database.url(), "retsu-collector F=3000ms T=1/7 a").await;
    let settings = crate::election::settings(LIMIT);
    let platform = Arc::new(Faulty {
        vacancies: watch::Sender::new(0),
        asked: watch::Sender::new(None),
        told: CancellationToken::new(),
    });
    let status = watch::Sender::new(Status::starting());
    let mut watched = status.subscribe();
    let pool = || PoolState { size: 0, idle: 0, max: 10 };
    let elector = Elector {
        database: open(&database.url()),
        collector: Collector::new(100, LIMIT),
        timing: Timing::new(&settings).unwrap(),
        settings,
        publication: Arc::new(Publication::default()),
        metrics: Arc::new(Metrics::new(LIMIT, LockKey::RETSU, [], pool).unwrap()),
        status,
        liveness: Arc::new(Liveness::new(LIMIT)),
        identity: "panics".to_owned(),
        platform: Arc::<Faulty>::clone(&platform),
    };
    let mut asked = platform.asked.subscribe();
    let running = tokio::spawn(AssertUnwindSafe(elector.run(CancellationToken::new())).catch_unwind());
    timeout(LIMIT, watched.wait_for(|status| status.holder != Default::default())).await.unwrap().unwrap();
    holder.release().await;

    let term = timeout(LIMIT, asked.wait_for(Option::is_some)).await.unwrap().unwrap().unwrap();
    let status = watched.borrow().clone();
    let tenure = status.tenure.unwrap();
    assert_eq!((status.role, tenure.term, tenure.ended), (Role::Standby, term, Some("panic")));
    throughout(Duration::from_millis(300), "the lock is held until the end is told", async || {
        lock_holders(&observer).await == 1
    })
    .await;
    assert!(!running.is_finished(), "the panic waits as well");
    platform.told.cancel();
    eventually(LIMIT, "the lock is free", async || lock_holders(&observer).await == 0).await;
    let panic = running.await.unwrap().unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a fault of this test"));
}
