//! The listening socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::HttpError;
use crate::config::ManagementSettings;

const BACKLOG: i32 = 1024;

/// Listens as `settings` say. Without an address: on every address of both families through one socket,
/// or of IPv4 where the machine has no IPv6. Needs a Tokio runtime.
///
/// # Errors
/// [`HttpError::Bind`] names the address, the configuration key and its value.
pub fn bind(settings: &ManagementSettings) -> Result<TcpListener, HttpError> {
    let port = settings.port;
    let on = |address: IpAddr| {
        let address = SocketAddr::new(address, port);
        listen(address).map_err(|source| HttpError::Bind { address, port, source })
    };
    match settings.bind_address {
        Some(address) => on(address),
        None => match on(Ipv6Addr::UNSPECIFIED.into()) {
            Err(HttpError::Bind { source, .. }) if lacks_ipv6(&source) => on(Ipv4Addr::UNSPECIFIED.into()),
            result => result,
        },
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // The default of net.ipv6.bindv6only is the machine's choice; ours is both families.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The kernel was built or booted without IPv6, or it is disabled on every interface.
fn lacks_ipv6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_without_ipv6_falls_back_to_ipv4() {
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            assert!(lacks_ipv6(&io::Error::from(errno)));
        }
        for errno in [Errno::ADDRINUSE, Errno::ACCESS, Errno::MFILE] {
            assert!(!lacks_ipv6(&io::Error::from(errno)));
        }
    }
}
