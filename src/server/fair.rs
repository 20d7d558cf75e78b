//! A semaphore whose units are shared fairly by source address, and within an address by namespace.
//!
//! An address may hold at most [`PART`] times as many units as remain free. One address alone can therefore use three
//! quarters of all units, and an address that holds nothing finds free units: once n greedy addresses have released their
//! units and acquired new ones, 1/(3n + 1) of all units stay free. The same rule divides an address's part among its
//! namespaces. Of the waiting requests, those of the address that holds least are served first, and within it those of the
//! namespace that holds least.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::oneshot, time::Instant};

/// How many units one client may hold for each unit that remains free.
const PART: usize = 3;
/// The number of addresses, or of namespaces of one, up to which those without units are kept: most take units again soon,
/// and each removal frees memory that is then allocated again.
const KEPT: usize = 32;

/// The client that units are counted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The source address of the connection.
    pub address: IpAddr,
    /// The namespace of the review, once it is known.
    pub namespace: Option<Arc<str>>,
}

impl Client {
    /// A client at `address`, before its namespace is known.
    pub fn new(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), namespace: None }
    }

    /// The same client with the namespace of its review.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Self {
        Self { address: self.address, namespace: Some(namespace.into()) }
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new(Ipv4Addr::UNSPECIFIED.into())
    }
}

/// The semaphore. Clones share the units.
#[derive(Clone, Debug)]
pub(crate) struct FairSemaphore(Arc<Mutex<Units>>, usize);

/// Units in use. Dropping the permit frees the units.
#[derive(Debug)]
pub(crate) struct Permit {
    fair: FairSemaphore,
    client: Client,
    amount: usize,
}

#[derive(Debug)]
struct Units {
    free: usize,
    /// Sorted maps: hashing costs more than a search among a few clients.
    addresses: BTreeMap<IpAddr, Address>,
    /// The number of addresses at which those without units are forgotten.
    max_addresses: usize,
    /// Requests in all queues.
    waiting: usize,
    /// Counts grants, to serve clients that hold equally much in turn.
    grants: u64,
}

#[derive(Debug, Default)]
struct Address {
    used: usize,
    last: u64,
    waiting: usize,
    namespaces: BTreeMap<Option<Arc<str>>, Namespace>,
    /// The number of namespaces at which those without units are forgotten.
    max_namespaces: usize,
}

#[derive(Debug, Default)]
struct Namespace {
    used: usize,
    last: u64,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    amount: usize,
    granted: oneshot::Sender<Permit>,
}

/// Why a client gets no units now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    /// Too few units are free for this address.
    Address,
    /// Too few units of its address are left for this namespace.
    Namespace,
}

impl FairSemaphore {
    /// A semaphore with this many units.
    pub(crate) fn new(units: usize) -> Self {
        let state =
            Units { free: units, addresses: BTreeMap::new(), max_addresses: KEPT, waiting: 0, grants: 0 };
        Self(Arc::new(Mutex::new(state)), units)
    }

    /// All units, free or in use.
    pub(crate) fn units(&self) -> usize {
        self.1
    }

    /// Takes units if the client's share has them now.
    pub(crate) fn try_acquire(&self, client: &Client, amount: usize) -> Option<Permit> {
        let mut state = self.lock();
        state.check(client, amount).ok()?;
        state.take(client, amount);
        Some(self.permit(client.clone(), amount))
    }

    /// Whether the client could take a unit now.
    pub(crate) fn has_room(&self, client: &Client) -> bool {
        self.lock().check(client, 1).is_ok()
    }

    /// Takes units, and waits for them until `by`. `None` if the client's share had too few units until then.
    pub(crate) async fn acquire(&self, client: &Client, amount: usize, by: Instant) -> Option<Permit> {
        let granted = {
            let mut state = self.lock();
            if state.waiting == 0 && state.check(client, amount).is_ok() {
                state.take(client, amount);
                return Some(self.permit(client.clone(), amount));
            }
            let (waiter, granted) = oneshot::channel();
            let address = state.address(client.address);
            address.waiting += 1;
            let namespace = address.namespace(client.namespace.as_ref());
            namespace.queue.push_back(Waiter { amount, granted: waiter });
            state.waiting += 1;
            granted
        };
        // The requests that wait may rank after this one.
        self.grant();
        tokio::time::timeout_at(by, granted).await.ok()?.ok()
    }

    /// Grants free units to waiting requests.
    fn grant(&self) {
        let mut granted = Vec::new();
        {
            let mut state = self.lock();
            while state.waiting > 0
                && let Some((client, waiter)) = state.next()
            {
                state.take(&client, waiter.amount);
                granted.push((waiter.granted, self.permit(client, waiter.amount)));
            }
        }
        for (waiter, permit) in granted {
            // The permit of a waiter that gave up is dropped here, outside of the lock that its drop takes.
            drop(waiter.send(permit));
        }
    }

    fn permit(&self, client: Client, amount: usize) -> Permit {
        Permit { fair: self.clone(), client, amount }
    }

    fn lock(&self) -> MutexGuard<'_, Units> {
        self.0.lock()
    }
}

impl Units {
    /// Whether the client may take `amount` more.
    fn check(&self, client: &Client, amount: usize) -> Result<(), Shortage> {
        if amount > self.free {
            return Err(Shortage::Address);
        }
        let Some(address) = self.addresses.get(&client.address).filter(|address| address.used > 0) else {
            // A client that holds nothing takes what is free.
            return Ok(());
        };
        if address.used + amount > PART * (self.free - amount) {
            return Err(Shortage::Address);
        }
        if self.is_within_namespace(client, amount) { Ok(()) } else { Err(Shortage::Namespace) }
    }

    /// Whether the client's namespace may take `amount` more of its address's part.
    fn is_within_namespace(&self, client: &Client, amount: usize) -> bool {
        let Some(address) = self.addresses.get(&client.address) else { return true };
        let used = address.namespaces.get(&client.namespace).map_or(0, |namespace| namespace.used);
        if client.namespace.is_none() || used == 0 {
            return true;
        }
        // The units that the address may still take.
        let left = (PART * (address.used + self.free) / (PART + 1)).saturating_sub(address.used);
        used + amount <= PART * left.saturating_sub(amount)
    }

    fn take(&mut self, client: &Client, amount: usize) {
        self.grants += 1;
        self.free -= amount;
        let grants = self.grants;
        let address = self.address(client.address);
        address.used += amount;
        address.last = grants;
        let namespace = address.namespace(client.namespace.as_ref());
        namespace.used += amount;
        namespace.last = grants;
    }

    /// The address's entry. Before a new one is added to many, those without units are removed.
    fn address(&mut self, address: IpAddr) -> &mut Address {
        if self.addresses.len() >= self.max_addresses && !self.addresses.contains_key(&address) {
            self.addresses.retain(|_, address| address.is_in_use());
            self.max_addresses = KEPT.max(2 * self.addresses.len());
        }
        self.addresses.entry(address).or_default()
    }

    fn give_back(&mut self, client: &Client, amount: usize) {
        self.free += amount;
        let Some(address) = self.addresses.get_mut(&client.address) else { return };
        address.used -= amount;
        if let Some(namespace) = address.namespaces.get_mut(&client.namespace) {
            namespace.used -= amount;
        }
    }

    /// The next request to serve, removed from its queue.
    fn next(&mut self) -> Option<(Client, Waiter)> {
        self.forget_abandoned();
        let waiting = self.addresses.iter().filter(|(_, address)| address.waiting > 0);
        let mut addresses: Vec<_> =
            waiting.map(|(key, address)| (address.used, address.last, *key)).collect();
        addresses.sort_unstable();
        for (_, _, key) in addresses {
            let address = self.addresses.get(&key)?;
            let waiting = address.namespaces.iter().filter(|(_, namespace)| !namespace.queue.is_empty());
            let mut namespaces: Vec<_> =
                waiting.map(|(name, namespace)| (namespace.used, namespace.last, name.clone())).collect();
            namespaces.sort_unstable();
            for (_, _, namespace) in namespaces {
                let client = Client { address: key, namespace };
                let amount = address.namespaces.get(&client.namespace)?.queue.front()?.amount;
                match self.check(&client, amount) {
                    Ok(()) => return self.pop(client),
                    // Freed units are kept for this address: addresses that hold more would starve it.
                    Err(Shortage::Address) => return None,
                    Err(Shortage::Namespace) => {}
                }
            }
        }
        None
    }

    fn pop(&mut self, client: Client) -> Option<(Client, Waiter)> {
        let address = self.addresses.get_mut(&client.address)?;
        let waiter = address.namespaces.get_mut(&client.namespace)?.queue.pop_front()?;
        address.waiting -= 1;
        self.waiting -= 1;
        Some((client, waiter))
    }

    /// Removes abandoned requests at the head of each queue.
    fn forget_abandoned(&mut self) {
        let waiting = &mut self.waiting;
        for address in self.addresses.values_mut() {
            if address.waiting > 0 {
                let of_address = &mut address.waiting;
                for namespace in address.namespaces.values_mut() {
                    while namespace.queue.front().is_some_and(|waiter| waiter.granted.is_closed()) {
                        namespace.queue.pop_front();
                        *of_address -= 1;
                        *waiting -= 1;
                    }
                }
            }
        }
    }
}

impl Address {
    /// The namespace's entry. Before a new one is added to many, those without units are removed.
    fn namespace(&mut self, namespace: Option<&Arc<str>>) -> &mut Namespace {
        let namespace = namespace.cloned();
        if self.namespaces.len() >= self.max_namespaces && !self.namespaces.contains_key(&namespace) {
            self.namespaces.retain(|_, namespace| namespace.is_in_use());
            self.max_namespaces = KEPT.max(2 * self.namespaces.len());
        }
        self.namespaces.entry(namespace).or_default()
    }

    fn is_in_use(&self) -> bool {
        self.used > 0 || self.waiting > 0
    }
}

impl Namespace {
    fn is_in_use(&self) -> bool {
        self.used > 0 || !self.queue.is_empty()
    }
}

impl Permit {
    /// Adds the units of another permit of the same client.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Counts the units for a namespace of the client's address from now on. Returns false and changes nothing if the
    /// namespace would exceed its share.
    pub(crate) fn assign(&mut self, namespace: &str) -> bool {
        let client = self.client.of_namespace(namespace);
        let mut state = self.fair.lock();
        state.give_back(&self.client, self.amount);
        let is_within = state.is_within_namespace(&client, self.amount);
        if is_within {
            self.client = client;
        }
        state.take(&self.client, self.amount);
        is_within
    }

    /// Frees all but `amount` units.
    pub(crate) fn shrink(&mut self, amount: usize) {
        let less = self.amount.saturating_sub(amount);
        if less > 0 {
            self.amount -= less;
            self.fair.lock().give_back(&self.client, less);
            self.fair.grant();
        }
    }

    /// How many units the permit holds.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let waiting = {
            let mut state = self.fair.lock();
            state.give_back(&self.client, self.amount);
            state.waiting > 0
        };
        if waiting {
            self.fair.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    fn address(last: u8) -> Client {
        Client::new([10, 0, 0, last].into())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(4)
    }

    /// Takes single units until there are no more.
    fn exhaust(fair: &FairSemaphore, client: &Client) -> Vec<Permit> {
        std::iter::from_fn(|| fair.try_acquire(client, 1)).collect()
    }

    #[test]
    fn each_further_address_finds_free_units() {
        let fair = FairSemaphore::new(130);
        let alone = exhaust(&fair, &address(1));
        assert_eq!(alone.len(), 97, "three quarters");
        let held: Vec<_> = (2..6).map(|last| exhaust(&fair, &address(last))).collect();
        assert!(
            held.iter().all(|held| !held.is_empty()),
            "{:?}",
            held.iter().map(Vec::len).collect::<Vec<_>>()
        );
    }

    #[test]
    fn each_further_namespace_finds_free_units() {
        let fair = FairSemaphore::new(128);
        let tenants =
            ["one", "two", "three"].map(|name| exhaust(&fair, &address(1).of_namespace(name)).len());
        // The permits were dropped meanwhile, so each namespace got its full share.
        assert_eq!(tenants, [72; 3]);
        let _one = exhaust(&fair, &address(1).of_namespace("one"));
        let two = exhaust(&fair, &address(1).of_namespace("two"));
        assert!(two.len() > 10, "{}", two.len());
        assert!(
            exhaust(&fair, &address(2).of_namespace("one")).len() > 10,
            "not counted with the first address"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn client_with_fewest_units_is_served_first() {
        let fair = FairSemaphore::new(4);
        let (greedy, modest) = (address(1), address(2));
        let mut held = exhaust(&fair, &greedy);
        held.extend(exhaust(&fair, &address(3)));
        assert_eq!(fair.lock().free, 0);
        let first = fair.acquire(&greedy, 1, soon());
        let second = fair.acquire(&modest, 1, soon());
        tokio::pin!(first, second);
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        held.pop();
        assert!(first.as_mut().now_or_never().is_none(), "this client holds more units");
        assert!(second.now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_hold_nothing_take_turns() {
        let fair = FairSemaphore::new(1);
        let held = fair.try_acquire(&address(9), 1);
        let mut order = Vec::new();
        let ask = |last: u8| {
            let fair = fair.clone();
            async move {
                let permit = fair.acquire(&address(last), 1, soon()).await;
                drop(permit);
                last
            }
        };
        let mut all: futures::stream::FuturesUnordered<_> = [1, 1, 1, 2].map(ask).into_iter().collect();
        assert!(futures::StreamExt::next(&mut all).now_or_never().is_none());
        drop(held);
        while let Some(last) = futures::StreamExt::next(&mut all).await {
            order.push(last);
        }
        assert!(order.iter().position(|last| *last == 2) < Some(2), "{order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_requests_hold_no_units() {
        let fair = FairSemaphore::new(1);
        let held = fair.try_acquire(&address(1), 1);
        assert!(fair.acquire(&address(2), 1, soon()).await.is_none(), "the deadline has passed");
        assert!(fair.acquire(&address(2), 1, soon()).now_or_never().is_none());
        drop(held);
        assert!(fair.acquire(&address(3), 1, soon()).await.is_some());
        let state = fair.lock();
        let in_use = state.addresses.values().filter(|address| address.is_in_use()).count();
        assert_eq!((state.free, state.waiting, in_use), (1, 0, 0), "no units are held");
    }

    #[test]
    fn units_of_a_namespace_stay_within_its_share() {
        let fair = FairSemaphore::new(128);
        let body = |amount| fair.try_acquire(&address(1), amount).unwrap();
        let mut permits: Vec<_> = (0..6).map(|_| body(16)).collect();
        let assigned = permits.iter_mut().filter_map(|permit| permit.assign("one").then_some(())).count();
        assert!((1..6).contains(&assigned), "{assigned}");
        assert!(permits.last_mut().unwrap().assign("two"), "another namespace has room");
        permits.clear();
        assert_eq!(fair.lock().free, 128);
    }

    #[test]
    fn merged_and_shrunk_permits_free_all_units() {
        let fair = FairSemaphore::new(100);
        let mut permit = fair.try_acquire(&address(1), 10).unwrap();
        permit.merge(fair.try_acquire(&address(1), 20).unwrap());
        assert_eq!((permit.amount(), fair.lock().free), (30, 70));
        permit.shrink(5);
        assert_eq!(fair.lock().free, 95);
        drop(permit);
        assert_eq!(fair.lock().free, 100);
        assert!(fair.lock().addresses.values().all(|address| !address.is_in_use()));
    }

    #[test]
    fn few_clients_without_units_are_remembered() {
        let fair = FairSemaphore::new(1000);
        let held: Vec<_> = (0..20).map(|last| fair.try_acquire(&address(last), 1)).collect();
        for host in 0..1000_u16 {
            let [high, low] = host.to_be_bytes();
            drop(fair.try_acquire(&Client::new([10, 1, high, low].into()), 1));
            drop(fair.try_acquire(&address(9).of_namespace(&format!("n{host}")), 1));
        }
        let state = fair.lock();
        assert!(state.addresses.len() <= 2 * (held.len() + 1), "{}", state.addresses.len());
        let namespaces = state.addresses[&address(9).address].namespaces.len();
        assert!(namespaces <= KEPT, "{namespaces}");
        assert!(
            (0..20).all(|last| state.addresses[&address(last).address].used == 1),
            "those with units stay"
        );
    }
}
