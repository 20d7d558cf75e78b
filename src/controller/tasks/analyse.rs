//! The analysis of waves: when an AnalysisRun is created, read again and terminated.
//!
//! Whether a run exists, its result, and the moves that it judges are all in the cluster. The name of the run follows from the
//! moves, so a new leader neither skips a run nor creates a second one.

use jiff::{SignedDuration, Timestamp};

use super::decided::Decided;
use crate::{
    controller::{
        action::{Action, Analysed},
        queue::Task,
        reconcile::{event_texts, gates::BAKE, rolls::is_rolling, state::State},
    },
    resolve::{AnalysisRun, EndedWave, RunState},
    world::{
        Name, WorkloadKey,
        analyses::{judges_present, run_name},
    },
};

/// How long a change settles before its waves are checked. Many workloads may report at once.
const SETTLE: SignedDuration = SignedDuration::from_millis(300);
/// The time between two reads of a run without a result.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// The time between two attempts to create a run that cannot be created.
const AGAIN: SignedDuration = SignedDuration::from_secs(15);
/// The time between two reads of a run with a result that stops the change. A person may delete the run to repeat it.
const REREAD: SignedDuration = SignedDuration::from_mins(1);

impl State {
    /// Queues a check of the waves of all sources that a workload uses.
    pub(in crate::controller) fn enqueue_analyses(&mut self, key: &WorkloadKey, now: Timestamp) {
        let Some(record) = self.world.workload(key) else { return };
        let sources: Vec<_> = record
            .uses
            .iter()
            .map(|used| key.beside(used.source.clone()))
            .filter(|name| self.may_be_analysed(name))
            .collect();
        for source in sources {
            self.queue.schedule(Task::Analyse(source), now + SETTLE);
        }
    }

    /// Queues a check of the waves of a source that was read.
    pub(in crate::controller) fn enqueue_analysis(&mut self, source: &Name, now: Timestamp) {
        if self.may_be_analysed(source) {
            self.queue.schedule(Task::Analyse(source.clone()), now + SETTLE);
        }
    }

    /// Whether a change of the source has an analysis, as far as this is known without reading its group.
    fn may_be_analysed(&self, source: &Name) -> bool {
        let known = self.world.existing_source(source);
        known.is_some_and(|known| known.spread.analysis.is_some() || self.world.is_grouped(source))
    }

    /// Creates or reads the run of the wave that has ended, and refuses the content if the run failed. Before the first wave, reads
    /// its template.
    pub(super) fn analyse(&mut self, source: &Name, now: Timestamp) -> Decided {
        if self.world.awaits_sibling(source) {
            return Decided::Later(now + SETTLE);
        }
        let known = self.world.existing_source(source);
        let first = known.and_then(|known| {
            let change = self.world.change(source, known);
            change.analysed().map(|(first, _)| first.clone())
        });
        match first {
            Some(first) if first == *source => self.analyse_wave(source, now),
            // One run judges a wave of a group.
            Some(first) => {
                self.world.analyses_mut().forget(source);
                self.queue.schedule(Task::Analyse(first), now);
                Decided::Done
            }
            None => {
                self.world.analyses_mut().forget(source);
                Decided::Done
            }
        }
    }

    fn analyse_wave(&self, source: &Name, now: Timestamp) -> Decided {
        let Some(known) = self.world.existing_source(source) else { return Decided::Done };
        let is_rolling = is_rolling(&self.queue, &self.rolls, now);
        let Some(spread) = self.world.spread(source, known, is_rolling, now) else {
            return Decided::Done;
        };
        let wanted = spread
            .ended()
            .map(|ended| (ended, run_name(source, known, ended, self.world.retried(source, known))));
        let last = self.world.analyses().get(source);
        let end = |run: &str| {
            let (source, uid) = (source.clone(), known.uid.to_string());
            Decided::Act(Action::EndAnalysis { source, uid, run: run.into() })
        };
        if let Some(last) = last.filter(|last| last.run.state == RunState::Running) {
            // While a workload is not healthy for a moment, the run continues.
            let is_wanted = wanted.as_ref().map_or_else(
                || judges_present(&last.run.name, source, known),
                |(_, name)| **name == *last.run.name,
            );
            if !is_wanted || spread.is_aborted() {
                return end(&last.run.name);
            }
        }
        let Some((ended, name)) = wanted else {
            let progress = spread.progress();
            let is_over = progress.is_none_or(|progress| progress.moved >= progress.total);
            return match progress.and_then(|progress| progress.bakes_until) {
                Some(until) => Decided::Later(until.min(now + BAKE)),
                None if is_over => Decided::Done,
                // The watches report most changes of health; a progress deadline only passes.
                None => Decided::Later(now + BAKE),
            };
        };
        let last = last.filter(|last| *last.run.name == *name).map(|last| (&last.run.state, last.at));
        if spread.is_aborted() && ended.is_start() {
            return Decided::Done;
        }
        if spread.is_aborted() {
            // A previous leader may have created it.
            let is_ended = matches!(last, Some((RunState::Undecided(_), _)));
            return if is_ended { Decided::Done } else { end(&name) };
        }
        let read = |after: SignedDuration, last: Timestamp| {
            let due = last + after;
            if due > now { Decided::Later(due) } else { self.read_run(source, ended, &name) }
        };
        match last {
            None | Some((RunState::Unknown, _)) => self.read_run(source, ended, &name),
            Some((RunState::Running, at)) => read(POLL, at),
            Some((RunState::Successful, _)) => Decided::Done,
            Some((RunState::Unavailable(_), at)) => read(AGAIN, at),
            Some((RunState::Undecided(_), at)) => read(REREAD, at),
            Some((RunState::Failed(why), at)) => {
                let reason = format!("AnalysisRun {name} of wave {}: {why}", ended.wave);
                let refuse = self.refuse_change(&self.world.change(source, known), &reason, now);
                refuse.map_or_else(|| read(REREAD, at), Decided::Act)
            }
        }
    }

    fn read_run(&self, source: &Name, ended: EndedWave, name: &str) -> Decided {
        let Some(known) = self.world.existing_source(source) else { return Decided::Done };
        let Some(analysis) = known.spread.analysis.clone() else { return Decided::Done };
        Decided::Act(Action::Analyse {
            source: source.clone(),
            uid: known.uid.to_string(),
            digest: known.present.digests.current(),
            analysis,
            wave: ended.wave,
            run: name.into(),
        })
    }

    /// Applies what was read about the run of a wave.
    pub(in crate::controller) fn analysed(&mut self, source: &Name, found: Analysed, now: Timestamp) {
        let Analysed { run, wave, is_new } = found;
        let before = self.world.analyses_mut().set(source, run.clone(), now);
        self.queue.schedule(Task::Analyse(source.clone()), now);
        if before.as_ref() == Some(&run.state) {
            return;
        }
        // What was derived before is outdated.
        self.held_workloads.source_changed(&self.world, source);
        let event = event_texts::analysed(&self.world, source, &run, wave, (before.as_ref(), is_new), now);
        self.report(event, now);
    }

    /// Records that a run judges nothing any more.
    pub(super) fn analysis_ended(&mut self, source: &Name, run: Box<str>, now: Timestamp) {
        let run = AnalysisRun { name: run, state: RunState::Undecided("was terminated".into()) };
        self.world.analyses_mut().set(source, run, now);
        self.held_workloads.source_changed(&self.world, source);
        self.queue.schedule(Task::Analyse(source.clone()), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::{
            fixture::{at, limited, moved_one, on, set_group, set_source},
            rolls::Rolling,
        },
        resolve::{Health, Record, Verdict},
        world::{
            SnapshotRecord, SourceRecord,
            fixture::{digest, key, object, snapshot, snapshot_record, source, used},
        },
    };

    const ANALYSED: [(&str, &str); 3] = [("waves", "1"), ("analysis", "sound"), ("on-failure", "revert")];

    /// What is done about the analysis at this second.
    fn step(state: &mut State, second: i64) -> String {
        match state.analyse(&source("a"), at(second)) {
            Decided::Done => "done".to_owned(),
            Decided::Later(at) => format!("later {}", at.as_second()),
            Decided::Act(Action::Analyse { wave, .. }) => format!("read wave {wave}"),
            Decided::Act(Action::EndAnalysis { .. }) => "end".to_owned(),
            Decided::Act(Action::SetVerdict { .. }) => "refuse".to_owned(),
            Decided::Act(other) => format!("{other:?}"),
        }
    }

    /// The name of the run of the first wave.
    fn first_run(state: &mut State) -> Box<str> {
        match state.analyse(&source("a"), at(9)) {
            Decided::Act(Action::Analyse { run, wave: 1, .. }) => run,
            other => panic!("no run is needed: {other:?}"),
        }
    }

    /// A state whose first wave has ended, and what was read of its run at the tenth second.
    fn read(run: RunState, annotations: &[(&str, &'static str)]) -> State {
        let mut state = moved_one(Health::Settled, annotations);
        let name = first_run(&mut state);
        state.world.analyses_mut().set(&source("a"), AnalysisRun { name, state: run }, at(10));
        state
    }

    #[test]
    fn run_is_read_until_it_has_a_result() {
        let failed = || RunState::Failed("x".into());
        let hold = [("waves", "1"), ("analysis", "sound")];
        for (state, annotations, second, expected) in [
            (RunState::Unknown, &ANALYSED[..], 10, "read wave 1"),
            (RunState::Running, &ANALYSED, 11, "later 12"),
            (RunState::Running, &ANALYSED, 12, "read wave 1"),
            (RunState::Successful, &ANALYSED, 12, "done"),
            (RunState::Unavailable("x".into()), &ANALYSED, 24, "later 25"),
            (RunState::Unavailable("x".into()), &ANALYSED, 25, "read wave 1"),
            (RunState::Undecided("x".into()), &ANALYSED, 69, "later 70"),
            (RunState::Undecided("x".into()), &ANALYSED, 70, "read wave 1"),
            (failed(), &ANALYSED, 11, "refuse"),
            (failed(), &hold, 69, "later 70"),
            (failed(), &hold, 70, "read wave 1"),
        ] {
            assert_eq!(
                step(&mut read(state.clone(), annotations), second),
                expected,
                "{state:?} {annotations:?}"
            );
        }
    }

    #[test]
    fn no_run_judges_a_wave_that_continues() {
        let every = on(2, Health::Progressing).tied(&object("a"), |tie| tie.moved = Some(at(0)));
        for (what, health, bake, all_moved, expected) in [
            ("it progresses", Health::Progressing, "0s", false, "later 15"),
            ("it bakes for long", Health::Settled, "60s", false, "later 15"),
            ("it bakes until then", Health::Settled, "12s", false, "later 12"),
            ("all have moved", Health::Progressing, "0s", true, "done"),
        ] {
            let mut state = moved_one(health, &[("waves", "1"), ("analysis", "sound"), ("bake", bake)]);
            for name in ["waits", "other"].into_iter().filter(|_| all_moved) {
                state.world.apply_workload(&key(name), Some(every.clone()), &mut Vec::new());
            }
            assert_eq!(step(&mut state, 10), expected, "{what}");
        }
        let mut state = moved_one(Health::Settled, &ANALYSED);
        state.queue.schedule(Task::Roll(key("waits")), at(0));
        assert!(state.queue.pop(at(1), at(0)).is_some());
        assert_eq!(step(&mut state, 10), "later 15", "a roll is in progress");
        let mut state = moved_one(Health::Settled, &ANALYSED);
        let moves = vec![(object("a"), digest(2))];
        let rolling = Rolling { since: at(0), before: on(1, Health::Settled), moves };
        state.rolls.start(&key("waits"), rolling, (at(0), SignedDuration::ZERO), false);
        state.rolls.end(&key("waits"), false, at(5));
        assert_eq!(step(&mut state, 10), "later 15", "a roll may take effect");
        assert_eq!(step(&mut state, 40), "read wave 1", "it did not");
    }

    #[test]
    fn run_of_what_changed_is_ended() {
        let apply = |state: &mut State, health| {
            let moved = on(2, health).tied(&object("a"), |tie| tie.moved = Some(at(0)));
            state.world.apply_workload(&key("moved"), Some(moved), &mut Vec::new());
        };
        let mut state = read(RunState::Running, &ANALYSED);
        apply(&mut state, Health::Progressing);
        assert_eq!(step(&mut state, 12), "later 17", "a workload is not healthy for a moment");
        apply(&mut state, Health::Settled);
        let run = AnalysisRun { name: "run-of-other-content".into(), state: RunState::Running };
        state.world.analyses_mut().set(&source("a"), run, at(10));
        assert_eq!(step(&mut state, 12), "end");
        apply(&mut state, Health::Progressing);
        assert_eq!(step(&mut state, 12), "end");
        let verdict = Some(Verdict { aborted: true, ..Verdict::default() }.into());
        let aborted = SnapshotRecord { verdict, ..snapshot_record("a", 2) };
        for (run, expected) in [
            (RunState::Unknown, "end"),
            (RunState::Running, "end"),
            (RunState::Undecided("x".into()), "done"),
        ] {
            let mut state = read(run, &ANALYSED);
            let snapshot = source("a").sibling(snapshot("a", 2));
            state.world.apply_snapshot(&snapshot, Some(aborted.clone()), &mut Vec::new());
            assert_eq!(step(&mut state, 12), expected);
        }
    }

    #[test]
    fn change_of_a_workload_checks_analysed_sources() {
        let mut state = moved_one(Health::Settled, &ANALYSED);
        let record = Record { uses: vec![used("a", Some(2)), used("b", Some(2))], ..on(2, Health::Settled) };
        state.world.apply_workload(&key("moved"), Some(record), &mut Vec::new());
        let due = |state: &State, name: &str| state.queue.due(&Task::Analyse(source(name)));
        state.enqueue_analyses(&key("moved"), at(10));
        assert_eq!((due(&state, "a"), due(&state, "b")), (Some(at(10) + SETTLE), None));
        state.queue.cancel(&Task::Analyse(source("a")));
        for name in ["a", "b"] {
            state.enqueue_analysis(&source(name), at(20));
        }
        assert_eq!((due(&state, "a"), due(&state, "b")), (Some(at(20) + SETTLE), None));
        set_group(&mut state, "other");
        state.enqueue_analysis(&source("b"), at(20));
        assert_eq!(
            due(&state, "b"),
            Some(at(20) + SETTLE),
            "the source of another namespace may have an analysis"
        );
    }

    /// The first namespace of a group analyses the waves of all.
    #[test]
    fn one_run_judges_a_wave_of_a_group() {
        let mut state = read(RunState::Running, &ANALYSED);
        let first = Name::new("first", object("a"));
        let known = SourceRecord { uid: "other".into(), ..limited("a", 2, &ANALYSED) };
        state.world.set_read(&first, Some(known), &mut Vec::new());
        set_group(&mut state, "first");
        assert_eq!(step(&mut state, 12), "done");
        assert_eq!(state.queue.due(&Task::Analyse(first)), Some(at(12)));
        assert!(state.world.analyses().get(&source("a")).is_none());
    }

    /// The first namespace may be one that is not read yet. A run in another one would be a second one.
    #[test]
    fn unread_source_of_group_delays_analysis() {
        let mut state = read(RunState::Running, &ANALYSED);
        set_group(&mut state, "first");
        let (first, web) = (Name::new("first", object("a")), key("web"));
        let elsewhere = WorkloadKey { namespace: "first".into(), ..web };
        state.world.apply_workload(&elsewhere, Some(on(1, Health::Settled)), &mut Vec::new());
        state.world.set_source_unknown(&first);
        assert_eq!(step(&mut state, 12), "later 12");
        assert!(state.world.analyses().get(&source("a")).is_some());
    }

    #[test]
    fn source_without_analysis_forgets_its_run() {
        let mut state = read(RunState::Running, &ANALYSED);
        set_source(&mut state, "a", limited("a", 2, &[("waves", "1")]));
        assert_eq!(step(&mut state, 12), "done");
        assert!(state.world.analyses().get(&source("a")).is_none());
    }

    #[test]
    fn result_of_run_is_reported_at_once() {
        let mut state = moved_one(Health::Settled, &ANALYSED);
        let name = first_run(&mut state);
        let known =
            |state: &State| state.world.analyses().get(&source("a")).map(|known| known.run.state.clone());
        let is_held = |state: &mut State, second| {
            let turn = state.held_workloads.check(
                &state.world,
                &key("waits"),
                |_, _, _| false,
                (at(second), at(second)),
            );
            turn.held.is_some()
        };
        assert!(is_held(&mut state, 20));
        for (run, is_new, is_reported) in [
            (RunState::Running, true, true),
            (RunState::Running, false, false),
            (RunState::Successful, false, true),
            (RunState::Successful, false, false),
        ] {
            state.queue.cancel(&Task::WriteEvent);
            state.events.clear();
            let run = AnalysisRun { name: name.clone(), state: run };
            state.analysed(&source("a"), Analysed { run: run.clone(), wave: 1, is_new }, at(20));
            assert_eq!(known(&state), Some(run.state.clone()));
            assert_eq!(state.queue.due(&Task::Analyse(source("a"))), Some(at(20)));
            assert_eq!(state.events.due().is_some(), is_reported, "{run:?}");
        }
        assert!(!is_held(&mut state, 20), "an earlier finding no longer counts");
        state.queue.cancel(&Task::Analyse(source("a")));
        state.analysis_ended(&source("a"), name, at(30));
        assert_eq!(known(&state), Some(RunState::Undecided("was terminated".into())));
        assert_eq!(state.queue.due(&Task::Analyse(source("a"))), Some(at(30)));
        assert!(is_held(&mut state, 30), "{}", snapshot("a", 2));
    }
}
