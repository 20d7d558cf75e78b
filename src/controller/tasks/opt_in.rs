//! A namespace that opts in: which of its workloads without the label are rolled, and which are forgotten again.
//!
//! They get the label in the queue of all rolls, within the rate, `max-in-flight`, waves and windows. A refusal of one does not affect
//! the others.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::Candidate,
    controller::{action::Action, queue::Task, reconcile::state::State, tasks::decided::Decided},
    world::{WorkloadKey, World},
};

/// When further workloads of a namespace that opts in are found, if there are more than are found at once.
const NEXT_WORKLOADS: SignedDuration = SignedDuration::from_mins(1);

impl State {
    /// Finds the workloads of a namespace without the label, while the namespace opts in.
    pub(in crate::controller) fn opt_in(&self, namespace: &Arc<str>) -> Decided {
        let opt_in = self.world.opt_in_of(namespace);
        opt_in.is_in().then(|| Action::OptIn(Arc::clone(namespace), opt_in)).into()
    }

    /// Queues rolls of the workloads that were found.
    pub(super) fn unlabelled_were_found(
        &mut self,
        namespace: &Arc<str>,
        found: Vec<(WorkloadKey, Candidate)>,
        now: Timestamp,
    ) {
        if Candidate::are_many(&found) {
            self.queue.schedule(Task::OptIn(Arc::clone(namespace)), now + NEXT_WORKLOADS);
        }
        self.join(found, now);
    }

    /// Queues the workloads of a namespace that opts in.
    pub(in crate::controller) fn join(
        &mut self,
        found: impl IntoIterator<Item = (WorkloadKey, Candidate)>,
        now: Timestamp,
    ) {
        for (key, Candidate { mut record, condition }) in found {
            let is_joining = self.world.joining(&key).is_some();
            let joins = self.world.opt_in_of(&key.namespace).joins(record.is_marked);
            // A watch may have reported since the read that the workload is opted in.
            if !joins || (self.world.workload(&key).is_some() && !is_joining) {
                continue;
            }
            // Anyone may have written what the template states about snapshots.
            for used in &mut record.uses {
                (used.snapshot, used.on_hold) = (None, false);
            }
            let mut changes = std::mem::take(&mut self.changes);
            let old = self.world.apply_joining(&key, record, condition, &mut changes);
            self.workload_changed(&key, old.as_ref(), now);
            self.enqueue_all(changes, now);
        }
    }

    /// Forgets workloads that are not opted in yet.
    pub(in crate::controller) fn drop_joining(
        &mut self,
        now: Timestamp,
        of: impl Fn(&World, &WorkloadKey) -> bool,
    ) {
        if self.world.all_joining().len() == 0 {
            return;
        }
        let keys: Vec<_> = self.world.all_joining().filter(|key| of(&self.world, key)).cloned().collect();
        for key in keys {
            self.queue.cancel(&Task::Roll(key.clone()));
            self.apply_workload(&key, None, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, on, state},
        resolve::{Health, NamespaceOptIn, Record},
        world::{Precondition, fixture::key},
    };

    /// A watch may report the workload while its namespace is listed, and that the namespace opts out.
    #[test]
    fn only_unlabelled_workloads_of_the_namespace_join() {
        let condition = || Precondition::Unlabelled { has_labels: true, has_annotations: true };
        for (what, opts_in, is_marked, known, expected) in [
            ("it is new", NamespaceOptIn::Now, false, None, Some("9")),
            ("it was found before", NamespaceOptIn::Now, false, Some(true), Some("9")),
            ("a watch reported it", NamespaceOptIn::Now, false, Some(false), Some("7")),
            ("the namespace no longer opts in", NamespaceOptIn::Out, true, None, None),
            ("its next deployment opts it in", NamespaceOptIn::Next, false, None, None),
            ("it was deployed in an outage", NamespaceOptIn::Next, true, None, Some("9")),
        ] {
            let mut state = state(&[]);
            state.apply_namespace(&"ns".into(), opts_in, at(0));
            let record = Record { is_marked, ..on(1, Health::Settled) };
            match known {
                Some(true) => {
                    state.world.apply_joining(&key("web"), record.clone(), condition(), &mut Vec::new());
                }
                Some(false) => {
                    state.world.apply_workload(&key("web"), Some(record.clone()), &mut Vec::new());
                }
                None => {}
            }
            let record = Record { resource_version: "9".into(), ..record };
            state.join([(key("web"), Candidate { record, condition: condition() })], at(1));
            let found = state.world.workload(&key("web"));
            assert_eq!(found.map(|record| &*record.resource_version), expected, "{what}");
            let states_snapshot = found.is_some_and(|record| record.uses[0].snapshot.is_some());
            assert_eq!(states_snapshot, known == Some(false), "{what}: its template is not trusted yet");
        }
    }
}
