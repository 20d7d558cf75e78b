//! A few places, which clients take in turns: source addresses, and within an address namespaces.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::oneshot, time::Instant};

use super::{BoundedLanes, Bounds, Ticket, Turns};
use crate::server::Client;

/// How many requests of one address may wait. Each of them ends at its deadline.
const BOUNDS: Bounds = Bounds { each: 32, total: 128 };

/// The places. Clones share them.
///
/// An address leaves one place to other addresses, and a namespace leaves one of the places of its address to other
/// namespaces, as far as there are several.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Mutex<Inner>>);

/// A place that is taken. It is free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    client: Client,
}

#[derive(Debug)]
struct Inner {
    places: usize,
    /// How many places each client has.
    taken: BTreeMap<IpAddr, BTreeMap<Option<Arc<str>>, usize>>,
    waiting: HashMap<IpAddr, Line>,
    /// The addresses that wait.
    turns: Turns<IpAddr, ()>,
}

/// The requests of one address that wait.
type Line = BoundedLanes<Option<Arc<str>>, (), oneshot::Sender<Place>>;

/// How many of several places one client may take.
const fn share(places: usize) -> usize {
    if places > 1 { places - 1 } else { places }
}

impl Places {
    /// This many places.
    pub(crate) fn new(places: usize) -> Self {
        let (taken, waiting, turns) = (BTreeMap::new(), HashMap::new(), Turns::default());
        Self(Arc::new(Mutex::new(Inner { places, taken, waiting, turns })))
    }

    /// Takes a place, and waits for it until `by`. `None` if it was not the client's turn until then, or too many requests of the
    /// client wait.
    pub(crate) async fn take(&self, client: &Client, by: Instant) -> Option<Place> {
        let (waiter, place) = oneshot::channel();
        // What is dropped for lack of room learns of it by that.
        drop(self.lock().wait(client, waiter));
        self.hand_out();
        tokio::time::timeout_at(by, place).await.ok()?.ok()
    }

    /// Hands out free places to requests that wait.
    fn hand_out(&self) {
        loop {
            let Some((client, waiter)) = self.lock().next() else { return };
            let place = Place { places: self.clone(), client };
            // The place of a request that gave up is dropped here, outside of the lock that its drop takes.
            if waiter.send(place).is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Inner {
    /// Adds a request. Returns the request that was dropped for lack of room.
    fn wait(&mut self, client: &Client, waiter: oneshot::Sender<Place>) -> Option<oneshot::Sender<Place>> {
        let line = self.waiting.entry(client.address).or_insert_with(|| Line::new(BOUNDS, |_| 0));
        // Requests that gave up take no room.
        line.retain(|waiter| !waiter.is_closed());
        let dropped = line.push(&client.namespace, (), waiter);
        self.turns.set(&client.address, Some(()));
        dropped
    }

    /// Takes a free place for the request whose turn it is.
    fn next(&mut self) -> Option<(Client, oneshot::Sender<Place>)> {
        let of_address = |taken: &BTreeMap<_, usize>| taken.values().sum::<usize>();
        if self.taken.values().map(of_address).sum::<usize>() >= self.places {
            return None;
        }
        self.waiting.retain(|address, line| {
            line.retain(|waiter| !waiter.is_closed());
            let is_empty = line.len() == 0;
            if is_empty {
                self.turns.set(address, None);
            }
            !is_empty
        });
        let Self { places, taken, waiting, turns } = self;
        let most = share(*places);
        let of = |address: &IpAddr, namespace: &Option<Arc<str>>| {
            taken.get(address).and_then(|taken| taken.get(namespace)).copied().unwrap_or(0)
        };
        let mut found = None;
        let ((), address) = turns.first((), |address| {
            let is_within = taken.get(address).map_or(0, of_address) < most;
            let line = waiting.get_mut(address).filter(|_| is_within);
            found =
                line.and_then(|line| line.pop_where((), |namespace| of(address, namespace) < share(most)));
            found.is_some()
        })?;
        let (address, Ticket { item: waiter, key: namespace, .. }) = (*address, found?);
        turns.served(&address, Some(()));
        *taken.entry(address).or_default().entry(namespace.clone()).or_default() += 1;
        Some((Client { address, namespace }, waiter))
    }

    /// Frees a place.
    fn free(&mut self, client: &Client) {
        let Some(of_address) = self.taken.get_mut(&client.address) else { return };
        if let Some(taken) = of_address.get_mut(&client.namespace) {
            *taken -= 1;
        }
        of_address.retain(|_, taken| *taken > 0);
        if of_address.is_empty() {
            self.taken.remove(&client.address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().free(&self.client);
        self.places.hand_out();
    }
}
