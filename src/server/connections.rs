//! The open connections: their source addresses, how long each has been idle, and which one is evicted.
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Refused requests after which a connection is cut: answering each would take time from others.
const MAX_REFUSED: usize = 20;

/// How long an address is distrusted after one of its connections was cut, and the part of the connections that it may hold
/// during that time. Otherwise it would open a new connection for each that is cut, and handshakes take time from others.
const DISTRUST: Duration = Duration::from_secs(30);
const DISTRUSTED_PART: usize = 48;
/// The number of known addresses at which those without connections are forgotten.
const MAX_ADDRESSES: usize = 1024;

/// The open connections.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    max: usize,
    max_of_address: usize,
    open: Mutex<Open>,
    /// Notified when a connection ended, or had its last request answered.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: BTreeMap<u64, Weak<Connection>>,
    of_address: HashMap<IpAddr, Origin>,
}

/// What is known of a source address.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    /// Open connections.
    count: usize,
    /// Until when the address is distrusted.
    distrusted: Option<Instant>,
}

impl Origin {
    fn is_distrusted(&self) -> bool {
        self.distrusted.is_some_and(|until| Instant::now() < until)
    }
}

/// The result for a new connection.
#[derive(Debug)]
pub(super) enum Placement {
    /// It is open.
    Open(Arc<Connection>),
    /// It is open, and replaces an idle connection of its address, which has as many as allowed.
    Replaces(Arc<Connection>),
    /// Its address has as many as allowed, and none of them can be evicted.
    Refused,
    /// As many connections as allowed are open.
    Full,
}

/// An open connection, removed from the list when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    number: u64,
    address: IpAddr,
    open: Connections,
    state: Mutex<ConnectionState>,
    evict: Notify,
    cut: Notify,
}

#[derive(Debug)]
struct ConnectionState {
    /// Requests whose answers are not sent yet, and when each began; the oldest first.
    busy: Vec<(u64, Instant)>,
    /// Requests so far.
    served: u64,
    /// Requests that were refused because the address had too many.
    refused: usize,
    evicted: bool,
    /// When its last request ended, or the connection began.
    last: Instant,
    /// When the head of a request began, if its end has not arrived.
    head: Option<Instant>,
}

/// A request whose answer is not sent yet.
#[derive(Debug)]
pub(super) struct InProgress {
    connection: Arc<Connection>,
    number: u64,
    /// When the first byte of the request's head arrived.
    pub(super) start: Instant,
}

impl Connections {
    /// An empty list, with limits for all connections and for those of one address.
    pub(super) fn new(max: usize, max_of_address: usize) -> Self {
        Self(Arc::new(Registry { max, max_of_address, open: Mutex::default(), changed: Notify::new() }))
    }

    /// Adds a connection. If its address has as many as allowed, an idle one of that address is evicted.
    pub(super) fn open(&self, address: IpAddr) -> Placement {
        let Registry { max, max_of_address, .. } = *self.0;
        let (all, origin) = {
            let open = self.lock();
            (open.all.len(), open.of_address.get(&address).copied().unwrap_or_default())
        };
        let of_address = origin.count;
        if origin.is_distrusted() && of_address >= max_of_address.div_ceil(DISTRUSTED_PART) {
            return Placement::Refused;
        }
        let is_crowded = max_of_address < max && of_address >= max_of_address;
        if is_crowded {
            // Evicted connections take a moment to close. Only a few of them may be open beside the others.
            let is_room = of_address < max_of_address + max_of_address.div_ceil(8);
            if !is_room || !self.evict_where(|connection| connection.address == address) {
                return Placement::Refused;
            }
        }
        if all >= max {
            return Placement::Full;
        }
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        let connection = Arc::new(Connection {
            number,
            address,
            open: self.clone(),
            state: Mutex::new(ConnectionState {
                busy: Vec::new(),
                served: 0,
                refused: 0,
                evicted: false,
                last: Instant::now(),
                head: None,
            }),
            evict: Notify::new(),
            cut: Notify::new(),
        });
        open.all.insert(number, Arc::downgrade(&connection));
        if open.of_address.len() >= MAX_ADDRESSES {
            open.of_address.retain(|_, origin| origin.count > 0);
        }
        open.of_address.entry(address).or_default().count += 1;
        if is_crowded { Placement::Replaces(connection) } else { Placement::Open(connection) }
    }

    /// Evicts an idle connection: the least important one of the address that has most. Returns false if none is idle.
    pub(super) fn evict(&self) -> bool {
        self.evict_where(|_| true)
    }

    fn evict_where(&self, is_candidate: impl Fn(&Connection) -> bool) -> bool {
        // Upgraded references must outlive the lock: dropping the last one locks again.
        let (all, of_address) = {
            let open = self.lock();
            let all: Vec<Arc<Connection>> = open.all.values().filter_map(Weak::upgrade).collect();
            (all, open.of_address.clone())
        };
        let idle = all.iter().filter(|connection| is_candidate(connection)).filter_map(|connection| {
            let state = connection.state();
            let count = of_address.get(&connection.address).map_or(0, |origin| origin.count);
            let rank = (std::cmp::Reverse(count), state.served > 0, state.last);
            (state.busy.is_empty() && !state.evicted).then_some((rank, connection))
        });
        let Some((_, chosen)) = idle.min_by_key(|(rank, _)| *rank) else { return false };
        chosen.ask_to_close();
        true
    }

    /// Ends a busy connection of the address that has most, if that is many more than `address` has. Returns false if no
    /// address has that many.
    pub(super) fn cut(&self, address: IpAddr) -> bool {
        let (all, largest, mine) = {
            let open = self.lock();
            let all: Vec<Arc<Connection>> = open.all.values().filter_map(Weak::upgrade).collect();
            let largest = open.of_address.iter().max_by_key(|(_, origin)| origin.count);
            let mine = open.of_address.get(&address).map_or(0, |origin| origin.count);
            (all, largest.map(|(address, origin)| (*address, origin.count)), mine)
        };
        let Some((address, _)) = largest.filter(|(_, count)| *count > 2 * mine + 1) else { return false };
        let candidates = all.iter().filter(|connection| connection.address == address);
        let chosen =
            candidates.filter(|connection| !connection.state().evicted).min_by_key(|c| c.state().last);
        let Some(chosen) = chosen else { return false };
        chosen.ask_to_close();
        true
    }

    /// Returns when a connection has ended or become idle.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock()
    }
}

impl Connection {
    /// Returns when this connection has been evicted.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }

    fn ask_to_close(&self) {
        self.state().evicted = true;
        self.evict.notify_one();
    }

    /// The source address.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it ever sent a request.
    pub(super) fn has_sent_request(&self) -> bool {
        self.state().served > 0
    }

    /// Begins a request, which ends when the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> InProgress {
        let mut state = self.state();
        let number = state.served;
        state.served += 1;
        let start = state.head.take().unwrap_or_else(Instant::now);
        state.busy.push((number, start));
        InProgress { connection: self.clone(), number, start }
    }

    /// Records a request that was refused because the address has too many.
    pub(super) fn refuse_request(&self) {
        let mut state = self.state();
        state.head = None;
        state.refused += 1;
        if state.refused == MAX_REFUSED {
            self.cut.notify_one();
            if let Some(origin) = self.open.lock().of_address.get_mut(&self.address) {
                origin.distrusted = Some(Instant::now() + DISTRUST);
            }
        }
    }

    /// Returns when too many requests of this connection were refused.
    pub(super) async fn refused_too_often(&self) {
        self.cut.notified().await;
    }

    /// Records that bytes arrived; `is_open` returns whether they leave a head unfinished, given whether a request is in
    /// progress.
    pub(super) fn received(&self, is_open: impl FnOnce(bool) -> bool) {
        let mut state = self.state();
        if !is_open(!state.busy.is_empty()) {
            state.head = None;
        } else if state.head.is_none() {
            state.head = Some(Instant::now());
        }
    }

    /// Returns when a head has begun and not ended for `limit`. It must be polled together with the connection, because
    /// bytes arrive then and nothing else wakes it.
    pub(super) async fn head_overdue(&self, limit: Duration) {
        let mut timer: Option<(Instant, _)> = None;
        std::future::poll_fn(|context| {
            let Some(start) = self.state().head else {
                timer = None;
                return Poll::Pending;
            };
            if timer.as_ref().is_none_or(|(of, _)| *of != start) {
                timer = Some((start, Box::pin(tokio::time::sleep_until(start + limit))));
            }
            timer.as_mut().map_or(Poll::Pending, |(_, sleep)| Future::poll(sleep.as_mut(), context))
        })
        .await;
    }

    /// Returns when a request has waited for `limit` for its answer to be sent; checked at intervals.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit / 2).await;
            let oldest = self.state().busy.first().copied();
            if oldest.is_some_and(|(_, start)| start.elapsed() >= limit) {
                return;
            }
        }
    }

    /// Returns when there has been no request for `limit`.
    pub(super) async fn idle(&self, limit: Duration) {
        loop {
            let (is_busy, last) = {
                let state = self.state();
                (!state.busy.is_empty(), state.last)
            };
            if is_busy {
                // To be woken by the end of each request would cost more than a check at intervals.
                tokio::time::sleep(limit / 4).await;
            } else if last.elapsed() >= limit {
                return;
            } else {
                tokio::time::sleep_until(last + limit).await;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        open.all.remove(&self.number);
        if let Some(origin) = open.of_address.get_mut(&self.address) {
            origin.count -= 1;
            if origin.count == 0 && !origin.is_distrusted() {
                open.of_address.remove(&self.address);
            }
        }
        drop(open);
        self.open.0.changed.notify_one();
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.busy.retain(|(number, _)| *number != self.number);
        state.last = Instant::now();
        if state.busy.is_empty() {
            self.connection.open.0.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn entered(connections: &Connections, last: u8) -> Arc<Connection> {
        match connections.open(address(last)) {
            Placement::Open(connection) | Placement::Replaces(connection) => connection,
            other => panic!("{other:?}"),
        }
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    /// The connection that has been idle longest is next.
    #[tokio::test(start_paused = true)]
    async fn connections_without_requests_are_evicted_first() {
        let connections = Connections::new(9, 9);
        let [old, new, silent] = [(); 3].map(|()| entered(&connections, 1));
        drop(old.begin_request());
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(new.begin_request());
        assert!(connections.evict());
        assert!(is_evicted(&silent));
        assert!(connections.evict());
        assert!(is_evicted(&old));
        assert!(!is_evicted(&new));
    }

    #[tokio::test]
    async fn busy_or_evicted_connections_are_not_evicted() {
        let connections = Connections::new(9, 9);
        let (one, two) = (entered(&connections, 1), entered(&connections, 1));
        let busy = one.begin_request();
        assert!(connections.evict());
        assert!(is_evicted(&two));
        assert!(!connections.evict());
        drop(busy);
        assert!(connections.evict());
        assert!(is_evicted(&one));
    }

    #[tokio::test]
    async fn a_connection_that_ended_is_forgotten() {
        let connections = Connections::new(9, 9);
        let one = entered(&connections, 1);
        assert_eq!(connections.lock().all.len(), 1);
        drop(one);
        assert_eq!(connections.lock().all.len(), 0);
        assert_eq!(connections.lock().of_address.len(), 0);
        assert!(!connections.evict());
    }

    #[tokio::test]
    async fn address_with_most_connections_makes_room() {
        let connections = Connections::new(4, 4);
        let modest = entered(&connections, 1);
        let greedy = [(); 3].map(|()| entered(&connections, 2));
        drop(greedy.each_ref().map(Connection::begin_request));
        assert!(matches!(connections.open(address(3)), Placement::Full));
        assert!(connections.evict());
        assert!(!is_evicted(&modest), "it had no request, but its address has one connection");
        assert!(is_evicted(&greedy[0]));
    }

    #[tokio::test]
    async fn address_with_too_many_replaces_its_own() {
        let connections = Connections::new(8, 2);
        let other = entered(&connections, 1);
        let (one, two) = (entered(&connections, 2), entered(&connections, 2));
        let _busy = two.begin_request();
        let three = entered(&connections, 2);
        assert!(is_evicted(&one) && !is_evicted(&other));
        assert!(matches!(connections.open(address(2)), Placement::Refused), "the first is still open");
        drop(one);
        let _three = three.begin_request();
        assert!(matches!(connections.open(address(2)), Placement::Refused), "all are busy");
        entered(&connections, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn address_with_refused_requests_has_fewer_connections() {
        let connections = Connections::new(1024, 2 * DISTRUSTED_PART);
        let one = entered(&connections, 1);
        for _ in 0..MAX_REFUSED {
            assert!(one.refused_too_often().now_or_never().is_none());
            one.refuse_request();
        }
        assert!(one.refused_too_often().now_or_never().is_some());
        drop(one);
        let _held = [(); 2].map(|()| entered(&connections, 1));
        assert!(matches!(connections.open(address(1)), Placement::Refused));
        entered(&connections, 2);
        tokio::time::advance(DISTRUST).await;
        entered(&connections, 1);
    }

    #[tokio::test]
    async fn busy_connections_of_a_greedy_address_are_cut() {
        let connections = Connections::new(4, 4);
        let greedy = [(); 4].map(|()| entered(&connections, 2));
        let _busy = greedy.each_ref().map(Connection::begin_request);
        assert!(!connections.evict() && !connections.cut(address(2)));
        assert!(connections.cut(address(1)));
        assert!(greedy.iter().any(|connection| is_evicted(connection)));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_after_the_last_request() {
        let connections = Connections::new(9, 9);
        let one = entered(&connections, 1);
        let limit = Duration::from_secs(10);
        let busy = one.begin_request();
        tokio::time::advance(limit * 2).await;
        assert!(one.idle(limit).now_or_never().is_none(), "busy");
        drop(busy);
        tokio::time::advance(limit / 2).await;
        assert!(one.idle(limit).now_or_never().is_none(), "idle for half the time");
        tokio::time::timeout(limit, one.idle(limit)).await.expect("idle for the full time");
    }

    #[tokio::test(start_paused = true)]
    async fn head_timeout_starts_at_the_first_byte() {
        let connections = Connections::new(9, 9);
        let one = entered(&connections, 1);
        let limit = Duration::from_secs(5);
        assert!(tokio::time::timeout(limit * 2, one.head_overdue(limit)).await.is_err(), "idle");
        let start = Instant::now();
        one.received(|_| true);
        tokio::time::advance(limit / 2).await;
        one.received(|_| true);
        one.head_overdue(limit).await;
        assert_eq!(start.elapsed(), limit);
        let busy = one.begin_request();
        assert_eq!(busy.start, start);
        assert!(one.head_overdue(limit).now_or_never().is_none(), "the head is complete");
    }
}
