//! The vital signs of a replica: whether its loop and its watches still work. A replica without them must not lead.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The longest time between two iterations of the loop.
const LONGEST_PASS: Duration = Duration::from_secs(30);
/// The longest time for which a watch may receive nothing from the API server. A silent watch is restarted sooner.
const LONGEST_UNHEARD: Duration = Duration::from_mins(3);

/// The last sign of life of a task.
#[derive(Debug)]
pub(super) struct Pulse(Mutex<Instant>);

impl Pulse {
    fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Records that the task works.
    pub(super) fn beat(&self) {
        *self.0.lock() = Instant::now();
    }

    fn is_within(&self, limit: Duration) -> bool {
        self.0.lock().elapsed() < limit
    }
}

/// The signs of life of the loop and of every watch.
#[derive(Debug)]
pub(super) struct Vitals {
    pass: Pulse,
    /// Weak, so that a watch that ended in order leaves nothing behind.
    watches: Mutex<Vec<Weak<Pulse>>>,
}

impl Vitals {
    pub(super) fn new() -> Self {
        Self { pass: Pulse::new(), watches: Mutex::default() }
    }

    /// Records an iteration of the loop.
    pub(super) fn pass(&self) {
        self.pass.beat();
    }

    /// Adds a watch, and returns its pulse.
    pub(super) fn watch(&self) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::new());
        let mut watches = self.watches.lock();
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&pulse));
        pulse
    }

    /// The part that does not work; `None` if everything works.
    pub(super) fn failing(&self) -> Option<&'static str> {
        if !self.pass.is_within(LONGEST_PASS) {
            return Some("the controller's loop is stuck");
        }
        let watches = self.watches.lock();
        let is_dead =
            |watch: &Weak<Pulse>| watch.upgrade().is_some_and(|pulse| !pulse.is_within(LONGEST_UNHEARD));
        watches.iter().any(is_dead).then_some("a watch receives nothing from the API server")
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_dead_watch_is_a_failure() {
        let vitals = Vitals::new();
        let [heard, unheard, ended] = [(); 3].map(|()| vitals.watch());
        drop(ended);
        for _ in 0..18 {
            assert_eq!(vitals.failing(), None);
            advance(Duration::from_secs(10)).await;
            vitals.pass();
            heard.beat();
        }
        assert_eq!(vitals.failing(), Some("a watch receives nothing from the API server"));
        unheard.beat();
        assert_eq!(vitals.failing(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_loop_is_a_failure() {
        let vitals = Vitals::new();
        advance(LONGEST_PASS).await;
        assert_eq!(vitals.failing(), Some("the controller's loop is stuck"));
        vitals.pass();
        assert_eq!(vitals.failing(), None);
    }
}
