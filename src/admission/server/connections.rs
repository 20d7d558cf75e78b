//! Which connections are open, how long each has been idle, and which one makes room for a new one.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The open connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: Mutex<Open>,
    /// Some connection had its last request in flight answered.
    calmed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: BTreeMap<u64, Weak<Connection>>,
}

/// One open connection; it leaves the list when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    number: u64,
    open: Connections,
    state: Mutex<State>,
    evict: Notify,
    calmed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Requests in flight.
    busy: usize,
    /// Requests ever.
    served: bool,
    evicted: bool,
    /// When it last had a request, or began.
    last: Instant,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Busy(Arc<Connection>);

impl Connections {
    /// A new connection.
    pub(super) fn enter(&self) -> Arc<Connection> {
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        let state = State { busy: 0, served: false, evicted: false, last: Instant::now() };
        let connection = Arc::new(Connection {
            number,
            open: self.clone(),
            state: Mutex::new(state),
            evict: Notify::new(),
            calmed: Notify::new(),
        });
        open.all.insert(number, Arc::downgrade(&connection));
        connection
    }

    /// Asks the idle connection that matters least to go. False where none is idle.
    pub(super) fn evict(&self) -> bool {
        // Upgraded outside of the lock's life: the last reference, dropped here, would lock again.
        let all: Vec<Arc<Connection>> = self.lock().all.values().filter_map(Weak::upgrade).collect();
        let idle = all.iter().map(|connection| (*connection.state(), connection));
        let chosen = idle
            .filter(|(state, _)| state.busy == 0 && !state.evicted)
            .min_by_key(|(state, _)| (state.served, state.last));
        let Some((_, chosen)) = chosen else { return false };
        chosen.state().evicted = true;
        chosen.evict.notify_one();
        true
    }

    /// Done when a connection has become idle.
    pub(super) async fn calmed(&self) {
        self.0.calmed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Done when this connection has been asked to go.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Whether it ever sent a request.
    pub(super) fn served(&self) -> bool {
        self.state().served
    }

    /// A request begins; it ends when the guard is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let mut state = self.state();
        state.busy += 1;
        state.served = true;
        Busy(self.clone())
    }

    /// Done when there has been no request for `limit`.
    pub(super) async fn idle(&self, limit: Duration) {
        loop {
            let State { busy, last, .. } = *self.state();
            if busy > 0 {
                // Woken by the end of any request; a permit kept from an earlier one costs one round.
                self.calmed.notified().await;
            } else if last.elapsed() >= limit {
                return;
            } else {
                tokio::time::sleep_until(last + limit).await;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().all.remove(&self.number);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy -= 1;
        state.last = Instant::now();
        self.0.calmed.notify_one();
        if state.busy == 0 {
            self.0.open.0.calmed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn asked_to_go(connection: &Connection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_asked_goes_first_then_who_is_idle_longest() {
        let connections = Connections::default();
        let (old, new, silent) = (connections.enter(), connections.enter(), connections.enter());
        drop(old.busy());
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(new.busy());
        assert!(connections.evict());
        assert!(asked_to_go(&silent));
        assert!(connections.evict());
        assert!(asked_to_go(&old));
        assert!(!asked_to_go(&new));
    }

    #[tokio::test]
    async fn who_is_busy_or_was_asked_already_is_left_alone() {
        let connections = Connections::default();
        let (one, two) = (connections.enter(), connections.enter());
        let busy = one.busy();
        assert!(connections.evict());
        assert!(asked_to_go(&two));
        assert!(!connections.evict());
        drop(busy);
        assert!(connections.evict());
        assert!(asked_to_go(&one));
    }

    #[tokio::test]
    async fn a_connection_that_ended_is_forgotten() {
        let connections = Connections::default();
        let one = connections.enter();
        assert_eq!(connections.lock().all.len(), 1);
        drop(one);
        assert_eq!(connections.lock().all.len(), 0);
        assert!(!connections.evict());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_counted_from_the_end_of_the_last_request() {
        let connections = Connections::default();
        let one = connections.enter();
        let limit = Duration::from_secs(10);
        let busy = one.busy();
        tokio::time::advance(limit * 2).await;
        assert!(one.idle(limit).now_or_never().is_none(), "busy");
        drop(busy);
        tokio::time::advance(limit / 2).await;
        assert!(one.idle(limit).now_or_never().is_none(), "idle for half the time");
        tokio::time::timeout(limit, one.idle(limit)).await.expect("idle for all of it");
    }
}
