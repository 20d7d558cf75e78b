//! Listening sockets.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 1024;

/// Listens on an address. `[::]` accepts IPv4 too, whatever the node's default (`bindv6only`); where the node has no IPv6, it means
/// `0.0.0.0`.
///
/// # Errors
/// If the address is in use, or is not one of this host.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_on(address, |domain| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))
}

/// `create` makes a socket: for a test, one that has no IPv6.
fn listen_on(address: SocketAddr, create: impl Fn(Domain) -> io::Result<Socket>) -> io::Result<TcpListener> {
    let all = address.ip() == Ipv6Addr::UNSPECIFIED;
    match bound(address, &create) {
        Err(error) if all && error.kind() != io::ErrorKind::AddrInUse => {
            tracing::warn!(%error, %address, "the node has no IPv6: listening on IPv4 alone");
            bound(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), &create)
        }
        bound => bound,
    }
}

fn bound(address: SocketAddr, create: impl Fn(Domain) -> io::Result<Socket>) -> io::Result<TcpListener> {
    let socket = create(Domain::for_address(address))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A restart must not wait for connections of the process before.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)
    }

    #[tokio::test]
    async fn all_addresses_include_ipv4() {
        let listener = listen(any()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() && std::net::TcpListener::bind("[::1]:0").is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[tokio::test]
    async fn node_without_ipv6_is_served() {
        let without = |domain: Domain| match domain {
            Domain::IPV6 => Err(io::Error::from(io::ErrorKind::Unsupported)),
            other => Socket::new(other, Type::STREAM, Some(Protocol::TCP)),
        };
        let listener = listen_on(any(), without).unwrap();
        assert!(listener.local_addr().unwrap().is_ipv4());
        let named = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0);
        assert!(listen_on(named, without).is_err(), "an address that was asked for is not replaced");
    }

    #[tokio::test]
    async fn port_in_use_is_an_error() {
        let first = listen(any()).await.unwrap();
        let second = listen(SocketAddr::new(any().ip(), first.local_addr().unwrap().port())).await;
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
