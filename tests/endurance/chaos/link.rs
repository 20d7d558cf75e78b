//! A TCP forwarder to several ports: it acts as the Service, and its "weather" as the network in front of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::dice::Dice;
use crate::runtime;

/// What happens to sent bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Clear,
    /// With this probability in percent, a connection ends instead of forwarding the next bytes.
    Resets(u64),
    /// With this probability in percent, half of the bytes are forwarded, then the connection ends.
    Cuts(u64),
    /// Bytes are delayed by this number of milliseconds.
    Slow(u64),
    /// No byte arrives until the weather changes.
    Hangs,
}

/// A loopback address, and the ports behind it.
pub(crate) struct Link {
    address: SocketAddr,
    shared: Arc<LinkState>,
}

struct LinkState {
    backends: Mutex<Vec<u16>>,
    weather: Mutex<Weather>,
    dice: Mutex<Dice>,
    next: AtomicUsize,
    /// How often the weather disturbed a connection.
    events: AtomicUsize,
}

impl Link {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(LinkState {
            backends: Mutex::default(),
            weather: Mutex::new(Weather::Clear),
            dice: Mutex::new(Dice::new(0)),
            next: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
        });
        let (runtime, own) = (runtime(), Arc::clone(&shared));
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(Arc::clone(&own).forward(client));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn set_backends(&self, ports: Vec<u16>) {
        *self.shared.backends.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    pub(crate) fn events(&self) -> usize {
        self.shared.events.load(Ordering::Relaxed)
    }
}

impl LinkState {
    /// Forwards in both directions, until one side or the weather ends the connection. Dropping a stream closes it.
    async fn forward(self: Arc<Self>, client: TcpStream) {
        let backends = self.backends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if backends.is_empty() {
            return;
        }
        let port = backends[self.next.fetch_add(1, Ordering::Relaxed) % backends.len()];
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::select! {
            () = self.pump(&mut from_client, &mut to_server) => {}
            () = self.pump(&mut from_server, &mut to_client) => {}
        }
    }

    async fn pump(
        &self,
        from: &mut tokio::net::tcp::OwnedReadHalf,
        to: &mut tokio::net::tcp::OwnedWriteHalf,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let (weather, strikes) = self.look();
            match weather {
                Weather::Resets(_) if strikes => return,
                Weather::Cuts(_) if strikes => return drop(to.write_all(&buffer[..length / 2]).await),
                Weather::Slow(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                Weather::Hangs => {
                    while self.look().0 == Weather::Hangs {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                Weather::Clear | Weather::Resets(_) | Weather::Cuts(_) => {}
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }

    /// The weather, and whether it disturbs these bytes.
    fn look(&self) -> (Weather, bool) {
        let weather = *self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let strikes = match weather {
            Weather::Clear => false,
            Weather::Resets(often) | Weather::Cuts(often) => dice.percent(often),
            Weather::Slow(_) | Weather::Hangs => true,
        };
        self.events.fetch_add(usize::from(strikes), Ordering::Relaxed);
        (weather, strikes)
    }
}
