//! The numbers for metrics that summarize the state.

use crate::{
    controller::reconcile::state::State, gates::Gate, resolve::Record, telemetry::metrics::StateCounts,
};

impl State {
    /// The numbers for metrics. A replica that does not lead reads no sources and rolls nothing, so it only reports numbers
    /// of objects.
    pub fn counts(&mut self, leads: bool) -> StateCounts {
        let world = &self.world;
        let known = StateCounts {
            workloads: world.workloads().len(),
            sources: world.sources().len(),
            snapshots: world.snapshots().iter().len(),
            unreadable: world.unreadable().len(),
            partly_known: world.shares().partly_known().len(),
            index_bytes: world.shares().total(),
            ..StateCounts::default()
        };
        if !leads {
            return known;
        }
        let settings = world.config();
        let unverifiable =
            world.snapshots().iter().filter(|(_, record)| settings.is_unverifiable(record)).count();
        if unverifiable > 0 && !self.key_loss_is_reported {
            tracing::error!(
                snapshots = unverifiable,
                "the key of the digests of Secrets is lost: nothing rolls, and contents are compared with the \
                 snapshots; restore the Secret confrev-digest-key from a backup"
            );
        }
        self.key_loss_is_reported = unverifiable > 0;
        // A snapshot that nothing refers to is not missed, and one that exists again is not lost.
        self.missing.retain(|name| world.users().staying(name).next().is_some() && !world.exists(name));
        let count = |holds: &dyn Fn(&str, &Record) -> bool| {
            world.workloads().filter(|(key, record)| holds(&key.namespace, record)).count()
        };
        StateCounts {
            pending: self.queue.pending_rolls(),
            blocked: self.held_workloads.blocked(),
            pinned: count(&|namespace, record| world.pinned(namespace, record).next().is_some()),
            on_hold: count(&|_, record| record.uses.iter().any(|used| used.on_hold)),
            carried: count(&|_, record| record.is_marked),
            unresolved: count(&|namespace, record| world.unresolved(namespace, record).next().is_some()),
            lost: self.missing.lost().count(),
            unverifiable,
            ..known
        }
    }
}

impl State {
    /// How many workloads each gate keeps from new content. A replica that does not lead asks no gate.
    pub fn waiting(&self, leads: bool) -> Vec<(Gate, usize)> {
        if !leads {
            return Gate::all().map(|gate| (gate, 0)).collect();
        }
        let mut counts = self.held_workloads.by_gate();
        // Such a workload is not queued, so nothing else counts it.
        for (key, record) in self.world.workloads().filter(|(key, _)| !self.held_workloads.is_held(key)) {
            let Some(why) = self.world.stays(key, record).next() else { continue };
            counts.iter_mut().filter(|(gate, _)| *gate == why.gate()).for_each(|(_, count)| *count += 1);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        controller::{
            queue::Task,
            reconcile::{
                fixture::{at, on, state},
                missing_snapshots::Conclusion,
                state::State,
            },
        },
        gates::Gate,
        resolve::{Health, Record},
        telemetry::metrics::StateCounts,
        world::{
            Name, SnapshotRecord,
            fixture::{
                digest, having_seen, held, key, object, record, snapshot, snapshot_record, source, used,
            },
        },
    };

    fn gate(name: &str) -> Gate {
        Gate::named(name).unwrap()
    }

    /// A workload in each state that is counted, one that is paused, and two that are held.
    fn busy() -> State {
        let mut state = state(&[
            ("pinned", &on(1, Health::Settled).tied(&object("a"), |tie| tie.seen = Some(digest(2)))),
            ("hold", &having_seen(record("hold", &[held("a", 1)]), &[("a", 1)])),
            ("paused", &Record { track: false, ..on(1, Health::Settled) }),
            ("nothing", &record("nothing", &[used("none", None)])),
            ("lost", &record("lost", &[used("a", Some(9))])),
            ("waits", &on(1, Health::Settled)),
            ("bakes", &on(2, Health::Settled)),
        ]);
        state.world.set_read(&source("none"), None, &mut Vec::new());
        state.queue.schedule(Task::Roll(key("waits")), at(5));
        state.held_workloads.hold(&key("waits"), gate("failed"), false);
        state.held_workloads.hold(&key("bakes"), gate("wave"), true);
        state
    }

    /// Finds no content for a snapshot, twice.
    fn lose(state: &mut State, snapshot: &Name) {
        state.missing.not_found(snapshot, at(0));
        assert_eq!(state.missing.not_found(snapshot, at(5)), Conclusion::Lost);
    }

    #[test]
    fn only_the_leader_counts_decisions() {
        let mut state = busy();
        lose(&mut state, &source("a").sibling(snapshot("a", 9)));
        let index_bytes = state.world.shares().total();
        assert!(index_bytes > 0);
        let objects =
            StateCounts { workloads: 7, sources: 3, snapshots: 6, index_bytes, ..StateCounts::default() };
        assert_eq!(state.counts(false), objects);
        let decided = StateCounts { pending: 1, blocked: 1, pinned: 1, ..objects };
        assert_eq!(state.counts(true), StateCounts { on_hold: 1, unresolved: 1, lost: 1, ..decided });
        state.held_workloads.release(&key("bakes"));
        assert!(state.held_workloads.is_held(&key("waits")));
        assert!(!state.held_workloads.is_held(&key("bakes")));
        assert_eq!(state.counts(true).blocked, 1);
        let waiting =
            |leads| state.waiting(leads).into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(
            (waiting(true), waiting(false)),
            (vec![(gate("paused"), 1), (gate("hold"), 1), (gate("failed"), 1)], Vec::new())
        );
    }

    #[test]
    fn snapshot_is_lost_while_missing_and_used() {
        let mut state = busy();
        for (content, is_lost) in [(9, true), (1, false), (8, false)] {
            let name = source("a").sibling(snapshot("a", content));
            lose(&mut state, &name);
            assert_eq!(state.counts(true).lost, usize::from(is_lost), "{name}");
            state.missing.retain(|_| false);
        }
    }

    #[test]
    fn lost_key_is_known_until_it_returns() {
        let mut state = busy();
        let name = source("a").sibling("keyed");
        let digest = format!("hmac-sha256:00000001:{:0<64}", 5).parse().unwrap();
        let keyed = SnapshotRecord { digest, ..snapshot_record("a", 5) };
        for record in [None, Some(keyed), None] {
            let count = usize::from(record.is_some());
            state.world.apply_snapshot(&name, record, &mut Vec::new());
            assert_eq!(state.counts(false).unverifiable, 0, "another replica reports it");
            assert_eq!(state.counts(true).unverifiable, count);
            assert_eq!(state.key_loss_is_reported, count > 0);
        }
    }
}
