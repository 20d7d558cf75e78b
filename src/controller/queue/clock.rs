//! The clock of the controller's schedule.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A clock that never steps back. When the system clock is set back, this clock continues from where it was; otherwise
/// every task would be delayed by the step. When the system clock is set ahead, this clock follows it.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The time at the instant `at`.
    time: Timestamp,
    at: Instant,
}

impl Clock {
    /// A clock that starts at the system time.
    pub(crate) fn new() -> Self {
        Self { time: Timestamp::now(), at: Instant::now() }
    }

    /// The current time.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.read(Timestamp::now())
    }

    /// The current time, where the system clock reads `wall`.
    fn read(&mut self, wall: Timestamp) -> Timestamp {
        let passed = SignedDuration::try_from(self.at.elapsed()).unwrap_or(SignedDuration::ZERO);
        let time = self.time.saturating_add(passed).unwrap_or(wall);
        if wall > time {
            *self = Self { time: wall, at: Instant::now() };
        }
        time.max(wall)
    }

    /// The duration from now until `then`.
    pub(crate) fn until(&mut self, then: Timestamp) -> Duration {
        Duration::try_from(then.duration_since(self.now())).unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clock_follows_system_clock() {
        let (mut clock, before) = (Clock::new(), Timestamp::now());
        let now = clock.now();
        assert!(now >= before);
        let hours = |hours: i64| now.saturating_add(SignedDuration::from_hours(hours)).unwrap();
        assert!(clock.until(hours(2)) > Duration::from_hours(1));
        assert_eq!(clock.until(hours(-2)), Duration::ZERO);
    }

    /// It follows a system clock that is set ahead.
    #[tokio::test(start_paused = true)]
    async fn clock_never_steps_back() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut clock = Clock { time: at(1000), at: Instant::now() };
        for (pass, wall, time) in [
            (0, 1000, 1000),
            (5, 1005, 1005),
            (5, 10, 1010),
            (5, 15, 1015),
            (0, 5000, 5000),
            (7, 5001, 5007),
            (0, 5009, 5009),
        ] {
            tokio::time::advance(Duration::from_secs(pass)).await;
            assert_eq!(clock.read(at(wall)), at(time), "system clock: {wall}");
        }
    }
}
