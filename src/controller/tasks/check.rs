//! When the contents of sources are checked against their schemas: before a workload moves to them, and again while they fail.
//!
//! Anyone who reaches the webhook's port may send a review, so admission gives a verdict about stored content only to a client with a
//! certificate. The controller trusts itself: it checks the content that a plan names.

use jiff::Timestamp;

use tokio::time::Instant;

use super::decided::Decided;
use crate::{
    cluster::{Api, ApiError},
    controller::{
        action::{Action, Moves, Outcome},
        queue::Task,
        reconcile::state::State,
    },
    resolve::{Observed, Record},
    schema::{LONGEST_WAIT, Schemas},
    server::Client,
    world::{Name, SourceRecord, WorkloadKey, World},
};

/// The sources with a schema to whose present contents a workload would move.
fn sources_to_check<'i>(
    world: &'i World,
    (key, record): (&WorkloadKey, &'i Record),
) -> impl Iterator<Item = (Name, &'i SourceRecord)> {
    world.sources_of(key, record).filter_map(|(source, used, known)| {
        let moves = known.has_schema()
            && known.present.mode_for(used).rolls()
            && record.is_pending_for(used, &known.present)
            // A workload goes back from refused content.
            && world.refused(&source).is_none();
        moves.then_some((source, known))
    })
}

impl State {
    /// Queues the checks without which the gates do not know whether a workload may move. Returns whether there are any: their ends queue
    /// its roll again.
    pub(super) fn enqueue_first_checks(
        &mut self,
        (key, record): (&WorkloadKey, &Record),
        now: Timestamp,
    ) -> bool {
        let sources = sources_to_check(&self.world, (key, record));
        let unknown = sources.filter(|(_, known)| known.check().is_none());
        let unknown = unknown.map(|(source, _)| source).collect();
        self.enqueue_checks(unknown, now)
    }

    /// The sources with a schema that a roll moves. The plan must name the contents that were checked.
    pub(super) fn checked_moves(&self, key: &WorkloadKey, record: &Record, moves: &Moves) -> Vec<Name> {
        let sources = sources_to_check(&self.world, (key, record)).map(|(source, _)| source);
        sources.filter(|source| moves.iter().any(|(of, _)| *of == source.object)).collect()
    }

    /// Queues the checks that are too old for a roll that moves these sources. Returns whether there are any.
    pub(super) fn enqueue_old_checks(&mut self, checked: &[Name], now: Timestamp) -> bool {
        let is_old = |source: &&Name| {
            let known = self.world.existing_source(source);
            known.is_some_and(|known| !self.checked_schemas.is_fresh(source, known, now))
        };
        let old = checked.iter().filter(is_old).cloned().collect();
        self.enqueue_checks(old, now)
    }

    /// Queues the checks of these sources. Returns whether there are any.
    fn enqueue_checks(&mut self, sources: Vec<Name>, now: Timestamp) -> bool {
        let any = !sources.is_empty();
        for source in sources {
            self.queue.schedule(Task::Check(source), now);
        }
        any
    }

    /// Checks the present content of a source, if a workload would move to it.
    pub(super) fn check_schema(&self, source: &Name) -> Decided {
        let is_source = |(name, _): (Name, &SourceRecord)| name == *source;
        let needs = |of: (&WorkloadKey, &Record)| sources_to_check(&self.world, of).any(is_source);
        let is_needed = self.world.workloads_using(source).any(needs);
        is_needed.then(|| Action::Check(source.clone())).into()
    }

    /// Applies the result of a check, for which the source was read. It says nothing about another version of the source, which is checked
    /// when it is read: the check took a while, and the watches may know more by now.
    pub(super) fn finish_check(&mut self, source: &Name, observed: Option<&Observed>, now: Timestamp) {
        let Some(known) = self.world.existing_source(source) else { return };
        let checked = observed.filter(|observed| {
            known.uid == observed.uid.as_str().into() && *known.resource_version == *observed.resource_version
        });
        match checked.and_then(Observed::check) {
            Some(check) => self.set_check(source, &check.clone(), now),
            None => self.queue.schedule(Task::Read(source.clone()), now),
        }
    }

    /// Records that there was no check: nothing says that the content matches its schema. It is checked again.
    pub(super) fn was_not_checked(&mut self, source: &Name, error: &ApiError, now: Timestamp) {
        self.set_check(source, &Err(format!("it was not checked: {error}").into()), now);
    }

    /// Records the result of a check, or why there is none, of the known version of a source.
    pub(super) fn set_check(&mut self, source: &Name, check: &Result<(), Box<str>>, now: Timestamp) {
        let Some(known) = self.world.existing_source(source) else { return };
        let (record, failed) = (known.clone().checked(check), known.schema_failure().is_some());
        let next = self.checked_schemas.set(source, failed, check.is_err(), now);
        if check.is_err() {
            self.queue.schedule(Task::Check(source.clone()), next);
        }
        self.update(now, |world, changes| world.set_read(source, Some(record), changes));
        self.enqueue_users(source, now);
    }
}

/// Reads a source and its schema live. What is read has the result.
pub(crate) async fn check<A: Api>(api: &A, schemas: &Schemas, source: &Name) -> Result<Outcome, ApiError> {
    let Some(present) = api.read(&source.namespace, &source.object).await? else {
        return Ok(Outcome::Read(None));
    };
    let client = Client::default().of_namespace(&source.namespace);
    let by = Instant::now() + LONGEST_WAIT;
    let failure = schemas.failure_in_turn(api, (&client, by), &source.namespace, &present).await?;
    Ok(Outcome::Read(Some(Box::new(present.checked(failure)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, limited, on, set_source, state},
        gate_settings::Texts,
        resolve::{Health, Present, Use},
        world::{
            SnapshotRecord,
            fixture::{
                digest, failed, held, key, object, reverting, snapshot, snapshot_record, source,
                source_record, used,
            },
            records::Gates,
        },
    };

    /// The result of a check.
    type Check = Result<(), Box<str>>;

    /// The source with a schema, and with the result of its check.
    fn with_schema(known: SourceRecord, check: Option<Check>) -> SourceRecord {
        let gates = Gates { settings: Texts::default(), set: None, has_schema: true, check };
        SourceRecord { gates: Some(gates.into()), ..known }
    }

    #[test]
    fn contents_that_would_move_a_workload_are_checked() {
        let with = |known| with_schema(known, None);
        let plain = || with(source_record("a", 2));
        let as_written = |live| Present { stays_as_written: true, live: Some(live), ..plain().present };
        let behind = || on(1, Health::Settled);
        let of = |used: Use| Record { uses: vec![used], ..behind() };
        let moves = vec![(object("a"), digest(2))];
        let excluded = Use { excluded: true, ..used("a", Some(1)) };
        let waves = limited("a", 2, &[("waves", "1")]);
        for (what, record, known, moves, is_checked) in [
            ("it would move", behind(), plain(), &moves, true),
            ("it is not resolved", of(used("a", None)), plain(), &moves, true),
            ("no schema", behind(), source_record("a", 2), &moves, false),
            ("it has the content", on(2, Health::Settled), plain(), &moves, false),
            ("it is held", of(held("a", 1)), plain(), &moves, false),
            ("it is excluded", of(excluded), plain(), &moves, false),
            (
                "it becomes live",
                behind(),
                SourceRecord { present: as_written(true), ..plain() },
                &moves,
                true,
            ),
            (
                "it returns to the name",
                behind(),
                SourceRecord { present: as_written(false), ..plain() },
                &moves,
                false,
            ),
            ("its turn", behind(), with(waves.clone()), &moves, true),
            ("not its turn", behind(), with(waves), &Moves::new(), false),
            ("it may come back", behind(), with(reverting("a", 2)), &moves, true),
        ] {
            let mut state = state(&[("web", &record)]);
            set_source(&mut state, "a", known);
            assert_eq!(!state.checked_moves(&key("web"), &record, moves).is_empty(), is_checked, "{what}");
        }
        // A workload goes back from refused content.
        let mut state = state(&[("web", &behind())]);
        set_source(&mut state, "a", with(reverting("a", 2)));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        state.world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        assert_eq!(state.checked_moves(&key("web"), &behind(), &moves), []);
    }

    /// A workload of the sources a, with a schema, and b; both changed.
    fn pending() -> State {
        let both = Record { uses: vec![used("a", Some(1)), used("b", Some(1))], ..on(1, Health::Settled) };
        let mut state = state(&[("web", &both)]);
        set_source(&mut state, "a", with_schema(source_record("a", 2), None));
        set_source(&mut state, "b", source_record("b", 2));
        state.enqueue_roll(&key("web"), at(0));
        state
    }

    /// Its turn at this second, and whether a check is queued.
    fn turn(state: &mut State, second: i64) -> (String, bool) {
        let decided = match state.decide_roll(&key("web"), at(second)) {
            Decided::Act(Action::Poke { moves, names_contents, .. }) => {
                let names: Vec<_> = moves.iter().map(|(source, _)| &*source.name).collect();
                format!("{} {names_contents}", names.join(" "))
            }
            other => brief(&other),
        };
        (decided, state.queue.is_queued(&Task::Check(source("a"))))
    }

    #[test]
    fn roll_waits_for_a_fresh_check() {
        let line = |decided: &str, is_queued| (decided.to_owned(), is_queued);
        let mut state = pending();
        assert_eq!(turn(&mut state, 1), line("later 6000", true));
        assert_eq!(turn(&mut state, 9), line("later 14000", true));
        state.queue.cancel(&Task::Check(source("a")));
        state.set_check(&source("a"), &Ok(()), at(9));
        assert_eq!(turn(&mut state, 9), line("a b true", false));
        assert_eq!(turn(&mut state, 19), line("later 24000", true), "it is old");
        // Another source of the workload does not wait for a content that fails.
        state.set_check(&source("a"), &Err("it fails".into()), at(19));
        assert_eq!(turn(&mut state, 19), line("b true", true));
        assert_eq!(state.queue.due(&Task::Check(source("a"))), Some(at(19)));
    }

    /// The watches may know more than a check that took a while.
    #[test]
    fn check_says_nothing_about_another_version() {
        let observed = |uid: &str, version: &str| {
            let annotations = format!(r#"{{"{}": "schemas/x"}}"#, crate::annotations::SCHEMA);
            let metadata = format!(
                r#"{{"name": "a", "uid": "{uid}", "resourceVersion": "{version}", "annotations": {annotations}}}"#
            );
            let text = format!(r#"{{"metadata": {metadata}, "data": {{}}}}"#);
            let read = Observed::read(crate::snapshot::SourceKind::ConfigMap, text.into_bytes()).unwrap();
            Some(read.checked(Some("it fails".into())))
        };
        let read = Task::Read(source("a"));
        for (what, found, is_known) in [
            ("the same", observed("uid-a", "2"), true),
            ("another version", observed("uid-a", "3"), false),
            ("another object", observed("other", "2"), false),
            ("it is gone", None, false),
        ] {
            let mut state = pending();
            state.finish_check(&source("a"), found.as_ref(), at(3));
            let known = state.world.existing_source(&source("a")).unwrap();
            assert_eq!(known.schema_failure(), is_known.then_some("it fails"), "{what}");
            assert_eq!(known.present.digests.current(), digest(2), "{what}");
            assert_eq!(state.queue.is_queued(&read), !is_known, "{what}");
        }
    }

    #[test]
    fn refused_content_is_reported() {
        let web = on(1, Health::Settled);
        let mut state = state(&[("web", &web)]);
        let failing = Some(Err("annotation confrev.dev/schema: it fails".into()));
        set_source(&mut state, "a", with_schema(source_record("a", 2), failing));
        state.enqueue_roll(&key("web"), at(0));
        assert!(matches!(state.decide_roll(&key("web"), at(9)), Decided::Later(_)));
        let turn = state.held_workloads.check(&state.world, &key("web"), |_, _, _| false, (at(0), at(9)));
        let notes: Vec<_> = turn.events.into_iter().map(|event| event.note).collect();
        let refused = "to the present content was refused: the content of ConfigMap \"a\" is refused: annotation \
                       confrev.dev/schema: it fails";
        assert!(notes.len() == 2 && notes.iter().all(|note| note.contains(refused)), "{notes:?}");
        let gates: Vec<_> = state.waiting(true).into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(
            gates.iter().map(|(gate, count)| (gate.name(), *count)).collect::<Vec<_>>(),
            [("schema", 1)]
        );
    }
}
