//! A TCP proxy between a collector and its server, to cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does with the bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    /// Passes them on.
    Up,
    /// Closes both ends of every connection, and refuses new ones.
    Cut,
    /// Closes the server's end and keeps the client's open without ever answering: the server knows that its
    /// client is gone, the client does not know that its session is.
    Deaf,
    /// Closes the client's end and keeps the server's open: the client knows that its session is gone, the server does
    /// not know that its client is.
    Forgotten,
}

/// Passes connections on to a server on the loopback address until it is told otherwise; gone when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    /// The port that new connections are passed on to.
    server: Arc<AtomicU16>,
    link: watch::Sender<Link>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to the server of `url` and returns it with the URL that leads through it.
    pub(crate) async fn start(url: &str) -> (Self, String) {
        let mut url = url::Url::parse(url).unwrap();
        let server = Arc::new(AtomicU16::new(url.port().unwrap()));
        let target = Arc::clone(&server);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (link, mut watched) = watch::channel(Link::Up);
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                // A refused connection is one that is closed at once.
                if *watched.borrow_and_update() == Link::Up {
                    let server = (Ipv4Addr::LOCALHOST, target.load(Ordering::Relaxed));
                    tokio::spawn(pass(client, server.into(), watched.clone()));
                }
            }
        });
        url.set_port(Some(address.port())).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        (Self { address, server, link, accepting }, url.into())
    }

    /// Closes both ends of every connection.
    pub(crate) fn cut(&self) {
        self.link.send_replace(Link::Cut);
    }

    /// Passes new connections on to another port; what is connected stays connected.
    pub(crate) fn retarget(&self, port: u16) {
        self.server.store(port, Ordering::Relaxed);
    }

    /// Closes the server's ends only; the clients wait for answers that never come.
    pub(crate) fn deafen(&self) {
        self.link.send_replace(Link::Deaf);
    }

    /// Closes the clients' ends only; the server keeps its sessions.
    pub(crate) fn forget(&self) {
        self.link.send_replace(Link::Forgotten);
    }

    /// Passes new connections on again.
    pub(crate) fn mend(&self) {
        self.link.send_replace(Link::Up);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        println!("the proxy on {} is gone", self.address);
    }
}

async fn pass(client: TcpStream, server: SocketAddr, mut link: watch::Receiver<Link>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = copy(&mut from_server, &mut to_client) => {}
        _ = link.changed() => {}
    }
    let link = *link.borrow();
    match link {
        Link::Up | Link::Cut => return,
        Link::Deaf => drop((from_server, to_server)),
        Link::Forgotten => drop((from_client, to_client)),
    }
    // The other end stays open. Longer than any test; the proxy's runtime ends it.
    tokio::time::sleep(Duration::from_secs(3600)).await;
}
