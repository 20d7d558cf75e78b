//! The workloads of changes whose rollout has ended, and how long some of their pods have not been available since.
//!
//! A restart forgets them: a workload that is unavailable then must be healthy once before it counts again.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::{resolve::Health, world::WorkloadKey};

/// A container that crashes is started again, and its pod is available until the next crash. After this time without one, interruptions
/// no longer add up. It is longer than most programs take to crash, and shorter than the time from one drained node to the next. A program
/// that takes longer is soon unavailable for minutes at a time: the kubelet doubles its pause with each crash.
const STABLE_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// A workload that the controller moved, and whose rollout has ended.
#[derive(Clone, Copy, Debug)]
struct Rested {
    /// The spec that was rolled out. A scaled workload waits for new pods, which breaks nothing.
    generation: Option<i64>,
    is_broken: bool,
    /// Since when it is broken, or since when it is not.
    since: Timestamp,
    /// How long it was broken before.
    broken_before: SignedDuration,
}

impl Rested {
    /// Records whether it is broken now. Short interruptions add up, unless the workload has been stable between them.
    fn set(&mut self, is_broken: bool, now: Timestamp) {
        if self.is_broken == is_broken {
            return;
        }
        let lasted = now.duration_since(self.since).max(SignedDuration::ZERO);
        if self.is_broken {
            self.broken_before = self.broken_before.saturating_add(lasted);
        } else if lasted >= STABLE_AFTER {
            self.broken_before = SignedDuration::ZERO;
        }
        (self.is_broken, self.since) = (is_broken, now);
    }
}

/// A time in which some pods of a workload are not available, although its rollout had ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::controller) struct Interruption {
    /// When it began.
    pub(in crate::controller) since: Timestamp,
    /// How long those before it lasted together.
    before: SignedDuration,
}

impl Interruption {
    /// When the pods will have been unavailable for this time in total.
    pub(in crate::controller) fn lasts(self, time: SignedDuration) -> Option<Timestamp> {
        let left = time.checked_sub(self.before)?.max(SignedDuration::ZERO);
        self.since.checked_add(left).ok()
    }
}

/// The workloads that the controller moved, and whose rollout has ended.
#[derive(Debug, Default)]
pub(in crate::controller) struct RestedWorkloads(HashMap<WorkloadKey, Rested>);

impl RestedWorkloads {
    /// Takes over the present health of a workload that the controller moved.
    pub(in crate::controller) fn observe(
        &mut self,
        key: &WorkloadKey,
        (generation, health): (Option<i64>, Health),
        now: Timestamp,
    ) {
        let is_broken = health == Health::Unavailable;
        match self.0.get_mut(key).filter(|rested| rested.generation == generation) {
            Some(rested) if is_broken || health.is_at_rest() => rested.set(is_broken, now),
            None if health.is_at_rest() => {
                let rested =
                    Rested { generation, is_broken, since: now, broken_before: SignedDuration::ZERO };
                self.0.insert(key.clone(), rested);
            }
            _ => self.forget(key),
        }
    }

    /// Forgets a workload that is deleted, or that no change has moved.
    pub(in crate::controller) fn forget(&mut self, key: &WorkloadKey) {
        self.0.remove(key);
    }

    /// Forgets the interruptions of a workload before the present one: a person has ended its failure.
    pub(in crate::controller) fn forgive(&mut self, key: &WorkloadKey) {
        if let Some(rested) = self.0.get_mut(key) {
            rested.broken_before = SignedDuration::ZERO;
        }
    }

    /// The present interruption of a workload.
    pub(in crate::controller) fn interruption(&self, key: &WorkloadKey) -> Option<Interruption> {
        let rested = self.0.get(key).filter(|rested| rested.is_broken)?;
        Some(Interruption { since: rested.since, before: rested.broken_before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second at which it will have been broken for 30 seconds in total.
    #[test]
    fn interruptions_add_up_until_workload_is_stable() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let key = WorkloadKey { kind: 0, namespace: "ns".into(), name: "web".into() };
        for (what, times, expected) in [
            ("it is broken", &[(100, true)][..], Some(130)),
            ("it is reported twice", &[(100, true), (120, true)], Some(130)),
            ("it has recovered", &[(100, true), (110, false)], None),
            ("it breaks again", &[(100, true), (110, false), (115, true)], Some(135)),
            ("it breaks often", &[(0, true), (20, false), (25, true), (45, false), (50, true)], Some(50)),
            ("it was stable", &[(100, true), (110, false), (170, true)], Some(200)),
            ("it was almost stable", &[(100, true), (110, false), (169, true)], Some(189)),
            ("the clock was set back", &[(100, true), (90, false), (95, true)], Some(125)),
        ] {
            let mut rested = RestedWorkloads::default();
            rested.observe(&key, (Some(1), Health::Settled), at(0));
            for (second, is_broken) in times {
                let health = if *is_broken { Health::Unavailable } else { Health::Settled };
                rested.observe(&key, (Some(1), health), at(*second));
            }
            let lasts = |found: Interruption| found.lasts(SignedDuration::from_secs(30)).unwrap();
            assert_eq!(rested.interruption(&key).map(lasts), expected.map(at), "{what}");
            rested.forgive(&key);
            let since =
                times.last().filter(|(_, is_broken)| *is_broken).map(|_| rested.0[&key].since.as_second());
            assert_eq!(
                rested.interruption(&key).map(lasts),
                since.map(|since| at(since + 30)),
                "{what}, forgiven"
            );
            rested.observe(&key, (Some(2), Health::Unavailable), at(1000));
            assert!(rested.interruption(&key).is_none(), "{what}, and another spec is rolled out");
        }
    }
}
