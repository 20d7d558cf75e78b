//! Namespaces of which something is left out of the world: what follows when one is partly known, and when everything is
//! listed again.

use std::sync::Arc;

use jiff::Timestamp;

use super::event_texts;
use crate::{
    controller::{queue::Task, reconcile::state::State},
    world::{Name, shares::ListId},
};

impl State {
    /// Follows whether all of a namespace is known.
    pub(super) fn share_changed(&mut self, namespace: &Arc<str>, now: Timestamp) {
        if self.world.shares().is_partly_known(namespace) {
            self.partly_known(namespace, now);
        } else {
            self.fully_known(namespace, now);
        }
    }

    /// Gives each snapshot of the namespace an owner that stays, and reports the namespace.
    fn partly_known(&mut self, namespace: &Arc<str>, now: Timestamp) {
        tracing::warn!(
            %namespace,
            "namespace has more workloads and revisions than its share of the index: some are left out"
        );
        self.enqueue_owners_in(namespace, now);
        self.report([event_texts::partly_known(&self.world, namespace, now)], now);
    }

    /// Removes that owner again, and looks for workloads that are to be opted in.
    fn fully_known(&mut self, namespace: &Arc<str>, now: Timestamp) {
        tracing::info!(%namespace, "all workloads and revisions of the namespace are in the index again");
        self.enqueue_owners_in(namespace, now);
        if self.world.opt_in_of(namespace).is_in() {
            self.queue.schedule(Task::OptIn(Arc::clone(namespace)), now);
        }
    }

    fn enqueue_owners_in(&mut self, namespace: &Arc<str>, now: Timestamp) {
        let snapshots = self.world.snapshots().iter().map(|(name, _)| name);
        let names: Vec<Name> = snapshots.filter(|name| name.namespace == *namespace).cloned().collect();
        for name in names {
            self.enqueue_owners(&name, now);
        }
    }

    /// Reports every namespace of which something is left out. Called when this replica begins to lead.
    pub(super) fn report_all_partly_known(&mut self, now: Timestamp) {
        for namespace in self.world.shares().partly_known() {
            self.report([event_texts::partly_known(&self.world, &namespace, now)], now);
        }
    }

    /// The namespaces of which something is left out, in order.
    pub fn partly_known_namespaces(&self) -> Vec<Arc<str>> {
        self.world.shares().partly_known()
    }

    /// Records that a list begins.
    pub(in crate::controller) fn list_began(&mut self, list: ListId) {
        self.world.shares_mut().list_began(list);
    }

    /// Records that every object of a list is applied.
    pub(in crate::controller) fn list_ended(&mut self, list: &ListId, now: Timestamp) {
        self.update(now, |world, changes| world.list_ended(list, changes));
    }

    /// Whether the watches of workloads, revisions and sources in bind mode are to list their objects again, because what was
    /// left out may fit now; and whether those of workloads are, because these inherit other settings. Each call that returns true begins
    /// another round of lists.
    pub fn take_relists(&mut self, now: Timestamp) -> [bool; 2] {
        let may_fit = self.world.shares().may_fit(&self.world.config().shares);
        let is_due = self.relists.is_due(may_fit, now);
        if is_due {
            self.world.shares_mut().begin_round();
        }
        let of_settings = self.relists_of_settings.is_due(self.inherits_anew, now);
        self.inherits_anew &= !of_settings;
        [is_due, of_settings]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{
            action::Action,
            queue::ObjectStep,
            reconcile::fixture::{at, on, set_source, state},
        },
        resolve::Health,
        telemetry::metrics::Reason,
        world::{
            Owner, ShareLimits, SnapshotRecord,
            fixture::{key, snapshot, snapshot_record, source, source_record},
        },
    };

    fn of_a(content: u8) -> Name {
        source("a").sibling(snapshot("a", content))
    }

    fn namespace() -> Owner {
        Owner::new("v1", "Namespace", "ns", "uid-ns")
    }

    /// A state in which a workload uses the content 1 of a, whose snapshot has these owners. If the namespace is partly known,
    /// another workload is left out.
    fn with(is_partly_known: bool, owners: &[Owner]) -> State {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        state.apply_namespace_uid(&"ns".into(), Some("uid-ns".into()), at(0));
        let record = SnapshotRecord { owners: owners.iter().cloned().collect(), ..snapshot_record("a", 1) };
        state.world.apply_snapshot(&of_a(1), Some(record), &mut Vec::new());
        if is_partly_known {
            let total = state.world.shares().total();
            let limits = ShareLimits { namespace: total, revisions: 0, total };
            state.world.config_mut().shares = limits;
            state.apply_workload(&key("other"), Some(on(2, Health::Settled)), at(0));
            assert!(state.world.workload(&key("other")).is_none());
        }
        state
    }

    fn owners(action: Option<Action>) -> Option<Vec<String>> {
        match action? {
            Action::SetOwners { owners, .. } => {
                Some(owners.iter().map(|owner| format!("{}/{}", owner.kind, owner.name)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn web() -> Owner {
        let record = on(1, Health::Settled);
        Owner::new("apps/v1", "Deployment", "web", record.uid.clone())
    }

    /// A user that is left out may need the snapshot after all known users are deleted.
    #[test]
    fn namespace_owns_snapshots_in_use() {
        let mut fully = with(false, &[]);
        assert_eq!(owners(fully.bind(&of_a(1), at(1))), Some(vec!["Deployment/web".to_owned()]));
        let mut partly = with(true, &[web()]);
        let expected = ["Deployment/web", "Namespace/ns"].map(str::to_owned).to_vec();
        assert_eq!(owners(partly.bind(&of_a(1), at(1))), Some(expected));
        let mut kept = with(true, &[web(), namespace()]);
        assert_eq!(owners(kept.bind(&of_a(1), at(1))), None);
        // Its source keeps it, and may be deleted.
        set_source(&mut kept, "a", crate::world::records::SourceRecord { keep: 1, ..source_record("a", 2) });
        let newest = owners(kept.bind(&of_a(2), at(1)));
        assert_eq!(newest, Some(["ConfigMap/a", "Namespace/ns"].map(str::to_owned).to_vec()));
    }

    /// The sweep reads the users live.
    #[test]
    fn unused_snapshot_is_swept_despite_its_namespace() {
        let mut state = with(true, &[namespace()]);
        state.apply_workload(&key("web"), None, at(1));
        assert_eq!(owners(state.bind(&of_a(1), at(1))), None);
        assert!(state.queue.is_queued(&Task::Object(of_a(1), ObjectStep::Sweep)));
    }

    #[test]
    fn namespace_leaves_once_it_is_fully_known() {
        let mut state = with(false, &[web(), namespace()]);
        assert_eq!(
            owners(state.unbind(&of_a(1))),
            Some(vec!["Deployment/web".to_owned()]),
            "it needs no live read"
        );
    }

    /// Without its uid, the garbage collector would take the namespace for deleted.
    #[test]
    fn namespace_without_uid_owns_nothing() {
        let mut state = with(true, &[web()]);
        state.apply_namespace_uid(&"ns".into(), None, at(1));
        assert_eq!(owners(state.bind(&of_a(1), at(1))), None);
        state.queue.cancel(&Task::Object(of_a(1), ObjectStep::Bind));
        state.apply_namespace_uid(&"ns".into(), Some("uid-ns".into()), at(2));
        assert!(state.queue.is_queued(&Task::Object(of_a(1), ObjectStep::Bind)), "it is bound now");
    }

    /// How many Events report the namespace within a minute.
    fn told(state: &mut State, from: i64) -> usize {
        let mut told = 0;
        for second in from..from + 60 {
            while let Some((task, action)) = state.next_action(at(second)) {
                if let Action::WriteEvent(event) = &action
                    && event.reason == Reason::NamespacePartlyKnown
                {
                    assert_eq!((&*event.regarding.kind, &*event.regarding.uid), ("Namespace", "uid-ns"));
                    told += 1;
                }
                state.finish(&task, Ok(crate::controller::action::Outcome::Done), at(second));
            }
        }
        told
    }

    #[test]
    fn partly_known_namespace_is_reported_once() {
        let mut state = with(true, &[web()]);
        state.apply_workload(&key("third"), Some(on(2, Health::Settled)), at(1));
        assert_eq!(told(&mut state, 2), 1);
        state.leave_to_the_leader();
        state.reconcile_all(at(100));
        assert_eq!(told(&mut state, 100), 0, "it was reported within the last ten minutes");
        assert_eq!(state.counts(true).partly_known, 1);
        assert_eq!(state.partly_known_namespaces(), ["ns".into()]);
        state.reconcile_all(at(1000));
        assert_eq!(told(&mut state, 1000), 1, "another replica leads");
    }
}
