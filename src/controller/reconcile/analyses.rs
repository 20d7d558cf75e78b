//! The analysis of waves: when an AnalysisRun is created, read again and terminated.
//!
//! Whether a run exists, its result, and the moves that it judges are all in the cluster. The name of the run follows from the
//! moves, so a new leader neither skips a run nor creates a second one.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts,
    held::{BAKE, spread},
    reconciled::Reconciled,
    state::State,
};
use crate::{
    cluster::WorkloadKey,
    controller::{
        action::{Action, Analysed},
        index::analyses::{judges_present, run_name},
        name::Name,
        queue::Task,
    },
    resolve::{AnalysisRun, EndedWave, Record, RunState},
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
    pub(super) fn enqueue_analyses(&mut self, key: &WorkloadKey, now: Timestamp) {
        let Some(record) = self.index.workload(key) else { return };
        let sources: Vec<_> = record
            .uses
            .iter()
            .map(|used| Name::new(Arc::clone(&key.namespace), used.source.clone()))
            .filter(|name| self.may_be_analysed(name))
            .collect();
        for source in sources {
            self.queue.schedule(Task::Analyse(source), now + SETTLE);
        }
    }

    /// Queues a check of the waves of a source that was read.
    pub(super) fn enqueue_analysis(&mut self, source: &Name, now: Timestamp) {
        if self.may_be_analysed(source) {
            self.queue.schedule(Task::Analyse(source.clone()), now + SETTLE);
        }
    }

    /// Whether a change of the source has an analysis, as far as this is known without reading its group.
    fn may_be_analysed(&self, source: &Name) -> bool {
        let known = self.index.existing_source(source);
        known.is_some_and(|known| known.spread.analysis.is_some() || self.index.is_grouped(source))
    }

    /// Creates or reads the run of the wave that has ended, and refuses the content if the run failed.
    pub(super) fn analyse(&mut self, source: &Name, now: Timestamp) -> Reconciled {
        let known = self.index.existing_source(source);
        let first = known.and_then(|known| {
            let change = self.index.change(source, known);
            change.analysed().map(|(first, _)| first.clone())
        });
        match first {
            Some(first) if first == *source => self.analyse_wave(source, now),
            // One run judges a wave of a group.
            Some(first) => {
                self.index.analyses_mut().forget(source);
                self.queue.schedule(Task::Analyse(first), now);
                Reconciled::Done
            }
            None => {
                self.index.analyses_mut().forget(source);
                Reconciled::Done
            }
        }
    }

    fn analyse_wave(&self, source: &Name, now: Timestamp) -> Reconciled {
        let Some(known) = self.index.existing_source(source) else { return Reconciled::Done };
        let is_rolling = |key: &WorkloadKey, record: &Record| {
            self.queue.is_working(&Task::Roll(key.clone())) || self.rolls.may_take_effect(key, record, now)
        };
        let Some(spread) = spread(&self.index, source, known, is_rolling, now) else {
            return Reconciled::Done;
        };
        let wanted = spread.ended().map(|ended| (ended, run_name(source, known, ended)));
        let last = self.index.analyses().get(source);
        let end = |run: &str| {
            let (source, uid) = (source.clone(), known.uid.to_string());
            Reconciled::Act(Action::EndAnalysis { source, uid, run: run.into() })
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
                Some(until) => Reconciled::Later(until.min(now + BAKE)),
                None if is_over => Reconciled::Done,
                // The watches report most changes of health; a progress deadline only passes.
                None => Reconciled::Later(now + BAKE),
            };
        };
        let last = last.filter(|last| *last.run.name == *name).map(|last| (&last.run.state, last.at));
        if spread.is_aborted() {
            // A previous leader may have created it.
            let is_ended = matches!(last, Some((RunState::Undecided(_), _)));
            return if is_ended { Reconciled::Done } else { end(&name) };
        }
        let read = |after: SignedDuration, last: Timestamp| {
            let due = last + after;
            if due > now { Reconciled::Later(due) } else { self.read_run(source, ended, &name) }
        };
        match last {
            None | Some((RunState::Unknown, _)) => self.read_run(source, ended, &name),
            Some((RunState::Running, at)) => read(POLL, at),
            Some((RunState::Successful, _)) => Reconciled::Done,
            Some((RunState::Unavailable(_), at)) => read(AGAIN, at),
            Some((RunState::Undecided(_), at)) => read(REREAD, at),
            Some((RunState::Failed(why), at)) => {
                let reason = format!("AnalysisRun {name} of wave {}: {why}", ended.wave);
                let refuse = self.refuse_change(&self.index.change(source, known), &reason, now);
                refuse.map_or_else(|| read(REREAD, at), Reconciled::Act)
            }
        }
    }

    fn read_run(&self, source: &Name, ended: EndedWave, name: &str) -> Reconciled {
        let Some(known) = self.index.existing_source(source) else { return Reconciled::Done };
        let Some(analysis) = known.spread.analysis.clone() else { return Reconciled::Done };
        Reconciled::Act(Action::Analyse {
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
        let before = self.index.analyses_mut().set(source, run.clone(), now);
        self.queue.schedule(Task::Analyse(source.clone()), now);
        if before.as_ref() == Some(&run.state) {
            return;
        }
        // What was derived before is outdated.
        self.held_workloads.source_changed(&self.index, source);
        let event = event_texts::analysed(&self.index, source, &run, wave, (before.as_ref(), is_new), now);
        self.report(event, now);
    }

    /// Records that a run judges nothing any more.
    pub(in crate::controller) fn analysis_ended(&mut self, source: &Name, run: Box<str>, now: Timestamp) {
        let run = AnalysisRun { name: run, state: RunState::Undecided("was terminated".into()) };
        self.index.analyses_mut().set(source, run, now);
        self.held_workloads.source_changed(&self.index, source);
        self.queue.schedule(Task::Analyse(source.clone()), now);
    }
}
