//! Readiness of the program: named conditions, ready when every one of them is true.
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// The conditions of the whole program. Cheap to clone; clones see the same conditions.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<ConditionState>>);

#[derive(Debug, Default)]
struct ConditionState {
    /// Why a condition does not hold; `None` if it holds.
    conditions: BTreeMap<&'static str, Option<String>>,
    shutting_down: bool,
}

/// One condition, held by the code that determines whether it is true.
#[derive(Clone, Debug)]
pub struct Condition {
    name: &'static str,
    all: Readiness,
}

/// The content of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// True when every condition holds and the program is not shutting down.
    pub ready: bool,
    /// One line for each condition, or, when not ready, for each that fails.
    pub lines: Vec<String>,
}

impl Readiness {
    /// Starts without conditions, which counts as ready: register every condition before serving `/readyz`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition that does not hold yet. Registering a name again returns a handle on the same condition, and
    /// resets it to false.
    pub fn register(&self, name: &'static str) -> Condition {
        self.write(|state| state.conditions.insert(name, Some("not yet known".to_owned())));
        Condition { name, all: self.clone() }
    }

    /// Makes the program unready for the rest of its life. Call it before the listener closes, so that no new requests
    /// arrive.
    pub fn shut_down(&self) {
        self.write(|state| state.shutting_down = true);
    }

    /// True when every condition holds and the program is not shutting down.
    pub fn ready(&self) -> bool {
        self.report().ready
    }

    /// The current state of every condition.
    pub fn report(&self) -> Report {
        // A panic elsewhere must not break `/readyz`; the map is consistent after each insert.
        let state = self.0.read();
        if state.shutting_down {
            return Report { ready: false, lines: vec!["shutting down".to_owned()] };
        }
        let failing: Vec<String> = state
            .conditions
            .iter()
            .filter_map(|(name, reason)| reason.as_ref().map(|reason| format!("{name}: {reason}")))
            .collect();
        if failing.is_empty() {
            Report { ready: true, lines: state.conditions.keys().map(|name| format!("{name}: ok")).collect() }
        } else {
            Report { ready: false, lines: failing }
        }
    }

    fn write<T>(&self, change: impl FnOnce(&mut ConditionState) -> T) -> T {
        change(&mut self.0.write())
    }
}

impl Condition {
    /// The condition is met.
    pub fn meet(&self) {
        self.set(None);
    }

    /// The condition is not met, because of `reason`, which `/readyz` shows: say what to do if that is known.
    pub fn fail(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    /// Sets `reason` on a condition that is not met yet; a condition that is met stays. Use it when the state is
    /// unknown at the moment.
    pub fn fail_unless_met(&self, reason: impl Into<String>) {
        if !self.is_met() {
            self.fail(reason);
        }
    }

    /// Whether the condition is met.
    pub fn is_met(&self) -> bool {
        let state = self.all.0.read();
        state.conditions.get(self.name).is_some_and(Option::is_none)
    }

    fn set(&self, reason: Option<String>) {
        let said = reason.clone();
        let before = self.all.write(|state| state.conditions.insert(self.name, reason)).flatten();
        match said {
            None if before.is_some() => tracing::info!(condition = self.name, "readiness condition met"),
            Some(now) if before.as_ref() != Some(&now) => {
                tracing::info!(condition = self.name, reason = now, "readiness condition not met");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_holds() {
        let readiness = Readiness::new();
        let (caches, certificate) = (readiness.register("caches"), readiness.register("certificate"));
        assert!(!readiness.ready());
        caches.meet();
        assert!(!readiness.ready());
        certificate.meet();
        let report = readiness.report();
        assert!(report.ready);
        assert_eq!(report.lines, ["caches: ok", "certificate: ok"]);
    }

    #[test]
    fn only_failing_conditions_are_reported() {
        let readiness = Readiness::new();
        let (caches, certificate) = (readiness.register("caches"), readiness.register("certificate"));
        caches.meet();
        certificate.fail("expired");
        assert_eq!(readiness.report(), Report { ready: false, lines: vec!["certificate: expired".into()] });
    }

    #[test]
    fn condition_that_fails_again_ends_readiness() {
        let readiness = Readiness::new();
        let caches = readiness.register("caches");
        caches.meet();
        assert!(readiness.ready());
        caches.fail("lost");
        assert!(!readiness.ready());
    }

    #[test]
    fn shutting_down_is_final() {
        let readiness = Readiness::new();
        let caches = readiness.register("caches");
        readiness.shut_down();
        caches.meet();
        assert_eq!(readiness.report(), Report { ready: false, lines: vec!["shutting down".into()] });
    }
}
