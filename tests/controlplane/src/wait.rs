//! Waiting for conditions, never for time.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The result of one check of a condition.
pub trait Observed {
    /// The value that is returned once the condition holds.
    type Value;

    /// The value, or why the condition does not hold yet.
    fn observed(self) -> std::result::Result<Self::Value, String>;
}

impl<T> Observed for Option<T> {
    type Value = T;

    fn observed(self) -> std::result::Result<T, String> {
        self.ok_or_else(|| "nothing yet".to_owned())
    }
}

impl<T, E: Display> Observed for std::result::Result<T, E> {
    type Value = T;

    fn observed(self) -> std::result::Result<T, String> {
        self.map_err(|e| e.to_string())
    }
}

/// Calls `look` repeatedly, with short pauses, until it returns `Some` or `Ok`; returns the value in it.
///
/// # Panics
/// After `limit`, with `what` and the last result of `look`.
#[track_caller]
pub fn wait_for<O: Observed>(what: &str, limit: Duration, mut look: impl FnMut() -> O) -> O::Value {
    let start = Instant::now();
    let mut pause = SHORTEST_PAUSE;
    loop {
        match look().observed() {
            Ok(value) => return value,
            Err(last) if start.elapsed() >= limit => {
                panic!(
                    "waited {:.1} s for {what}; the last check found: {last}",
                    start.elapsed().as_secs_f32()
                )
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asserts that `look` returns `Ok` throughout `duration`. Calls it repeatedly, with short pauses.
///
/// # Panics
/// As soon as it does not, with `what`, the time and the error.
#[track_caller]
pub fn holds_for<T, E: Display + Debug>(
    what: &str,
    duration: Duration,
    mut look: impl FnMut() -> std::result::Result<T, E>,
) {
    let start = Instant::now();
    loop {
        let looked = start.elapsed();
        if let Err(problem) = look() {
            panic!("{what} did not hold any more after {:.1} s: {problem}", looked.as_secs_f32());
        }
        if looked >= duration {
            return;
        }
        thread::sleep(LONGEST_PAUSE.min(duration.saturating_sub(start.elapsed())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_returns_the_first_success() {
        let mut looks = 0;
        let seen = wait_for("the third check", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some("third")
        });
        assert_eq!(seen, "third");
    }

    #[test]
    #[should_panic(expected = "for a dragon; the last check found: a lizard")]
    fn wait_for_reports_the_last_failure() {
        wait_for("a dragon", Duration::from_millis(30), || Err::<(), _>("a lizard"));
    }

    #[test]
    #[should_panic(expected = "peace did not hold any more")]
    fn holds_for_fails_immediately() {
        let mut looks = 0;
        holds_for("peace", Duration::from_mins(1), || {
            looks += 1;
            if looks < 3 { Ok(()) } else { Err("war") }
        });
    }

    #[test]
    fn holds_for_checks_at_least_once() {
        let mut looks = 0;
        holds_for("it", Duration::ZERO, || {
            looks += 1;
            Ok::<_, String>(())
        });
        assert_eq!(looks, 1);
    }
}
