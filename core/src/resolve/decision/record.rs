//! What the workload remembers of each source, beside the contents that it has seen: when it moved, and in which health.

use std::cell::OnceCell;

use super::{outcome::Outcome, question::Question};
use crate::{
    annotations,
    resolve::{Health, Workload, auto_roll_time, set::set_of},
    snapshot::ObjectName,
    template::SourceMap,
    tie::Remembered,
};

impl Outcome {
    /// Completes the records. `sources`: the snapshots to which the references resolve.
    pub(super) fn complete_state(&mut self, question: &Question<'_>, sources: &SourceMap<String>) {
        self.record_health(question);
        self.record_moves(question);
        self.state.retain(|source, now| {
            let name = sources.get(source);
            now.pinned = now.pinned.filter(|_| name.is_some());
            let before = question.stored.state.get(source);
            now.set = set_of(question.facts, source, before);
            let before = before.filter(|before| before.unused && before.seen == now.seen);
            now.unused |= before.is_some() && name == question.stored.sources.get(source);
            *now != Remembered::default()
        });
    }

    /// Records whether the workload is unhealthy while it begins to use a content. Contents that it used before keep their mark.
    fn record_health(&mut self, question: &Question<'_>) {
        let Some(old) = question.request.old.as_ref().filter(|old| old.kind.rolls) else { return };
        let is_unhealthy = OnceCell::new();
        let is_unhealthy = || {
            *is_unhealthy.get_or_init(|| {
                let own = old.text().map(|text| Health::read_last(&old.kind.kind, text)).unwrap_or_default();
                let health = own.max(question.facts.referrers_health());
                // Marked and not settled: the workload has not been healthy since the last change.
                let is_marked = question.stored.state.iter().any(|(_, before)| before.unhealthy);
                health.is_unhealthy() || (!health.is_at_rest() && is_marked)
            })
        };
        self.for_each_taken(question, |now, before| {
            now.unhealthy = before.map_or_else(is_unhealthy, |before| before.unhealthy);
        });
    }

    /// Records when the controller moved the workload to the content that it has seen. A source without settings may belong to a group
    /// whose other sources have some. The time is in the value of `roll`, so that equal requests give equal bytes.
    fn record_moves(&mut self, question: &Question<'_>) {
        let Some(old) = &question.request.old else { return };
        let time = |workload: &Workload<'_>| workload.annotation(annotations::ROLL).and_then(auto_roll_time);
        // An undo of a Deployment may restore an older value.
        let at = time(&question.request.new)
            .filter(|at| question.roll.is_other && time(old).is_none_or(|last| last <= *at));
        self.for_each_taken(question, |now, before| {
            now.moved = before.map_or(at, |before| before.moved);
        });
    }

    /// Completes the record of each source whose content the workload has taken; with the stored record, if that was the content before.
    fn for_each_taken(
        &mut self,
        question: &Question<'_>,
        complete: impl Fn(&mut Remembered, Option<&Remembered>),
    ) {
        let returned = &self.returned;
        self.state.retain(|source: &ObjectName, now| {
            if now.seen.is_some() && !returned.contains(source) {
                let before = question.stored.state.get(source);
                complete(now, before.filter(|before| before.seen == now.seen));
            }
            true
        });
    }
}
