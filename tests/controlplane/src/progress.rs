//! Lines of progress of a build: what is made now, and about how long the rest takes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::recipe::Artifact;

/// The time between two lines.
const INTERVAL: Duration = Duration::from_secs(20);
/// How often a finished build is noticed.
const CHECK: Duration = Duration::from_millis(100);
/// An artifact that takes longer than estimated counts as almost finished.
const ALMOST: f64 = 0.95;

/// The state of a build.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The number of artifacts to make, and their costs together.
    all: (usize, f64),
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of finished artifacts, and their costs together.
    done: (usize, f64),
    /// What is being made, its cost, and since when.
    current: Option<(String, f64, Instant)>,
    has_ended: bool,
}

impl Progress {
    /// Reports the progress of making these artifacts while `work` runs. Without artifacts, it prints nothing.
    pub(crate) fn of<T>(artifacts: &[&Artifact], work: impl FnOnce(&Self) -> T) -> T {
        let costs = artifacts.iter().map(|artifact| f64::from(artifact.cost())).sum();
        let progress = Self { all: (artifacts.len(), costs), start: Instant::now(), state: Mutex::default() };
        if artifacts.is_empty() {
            return work(&progress);
        }
        thread::scope(|scope| {
            scope.spawn(|| progress.report());
            // On a panic too: the scope waits for the thread.
            let _end = End(&progress);
            work(&progress)
        })
    }

    /// Makes some artifacts at once. Their costs count as done when `work` has ended.
    pub(crate) fn make<T>(&self, artifacts: &[&Artifact], work: impl FnOnce() -> T) -> T {
        let cost = artifacts.iter().map(|artifact| f64::from(artifact.cost())).sum();
        let names: Vec<_> = artifacts.iter().map(|artifact| artifact.name).collect();
        self.state().current = Some((names.join(", "), cost, Instant::now()));
        let made = work();
        let mut state = self.state();
        state.current = None;
        state.done = (state.done.0 + artifacts.len(), state.done.1 + cost);
        made
    }

    fn report(&self) {
        let mut printed: Option<Instant> = None;
        while !self.state().has_ended {
            if printed.is_none_or(|at| at.elapsed() >= INTERVAL)
                && let Some(line) = self.line()
            {
                eprintln!("controlplane: {line}");
                printed = Some(Instant::now());
            }
            thread::sleep(CHECK);
        }
        let minutes = self.start.elapsed().as_secs_f64() / 60.0;
        eprintln!("controlplane: built {} files in {minutes:.1} min", self.state().done.0);
    }

    fn line(&self) -> Option<String> {
        let state = self.state();
        let (names, cost, since) = state.current.as_ref()?;
        let processors =
            thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok());
        let processors = f64::from(processors.unwrap_or(1));
        let before = since.duration_since(self.start).as_secs_f64();
        let left =
            seconds_left(self.all.1, state.done.1, *cost, before, since.elapsed().as_secs_f64(), processors);
        let minutes = (left / 60.0).ceil().max(1.0);
        let (done, all) = (state.done.0, self.all.0);
        Some(format!("{done} of {all} files; building {names}; about {minutes:.0} min left"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the lines of progress on drop.
struct End<'a>(&'a Progress);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.state().has_ended = true;
    }
}

/// How many seconds the rest takes. The finished artifacts show how much cost this machine does in a second. Before the
/// first one has ended, all its processors count.
fn seconds_left(all: f64, done: f64, current: f64, before: f64, since: f64, processors: f64) -> f64 {
    let pace = if done > 0.0 && before > 0.0 { done / before } else { processors };
    (all - done - (since * pace).min(current * ALMOST)) / pace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_follows_pace_of_machine() {
        for (all, done, current, before, since, expected) in [
            // Nothing is finished: two processors do a cost of 2 in a second.
            (600.0, 0.0, 100.0, 0.0, 0.0, 300.0),
            (600.0, 0.0, 100.0, 0.0, 10.0, 290.0),
            // A hundred took 100 s: a busy machine.
            (600.0, 100.0, 400.0, 100.0, 0.0, 500.0),
            // The current artifact takes longer than estimated.
            (600.0, 100.0, 400.0, 100.0, 1000.0, 120.0),
        ] {
            let left = seconds_left(all, done, current, before, since, 2.0);
            assert!((left - expected).abs() < 0.01, "{left} and not {expected}");
        }
    }
}
