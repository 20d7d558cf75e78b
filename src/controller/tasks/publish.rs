//! The state of a change on its source, for tools that look at the source alone: when the annotation `change` is written.
//!
//! It says what the chain of gates says, so it decides nothing. A write requires the version of the source whose content it is about.

use jiff::{SignedDuration, Timestamp};

use super::decided::Decided;
use crate::{
    annotations,
    cluster::{Api, ApiError},
    controller::{
        action::{Action, Outcome, Published},
        queue::Task,
        reconcile::{rolls::is_rolling, state::State, state_checks::PAUSE},
    },
    resolve::{Phase, Record},
    world::{Name, Version, WorkloadKey},
};

/// How long a change settles before its state is derived. Many workloads may report at once.
const SETTLE: SignedDuration = SignedDuration::from_millis(300);
impl State {
    /// Queues the states of the changes of all sources that a workload uses, or used.
    pub(in crate::controller) fn enqueue_states(
        &mut self,
        key: &WorkloadKey,
        before: Option<&Record>,
        now: Timestamp,
    ) {
        let uses = before.into_iter().chain(self.world.workload(key)).flat_map(|record| &record.uses);
        let sources = uses.map(|used| key.beside(used.source.clone()));
        let sources: Vec<_> = sources.filter(|source| self.is_reported(source)).collect();
        for source in sources {
            self.queue.schedule(Task::Publish(source), now + SETTLE);
        }
    }

    /// Queues the state of the change of a source.
    pub(in crate::controller) fn enqueue_state(&mut self, source: &Name, now: Timestamp) {
        if self.is_reported(source) {
            self.queue.schedule(Task::Publish(source.clone()), now + SETTLE);
        }
    }

    /// Whether a source has the state of its change, or should have it.
    fn is_reported(&self, source: &Name) -> bool {
        let known = self.world.existing_source(source);
        known.is_some_and(|known| self.world.reports(known) || known.reported().is_some())
    }

    /// Writes the state of the change of a source, if it differs from what the source says.
    pub(super) fn publish(&mut self, source: &Name, now: Timestamp) -> Decided {
        let Some(known) = self.world.existing_source(source) else { return Decided::Done };
        let digest = known.present.digests.current();
        let reports = self.world.reports(known);
        // Until then, workloads would count as unhealthy, or a group as partly moved.
        let change = self.world.change(source, known);
        let is_listed = |(name, _): &(Name, _)| self.world.referrers().is_listed(&name.namespace);
        let is_known = change.sources.iter().all(is_listed) && !self.world.awaits_sibling(source);
        if reports && !is_known && self.world.workloads_using(source).next().is_some() {
            return Decided::Later(now + PAUSE);
        }
        if let Some(free) = self.checks_of_states.free(source, digest, known.reported().is_some(), now) {
            return Decided::Later(free);
        }
        let state = reports
            .then(|| self.world.change_state(source, known, is_rolling(&self.queue, &self.rolls, now), now))
            // No workload follows it, and it has not asked.
            .filter(|state| state.of > 0 || known.asks_for_state() == Some(true));
        let change: Option<Box<str>> = state.as_ref().map(|state| state.text().into());
        let (is_news, version) = (change.as_deref() != known.reported(), known.version());
        self.checks_of_states.checked(source, digest, now);
        if is_news {
            return Decided::Act(Action::Publish { source: source.clone(), version, change });
        }
        // The end of a bake time, or the opening of a window, is no event.
        let is_open = state.is_some_and(|state| state.phase != Phase::Complete);
        if is_open { Decided::Later(now + PAUSE) } else { Decided::Done }
    }

    /// Records that the state of a change was written.
    pub(super) fn published(&mut self, source: &Name, done: Published, now: Timestamp) {
        let Published { before, after, change } = done;
        self.checks_of_states.written(source, change.is_some(), now);
        // What a watch has reported since is newer than the answer.
        self.world.set_reported(source, &before, after, change);
        self.queue.schedule(Task::Publish(source.clone()), now + PAUSE);
    }

    /// Forgets a source on which nothing depends.
    pub(in crate::controller) fn forget_state(&mut self, source: &Name) {
        self.checks_of_states.forget(source);
        self.queue.cancel(&Task::Publish(source.clone()));
    }
}

/// Writes the state of a change on its source; `None` removes it.
pub(in crate::controller) async fn run<A: Api>(
    api: &A,
    source: &Name,
    before: Version,
    change: Option<Box<str>>,
) -> Result<Outcome, ApiError> {
    let value = (annotations::CHANGE, change.as_deref().map(str::to_owned));
    let after = api.set_annotation(&source.namespace, &source.object, &before, value).await?;
    Ok(Outcome::Published(Published { before, after, change }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, on, set_source, state},
        resolve::{ChangeState, Health},
        world::{
            SourceRecord,
            fixture::{digest, key, source, source_record},
            records::Report,
        },
    };

    /// The source a with the content 2, which one of two workloads has.
    fn changed(asked: Option<bool>, change: Option<&str>) -> State {
        let mut state = state(&[("new", &on(2, Health::Settled)), ("old", &on(1, Health::Settled))]);
        let report = Some(Box::new(Report { asked, change: change.map(Into::into) }));
        set_source(&mut state, "a", SourceRecord { report, ..source_record("a", 2) });
        state.world.referrers_mut().set_listed("ns");
        state
    }

    /// What is written at that second: a state, `removed`, or nothing.
    fn written(state: &mut State, second: i64) -> Option<String> {
        match state.publish(&source("a"), at(second)) {
            Decided::Act(Action::Publish { version, change, .. }) => {
                assert_eq!(version, state.world.existing_source(&source("a")).unwrap().version());
                Some(change.map_or("removed".to_owned(), String::from))
            }
            _ => None,
        }
    }

    /// Writes the state at that second, as the API server would.
    fn write(state: &mut State, second: i64) -> String {
        let text = written(state, second).expect("it differs");
        let before = state.world.existing_source(&source("a")).unwrap().version();
        let done = Published { before, after: "7".to_owned(), change: Some(text.as_str().into()) };
        state.published(&source("a"), done, at(second));
        text
    }

    #[test]
    fn state_is_written_where_asked_for() {
        let expected = format!(
            r#"{{"digest":"{}","phase":"rolling","moved":1,"of":2,"since":"1970-01-01T00:00:09Z"}}"#,
            digest(2)
        );
        for (asked, by_default, is_reported) in
            [(None, false, false), (None, true, true), (Some(true), false, true), (Some(false), true, false)]
        {
            let mut state = state(&[("new", &on(2, Health::Settled)), ("old", &on(1, Health::Settled))]);
            state.world.config_mut().report_changes = by_default;
            let report = asked.map(|asked| Box::new(Report { asked: Some(asked), change: None }));
            set_source(&mut state, "a", SourceRecord { report, ..source_record("a", 2) });
            state.world.referrers_mut().set_listed("ns");
            let wanted = is_reported.then(|| expected.clone());
            assert_eq!(written(&mut state, 9), wanted, "{asked:?} {by_default}");
        }
    }

    /// A state that is not kept any more would mislead.
    #[test]
    fn unwanted_state_is_removed() {
        for asked in [Some(false), None] {
            assert_eq!(written(&mut changed(asked, Some("{}")), 9).as_deref(), Some("removed"), "{asked:?}");
        }
    }

    #[test]
    fn writes_of_one_source_keep_their_distance() {
        let mut state = changed(Some(true), None);
        let first = write(&mut state, 9);
        assert_eq!(written(&mut changed(Some(true), Some(&first)), 9), None, "it is no news");
        let known = state.world.existing_source(&source("a")).unwrap();
        assert_eq!((known.reported(), &*known.resource_version), (Some(&*first), "7"));
        assert_eq!(state.queue.due(&Task::Publish(source("a"))), Some(at(14)));
        state.world.apply_workload(&key("old"), Some(on(2, Health::Settled)), &mut Vec::new());
        for second in [9, 13] {
            assert_eq!(written(&mut state, second), None, "second {second}");
        }
        let second = written(&mut state, 14).unwrap();
        let second: ChangeState = serde_json::from_str(&second).unwrap();
        assert_eq!((second.phase, second.moved, second.of), (Phase::Complete, 2, 2));
    }

    /// Another tool may own all annotations, and remove it each time.
    #[test]
    fn removed_state_is_written_again_later() {
        let mut state = changed(Some(true), None);
        write(&mut state, 9);
        let report = Some(Box::new(Report { asked: Some(true), change: None }));
        set_source(&mut state, "a", SourceRecord { report: report.clone(), ..source_record("a", 2) });
        assert_eq!(written(&mut state, 68), None);
        assert!(written(&mut state, 69).is_some());
        // Other content is news.
        set_source(&mut state, "a", SourceRecord { report, ..source_record("a", 3) });
        assert!(written(&mut state, 74).is_some());
    }

    /// The last workload is deleted, or never was.
    #[test]
    fn unused_source_has_state_only_if_asked() {
        for (asked, is_kept) in [(Some(true), true), (None, false)] {
            let mut state = changed(asked, Some("{}"));
            state.world.config_mut().report_changes = true;
            for name in ["new", "old"] {
                state.world.apply_workload(&key(name), None, &mut Vec::new());
            }
            let found = written(&mut state, 9).expect("it differs");
            assert_eq!(found != "removed", is_kept, "{found}");
        }
    }

    /// Without events, the bake time ends.
    #[test]
    fn change_in_progress_is_checked_again() {
        let mut state = changed(Some(true), None);
        let text = written(&mut state, 9).unwrap();
        let mut same = changed(Some(true), Some(&text));
        match same.publish(&source("a"), at(20)) {
            Decided::Later(due) => assert_eq!(due, at(25)),
            _ => panic!("it is not checked again"),
        }
    }

    #[test]
    fn events_queue_reported_sources_alone() {
        for (asked, due) in [(Some(true), Some(at(1) + SETTLE)), (None, None)] {
            let mut state = changed(asked, None);
            state.queue.cancel(&Task::Publish(source("a")));
            state.enqueue_states(&key("old"), None, at(1));
            assert_eq!(state.queue.due(&Task::Publish(source("a"))), due, "{asked:?}");
        }
    }
}
