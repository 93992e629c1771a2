//! A proxy before the API server that breaks what it is told to break, and keeps a journal.

mod call;
mod relay;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) use call::{Call, Fault};
use relay::{Link, Relay, Rule, State};

use super::ApiServer;
use crate::support::free_port;

/// A proxy with a certificate of the same authority as the API server's; gone when dropped. It passes every call on
/// as it is, until it is told otherwise.
#[derive(Debug)]
pub(crate) struct ApiProxy {
    port: u16,
    state: watch::Sender<State>,
    relay: Arc<Relay>,
}

impl ApiProxy {
    /// Starts a proxy to an API server.
    pub(crate) async fn start(server: &ApiServer) -> Self {
        let relay = Arc::new(Relay::new(server));
        let port = free_port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let (state, watched) = watch::channel(State { link: Link::Up, generation: 0 });
        tokio::spawn(Arc::clone(&relay).accept(listener, watched));
        Self { port, state, relay }
    }

    /// The URL that leads through it.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Does this with every call that matches, from now on. The rule that was made last comes first.
    pub(crate) fn inject(&self, matches: impl Fn(&Call) -> bool + Send + 'static, fault: Fault) {
        self.inject_times(usize::MAX, matches, fault);
    }

    /// Does this with the next `times` calls that match.
    pub(crate) fn inject_times(&self, times: usize, matches: impl Fn(&Call) -> bool + Send + 'static, fault: Fault) {
        self.relay.rules().push(Rule { matches: Box::new(matches), fault, times });
    }

    /// Passes every new call on again.
    pub(crate) fn clear(&self) {
        self.relay.rules().clear();
    }

    /// Passes the calls on that are held; the answer of each is in the journal when it has come.
    pub(crate) fn release(&self) {
        self.relay.release();
    }

    /// Resets every connection and refuses new ones.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| *state = State { link: Link::Cut, generation: state.generation + 1 });
    }

    /// Lets every connection, old and new, be without moving a byte: the handshake of TCP succeeds, nothing else.
    pub(crate) fn freeze(&self) {
        self.state.send_modify(|state| state.link = Link::Frozen);
    }

    /// Lets connections through again after [`cut`](Self::cut) or [`freeze`](Self::freeze). Those that were frozen
    /// go on.
    pub(crate) fn mend(&self) {
        self.state.send_modify(|state| state.link = Link::Up);
    }

    /// Resets every connection; new ones are welcome.
    pub(crate) fn reset_connections(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Every call so far, in the order of their arrival.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.journal().clone()
    }

    /// How many calls that arrived since an instant match.
    pub(crate) fn count_since(&self, since: Instant, matches: impl Fn(&Call) -> bool) -> usize {
        self.journal().iter().filter(|call| call.at >= since && matches(call)).count()
    }

    /// How many calls match.
    pub(crate) fn count(&self, matches: impl Fn(&Call) -> bool) -> usize {
        self.journal().iter().filter(|call| matches(call)).count()
    }

    /// How many calls there were of each verb.
    pub(crate) fn verbs(&self) -> BTreeMap<&'static str, usize> {
        let mut verbs = BTreeMap::new();
        for call in self.journal().iter() {
            *verbs.entry(call.verb).or_default() += 1;
        }
        verbs
    }

    /// How many watches the API server has answered that have not ended.
    pub(crate) fn open_watches(&self) -> usize {
        self.relay.open_watches()
    }

    fn journal(&self) -> MutexGuard<'_, Vec<Call>> {
        self.relay.journal()
    }
}
