//! How far a change has spread, and the state of each workload towards it. [`Spread`] has the rule; its input comes from the world.

use std::sync::Arc;

use confrev_core::{
    resolve::{Health, Member, MemberState, Record, Spread, Wait, Waiting, WorkloadView},
    snapshot::{Digest, ObjectName},
};
use jiff::Timestamp;

use crate::{
    changed_sources::ChangedSources, name::Name, objects::WorkloadKey, records::SourceRecord, world::World,
};

impl World {
    /// How far a content of a source has spread; `None` if nothing limits that. `is_rolling`: whether a roll of a workload is in
    /// progress, if a content is given, one that may take it.
    pub fn spread(
        &self,
        source: &Name,
        known: &SourceRecord,
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        now: Timestamp,
    ) -> Option<Spread<WorkloadKey>> {
        let change = self.change(source, known);
        let spread = self.spread_unanalysed(&change, is_rolling, now)?;
        Some(spread.analysed(|ended| self.analysis_run(&change, ended)))
    }

    /// The same, before the analysis of a wave.
    pub fn spread_unanalysed(
        &self,
        change: &ChangedSources<'_>,
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        now: Timestamp,
    ) -> Option<Spread<WorkloadKey>> {
        let mut policy = change.policy();
        if !policy.is_limited() {
            return None;
        }
        if let Some(why) = policy.is_ordered().then(|| self.invalid_order(change)).flatten() {
            policy = Arc::new(policy.but_invalid(why));
        }
        let is_rolling = &is_rolling;
        let members = change.sources.iter().flat_map(|(source, known)| {
            let content = known.present.digests.current();
            self.member_states(source, known).map(move |(key, record, member_state)| {
                let may_take = || {
                    !matches!(member_state, MemberState::Waits(_))
                        || is_rolling(key, record, Some((&source.object, &content)))
                };
                let is_rolling = is_rolling(key, record, None) && may_take();
                Member { workload: key, member_state, is_rolling }
            })
        });
        Some(Spread::of(&policy, change.verdict(self), now, members))
    }

    /// Why others hold a workload from the content of a source.
    pub fn wait_in(
        &self,
        (key, record): (&WorkloadKey, &Record),
        (source, known): (&Name, &SourceRecord),
        spread: &Spread<WorkloadKey>,
    ) -> Option<Wait<WorkloadKey>> {
        let MemberState::Waits(Waiting { place }) = self.member_state(key, record, source, known) else {
            return None;
        };
        spread.wait(self.health(key, record) == Health::Failed, place)
    }

    /// Why the order of a change is not known: a workload takes it from its Namespace, whose annotation `order` is invalid. So the
    /// first workload to move might be the one that is meant to be the last.
    fn invalid_order(&self, change: &ChangedSources<'_>) -> Option<&str> {
        change.sources.iter().find_map(|(source, _)| {
            let why = self.groups().invalid_order(&source.namespace)?;
            let mut users = self.workloads_using(source);
            users.any(|(_, record)| record.pace.order.is_none()).then_some(why)
        })
    }

    /// The state of each workload that uses a source towards a content of it.
    pub fn member_states<'i>(
        &'i self,
        source: &'i Name,
        known: &'i SourceRecord,
    ) -> impl Iterator<Item = (&'i WorkloadKey, &'i Record, MemberState)> {
        let users = self.workloads_using(source);
        users.map(move |(key, record)| (key, record, self.member_state(key, record, source, known)))
    }

    /// The state of a workload towards a content of a source.
    pub fn member_state(
        &self,
        key: &WorkloadKey,
        record: &Record,
        source: &Name,
        known: &SourceRecord,
    ) -> MemberState {
        let Some(kind) = self.kind(key) else { return MemberState::Apart };
        let view = WorkloadView {
            kind,
            path: [&key.namespace, &key.name],
            namespace_order: self.groups().order(&key.namespace),
            health: self.health(key, record),
            source: &source.object,
            present: &known.present,
            set: known.spread.set.as_deref(),
        };
        record.member_state(&view, |used| self.held_digest(used, source).copied())
    }
}
