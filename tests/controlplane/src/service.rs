//! A Service, as far as its clients can see.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

/// Forwards connections to one address to the ready replicas in turn. It lives as long as the test program.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    replicas: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    /// Listens on a free port of the loopback address. No replica is ready.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let replicas = Arc::new(Mutex::new(Vec::new()));
        let behind = replicas.clone();
        thread::spawn(move || {
            let turn = AtomicUsize::new(0);
            for stream in listener.incoming().flatten() {
                let behind: Vec<SocketAddr> = behind.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                let replica = behind.get(turn % behind.len().max(1)).copied();
                thread::spawn(move || replica.and_then(|replica| pass(&stream, replica).ok()));
            }
        });
        Ok(Self { address, replicas })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the address, without a path.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Sends new connections to these replicas.
    pub fn behind(&self, replicas: &[SocketAddr]) {
        *self.replicas.lock().unwrap_or_else(PoisonError::into_inner) = replicas.to_vec();
    }
}

/// Forwards bytes in both directions until both are done.
fn pass(client: &TcpStream, replica: SocketAddr) -> io::Result<()> {
    let replica = TcpStream::connect(replica)?;
    for stream in [client, &replica] {
        stream.set_nodelay(true)?;
    }
    let (mut from_client, mut to_replica) = (client.try_clone()?, replica.try_clone()?);
    let back = thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_replica);
        to_replica.shutdown(std::net::Shutdown::Write)
    });
    let _ = io::copy(&mut &replica, &mut &*client);
    let _ = client.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
    Ok(())
}
