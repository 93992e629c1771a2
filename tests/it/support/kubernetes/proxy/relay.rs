//! The connections of the proxy and the calls on them.

use std::convert::Infallible;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::super::ApiServer;
use super::call::{Call, Fault};

/// What happens to connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct State {
    pub(super) link: Link,
    /// A connection of an earlier one is reset.
    pub(super) generation: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Link {
    Up,
    /// New connections are refused.
    Cut,
    /// Nothing is read, written or closed.
    Frozen,
}

/// A fault, and the calls it is for.
pub(super) struct Rule {
    pub(super) matches: Box<dyn Fn(&Call) -> bool + Send>,
    pub(super) fault: Fault,
    /// How many more calls.
    pub(super) times: usize,
}

pub(super) struct Relay {
    server_port: u16,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    journal: Mutex<Vec<Call>>,
    rules: Mutex<Vec<Rule>>,
    released: watch::Sender<()>,
    /// One more reference for each watch that has not ended.
    watches: Arc<()>,
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The API server did not answer, or nobody may know that it did.
struct NoAnswer;

impl Relay {
    pub(super) fn new(server: &ApiServer) -> Self {
        Self {
            server_port: server.port(),
            acceptor: Arc::new(server.authority().server()).into(),
            connector: Arc::new(server.authority().client()).into(),
            journal: Mutex::default(),
            rules: Mutex::default(),
            released: watch::Sender::default(),
            watches: Arc::default(),
        }
    }

    pub(super) fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap()
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Vec<Call>> {
        self.journal.lock().unwrap()
    }

    pub(super) fn release(&self) {
        self.released.send_replace(());
    }

    pub(super) fn open_watches(&self) -> usize {
        Arc::strong_count(&self.watches) - 1
    }

    /// Accepts connections as the state allows it, until the proxy is dropped.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener, mut state: watch::Receiver<State>) {
        let address = listener.local_addr().unwrap();
        let mut listener = Some(listener);
        loop {
            let State { link, generation } = *state.borrow_and_update();
            if link == Link::Cut {
                listener = None;
            } else if listener.is_none() {
                listener = Some(TcpListener::bind(address).await.unwrap());
            }
            let accepted = async {
                match &listener {
                    Some(listener) if link == Link::Up => listener.accept().await.unwrap().0,
                    _ => pending().await,
                }
            };
            tokio::select! {
                // What was cut accepts nobody any more.
                biased;
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                client = accepted => {
                    tokio::spawn(Arc::clone(&self).serve(client, state.clone(), generation));
                }
            }
        }
    }

    /// Serves one connection as long as its generation lasts.
    async fn serve(self: Arc<Self>, client: TcpStream, mut state: watch::Receiver<State>, generation: u32) {
        client.set_nodelay(true).unwrap();
        let socket = socket2::Socket::from(client.as_fd().try_clone_to_owned().unwrap());
        let reset = CancellationToken::new();
        let relay = Arc::clone(&self);
        let of_service = reset.clone();
        {
            let mut connection = pin!(async move {
                let Ok(client) = self.acceptor.accept(client).await else { return };
                let service = service_fn(|request| {
                    let (relay, reset) = (Arc::clone(&relay), of_service.clone());
                    async move {
                        match relay.call(request).await {
                            Ok(answer) => Ok::<_, Infallible>(answer),
                            Err(NoAnswer) => {
                                reset.cancel();
                                pending().await
                            }
                        }
                    }
                });
                _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service).await;
            });
            loop {
                let State { link, generation: current } = *state.borrow_and_update();
                if current != generation {
                    break;
                }
                tokio::select! {
                    biased;
                    changed = state.changed() => {
                        if changed.is_err() {
                            break;
                        }
                    }
                    () = reset.cancelled() => break,
                    () = &mut connection, if link == Link::Up => return,
                }
            }
            // The last descriptor is closed with the socket: a reset, not an orderly end.
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }

    /// Does with a call what the rules say.
    async fn call(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| NoAnswer)?.to_bytes();
        let call = Call::new(&head, body.clone());
        let fault = self.fault(&call);
        let watches = call.verb == "watch";
        // Whoever sees the call in the journal may release it.
        let mut released = self.released.subscribe();
        let number = {
            let mut journal = self.journal();
            journal.push(call);
            journal.len() - 1
        };
        if let Some(target) = fault.and_then(|fault| fault.target(&head.uri.to_string())) {
            head.uri = target.parse().unwrap();
        }
        if let Some(answer) = fault.and_then(Fault::answer) {
            return Ok(self.answered(number, answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())));
        }
        let forwarded = self.forward(number, watches, Request::from_parts(head, Full::from(body)));
        match fault {
            Some(Fault::Silent) => Ok(self.answered(number, silent())),
            Some(Fault::Hang) => pending().await,
            Some(Fault::Reset) => Err(NoAnswer),
            Some(Fault::LoseAnswer) => {
                _ = forwarded.await;
                Err(NoAnswer)
            }
            Some(Fault::Delay(time)) => {
                detached(async move {
                    tokio::time::sleep(time).await;
                    forwarded.await
                })
                .await
            }
            Some(Fault::Hold) => {
                detached(async move {
                    _ = released.changed().await;
                    forwarded.await
                })
                .await
            }
            _ => forwarded.await,
        }
    }

    /// The fault of the rule that was made last of those that match.
    fn fault(&self, call: &Call) -> Option<Fault> {
        let mut rules = self.rules();
        let rule = rules.iter_mut().rev().find(|rule| rule.times > 0 && (rule.matches)(call))?;
        rule.times -= 1;
        Some(rule.fault)
    }

    /// Passes a call on to the API server, over a connection of its own.
    fn forward(
        self: &Arc<Self>,
        number: usize,
        watches: bool,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<Body>, NoAnswer>> + Send + use<> {
        let relay = Arc::clone(self);
        async move {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.server_port)).await.map_err(|_| NoAnswer)?;
            server.set_nodelay(true).unwrap();
            let name = IpAddr::from(Ipv4Addr::LOCALHOST).into();
            let server = relay.connector.connect(name, server).await.map_err(|_| NoAnswer)?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(server)).await.map_err(|_| NoAnswer)?;
            // Ends with the body of the answer.
            tokio::spawn(connection);
            let answer = sender.send_request(request).await.map_err(|_| NoAnswer)?;
            let open = (watches && answer.status().is_success()).then(|| Arc::clone(&relay.watches));
            let answer = answer.map(|body| {
                body.map_frame(move |frame| {
                    _ = &open;
                    frame
                })
                .boxed_unsync()
            });
            Ok(relay.answered(number, answer))
        }
    }

    fn answered(&self, number: usize, answer: Response<Body>) -> Response<Body> {
        self.journal()[number].status = Some(answer.status().as_u16());
        answer
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("server_port", &self.server_port).finish_non_exhaustive()
    }
}

/// Goes on when nobody waits for it any more.
async fn detached(
    answer: impl Future<Output = Result<Response<Body>, NoAnswer>> + Send + 'static,
) -> Result<Response<Body>, NoAnswer> {
    tokio::spawn(answer).await.unwrap_or(Err(NoAnswer))
}

/// An answer whose body never comes.
fn silent() -> Response<Body> {
    let mut answer = Response::new(http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync());
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}
