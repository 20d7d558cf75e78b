//! Changes of sources: sources of the same name and content in all namespaces of a group are one change.
//!
//! A change has the strictest settings of its sources: the source of one namespace may hold the workloads of others, and never
//! moves them.

use std::sync::Arc;

use confrev_core::{
    resolve::{AnalysisRun, ChangeVerdict, EndedWave, RecordedFailure, RunState, SpreadPolicy},
    snapshot::SourceKind,
};

use crate::{
    analyses::{Analyses, run_name},
    change::WorldChange,
    groups::Groups,
    name::Name,
    records::{KnownSource, NamespaceSettings, SourceRecord},
    world::World,
};

/// A change: the sources of a group that have the same name and content.
pub struct ChangedSources<'i> {
    /// The source that was asked about, then those of other namespaces.
    pub sources: Vec<(Name, &'i SourceRecord)>,
}

impl ChangedSources<'_> {
    /// The strictest settings of the sources.
    pub fn policy(&self) -> Arc<SpreadPolicy> {
        let Some(((_, first), others)) = self.sources.split_first() else { return Arc::default() };
        let mut policy = Arc::clone(&first.spread);
        for (_, other) in others {
            if !policy.has_settings_of(&other.spread) {
                policy = Arc::new(policy.strictest(&other.spread));
            }
        }
        policy
    }

    /// The verdict about the change, for the namespace of the source that was asked about.
    pub fn verdict(&self, world: &World) -> ChangeVerdict {
        let of = |(name, known): &(Name, &SourceRecord)| world.own_verdict(name, known);
        let Some((own, others)) = self.sources.split_first() else { return ChangeVerdict::default() };
        let others = others.iter().map(|other| of(other).from_elsewhere());
        others.fold(of(own), ChangeVerdict::strictest)
    }

    /// Whether a failure in the namespace of the source that was asked about takes workloads back there, or in a namespace that reverts
    /// with its group.
    pub fn reverts(&self, world: &World) -> bool {
        let reverts = |(at, (name, known)): (usize, &(Name, &SourceRecord))| {
            known.spread.reverts && (at == 0 || world.groups.reverts_with_group(&name.namespace))
        };
        self.sources.iter().enumerate().any(reverts)
    }

    /// The source in whose namespace the waves of the change are analysed: the first one, by namespace, with the annotation.
    pub fn analysed(&self) -> Option<(&Name, &SourceRecord)> {
        let analysed = self.sources.iter().filter(|(_, known)| known.spread.analysis.is_some());
        analysed.min_by_key(|(name, _)| &name.namespace).map(|(name, known)| (name, *known))
    }
}

impl World {
    /// Applies the settings of a namespace.
    pub fn apply_namespace_settings(
        &mut self,
        namespace: &Arc<str>,
        settings: NamespaceSettings,
        changes: &mut Vec<WorldChange>,
    ) {
        let is_served = self.config.served.contains(namespace);
        let settings = if is_served { settings } else { NamespaceSettings::default() };
        let has_live_secrets = settings.live_secrets;
        let choice = settings.choice.clone();
        let old = self.groups.set(namespace, settings);
        self.update_grouped(namespace);
        // Admission may know the choice already.
        self.config.inherited.choose(namespace, choice.clone());
        if old.choice != choice {
            self.outdate(namespace, changes, |_| true);
        } else if old.live_secrets != has_live_secrets {
            self.outdate(namespace, changes, |name| name.object.kind == SourceKind::Secret);
        }
        if self.groups.settings(namespace).is_some_and(|new| *new == old)
            || (old == NamespaceSettings::default() && self.groups.settings(namespace).is_none())
        {
            return;
        }
        changes.extend(self.workloads_in(namespace).map(|key| WorldChange::Workload(key.clone())));
        // A content may be refused in another namespace of the group.
        let of_it = self.sources.keys().filter(|source| source.namespace == *namespace);
        changes.extend(of_it.map(|source| WorldChange::Source(source.clone())));
    }

    /// Has sources of a namespace read again: it has other settings for them.
    fn outdate(
        &mut self,
        namespace: &Arc<str>,
        changes: &mut Vec<WorldChange>,
        is_one: impl Fn(&Name) -> bool,
    ) {
        let is_in_it = |(name, known): (&Name, &mut KnownSource)| {
            // A read in progress may have begun before.
            let is_known = !matches!(known, KnownSource::Missing);
            let is_it = name.namespace == *namespace && is_known && is_one(name);
            is_it.then(|| {
                *known = KnownSource::Unknown;
                WorldChange::Source(name.clone())
            })
        };
        changes.extend(self.sources.iter_mut().filter_map(is_in_it));
    }

    /// The settings of namespaces, and their groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The name under which the change of a source is known: one for all sources of a group that have its name.
    pub fn scope(&self, source: &Name) -> Name {
        match self.groups.group(&source.namespace) {
            // No namespace has such a name.
            Some(group) => Name::new(format!("group/{group}"), source.object.clone()),
            None => source.clone(),
        }
    }

    /// Whether the namespace of a source is in a group with others.
    pub fn is_grouped(&self, source: &Name) -> bool {
        self.groups.others(&source.namespace).next().is_some()
    }

    /// The sources of the same name in the other namespaces of the group.
    pub fn siblings<'i>(&'i self, source: &'i Name) -> impl Iterator<Item = (Name, &'i SourceRecord)> + 'i {
        self.sibling_names(source).filter_map(|name| {
            let known = self.existing_source(&name)?;
            Some((name, known))
        })
    }

    fn sibling_names<'i>(&'i self, source: &'i Name) -> impl Iterator<Item = Name> + 'i {
        let others = self.groups.others(&source.namespace);
        others.map(|namespace| Name::new(Arc::clone(namespace), source.object.clone()))
    }

    /// Whether the source of this name in another namespace of the group may be the same change: workloads use it, and it is
    /// not read yet, as after a start. Until then, it is not known how far the change has spread.
    pub fn awaits_sibling(&self, source: &Name) -> bool {
        self.sibling_names(source).any(|name| {
            matches!(self.source(&name), Some(KnownSource::Unknown))
                && self.workloads_using(&name).next().is_some()
        })
    }

    /// The sources that are one change with this content of a source.
    pub fn change<'i>(&'i self, source: &'i Name, content: &'i SourceRecord) -> ChangedSources<'i> {
        let is_same =
            |(_, known): &(Name, &SourceRecord)| known.present.digests.same_content(&content.present.digests);
        let others = self.siblings(source).filter(is_same);
        ChangedSources { sources: std::iter::once((source.clone(), content)).chain(others).collect() }
    }

    /// The failure with the present content of a source in another namespace of its group, if that refuses the content in this one.
    /// `None` if the source does not revert, or a person ended that failure.
    pub fn refused_elsewhere(&self, source: &Name) -> Option<&RecordedFailure> {
        let known = self.existing_source(source).filter(|known| known.spread.reverts)?;
        if !self.groups.reverts_with_group(&source.namespace) {
            return None;
        }
        let (_, own) = self.judged(source, &known.present.digests)?;
        let has_ended = |failed: &RecordedFailure| {
            own.verdict.as_deref().is_some_and(|verdict| verdict.has_ended(failed))
        };
        let others = self
            .siblings(source)
            .filter(|(_, other)| other.present.digests.same_content(&known.present.digests));
        let mut failures = others.filter_map(|(name, other)| Some(self.failed_of(&name, other)?.1));
        failures.find(|failed| !has_ended(failed))
    }
}

impl World {
    /// What is known about the AnalysisRuns of waves.
    pub fn analyses(&self) -> &Analyses {
        &self.analyses
    }

    /// The same, to record what was read.
    pub fn analyses_mut(&mut self) -> &mut Analyses {
        &mut self.analyses
    }

    /// The AnalysisRun that judges a wave of a change, as far as it is known.
    pub fn analysis_run(&self, change: &ChangedSources<'_>, ended: EndedWave) -> AnalysisRun {
        let Some((source, known)) = change.analysed() else { return AnalysisRun::default() };
        let name = run_name(source, known, ended, self.retried(source, known));
        let found = self.analyses.get(source).filter(|found| *found.run.name == *name);
        found.map_or_else(
            || AnalysisRun { name: name.into(), state: RunState::Unknown },
            |found| found.run.clone(),
        )
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::{
        resolve::{Present, Use, Verdict},
        snapshot::ObjectName,
    };

    use super::*;
    use crate::{
        fixture::{
            failed, key, record, reverting, snapshot, snapshot_record, source, source_record, used, window,
            world,
        },
        objects::WorkloadKey,
        records::SnapshotRecord,
    };

    fn group(name: &str) -> NamespaceSettings {
        NamespaceSettings { group: Some(name.into()), ..NamespaceSettings::default() }
    }

    /// The world with a workload in this namespace and in another one, each with its source.
    fn two_namespaces() -> World {
        let record = record("web", &[used("a", Some(2))]);
        let mut world = world(&[("web", &record)]);
        let key = WorkloadKey { namespace: "other".into(), ..key("web") };
        world.apply_workload(&key, Some(record), &mut Vec::new());
        world.set_read(&other("a"), Some(reverting("a", 2)), &mut Vec::new());
        world
    }

    fn other(name: &str) -> Name {
        Name::new("other", source(name).object)
    }

    /// Also one that is being read: the read may have begun before.
    #[test]
    fn other_strategy_has_all_sources_read_again() {
        let used = record("web", &[used("a", None), used("b", None), used("c", None)]);
        let mut world = world(&[("web", &used)]);
        world.set_read(&source("a"), Some(source_record("a", 2)), &mut Vec::new());
        world.set_read(&source("c"), None, &mut Vec::new());
        for (strategy, is_other) in [(Some("careful"), true), (Some("careful"), false), (None, true)] {
            let settings = NamespaceSettings {
                choice: crate::NamespaceChoice { strategy: strategy.map(Box::from), ..Default::default() },
                ..NamespaceSettings::default()
            };
            let mut changes = Vec::new();
            world.apply_namespace_settings(&"ns".into(), settings, &mut changes);
            let read = changes.iter().filter_map(|change| match change {
                WorldChange::Source(name) if world.source(name) == Some(&KnownSource::Unknown) => {
                    Some(name.clone())
                }
                _ => None,
            });
            let expected = if is_other { vec![source("a"), source("b")] } else { Vec::new() };
            assert_eq!(read.collect::<std::collections::BTreeSet<_>>(), expected.into_iter().collect());
        }
    }

    /// A change of the namespace's mode has the Secret read again.
    #[test]
    fn secret_without_mode_has_that_of_its_namespace() {
        let secret = Name::new("ns", ObjectName::new(SourceKind::Secret, "a"));
        let uses = Use { source: secret.object.clone(), ..used("a", None) };
        let mut world = world(&[("web", &record("web", &[uses]))]);
        let read = || {
            let known = source_record("a", 2);
            SourceRecord { present: Present { live: None, ..known.present.clone() }, ..known }
        };
        let mode = |world: &World| world.existing_source(&secret).map(|known| known.present.live);
        world.set_read(&secret, Some(read()), &mut Vec::new());
        assert_eq!(mode(&world), Some(Some(false)));
        for (live_secrets, wanted) in [(true, None), (false, Some(false))] {
            let settings = NamespaceSettings { live_secrets, ..NamespaceSettings::default() };
            let mut changes = Vec::new();
            world.apply_namespace_settings(&"ns".into(), settings, &mut changes);
            let is_read =
                |change: &WorldChange| matches!(change, WorldChange::Source(name) if *name == secret);
            assert!(changes.iter().any(is_read), "{changes:?}");
            assert_eq!(mode(&world), None, "it is read again");
            world.set_read(&secret, Some(read()), &mut Vec::new());
            assert_eq!(mode(&world), Some(wanted));
        }
    }

    #[test]
    fn changed_settings_concern_their_namespace_only() {
        let mut world = two_namespaces();
        let mut apply = |settings: NamespaceSettings| {
            let mut changes = Vec::new();
            world.apply_namespace_settings(&"ns".into(), settings, &mut changes);
            let line = |change: &WorldChange| match change {
                WorldChange::Workload(key) => format!("workload {}/{}", key.namespace, key.name),
                WorldChange::Source(source) => source.to_string(),
                change => format!("{change:?}"),
            };
            let mut lines: Vec<_> = changes.iter().map(line).collect();
            lines.sort();
            lines
        };
        let all = ["ConfigMap ns/a", "ConfigMap ns/b", "workload ns/web"];
        assert_eq!(apply(NamespaceSettings::default()), Vec::<String>::new(), "nothing was set");
        assert_eq!(apply(group("x")), all);
        assert_eq!(apply(group("x")), Vec::<String>::new(), "it is the same group");
        assert_eq!(apply(group("y")), all);
        assert_eq!(apply(NamespaceSettings::default()), all);
        assert_eq!(apply(NamespaceSettings::default()), Vec::<String>::new());
    }

    #[test]
    fn namespaces_leave_their_former_group() {
        let mut world = two_namespaces();
        let mut apply = |namespace: &str, settings| {
            world.apply_namespace_settings(&namespace.into(), settings, &mut Vec::new());
            [world.is_grouped(&source("a")), world.is_grouped(&other("a"))]
        };
        assert_eq!(apply("ns", group("x")), [false, false], "it is alone");
        assert_eq!(apply("other", group("x")), [true, true]);
        let windowed = NamespaceSettings { gates: window("w"), ..group("x") };
        assert_eq!(apply("other", windowed), [true, true], "it stays");
        assert_eq!(apply("other", group("y")), [false, false]);
        assert_eq!(apply("other", group("x")), [true, true]);
        assert_eq!(apply("ns", NamespaceSettings::default()), [false, false]);
        assert_eq!(world.groups.len(), 1, "{:?}", world.groups);
    }

    /// The source of another namespace may limit the change, which then depends on the Rollouts of both.
    #[test]
    fn rollouts_of_all_grouped_namespaces_are_watched() {
        let mut world = two_namespaces();
        let watched = |world: &World| {
            let namespaces = world.limited_namespaces();
            ["ns", "other"].map(|namespace| namespaces.contains_key(namespace))
        };
        let mut seen = vec![world.watched_generation()];
        let mut is_new = |world: &World| {
            let is_new = !seen.contains(&world.watched_generation());
            seen.push(world.watched_generation());
            is_new
        };
        assert_eq!(watched(&world), [false, true], "the source of `other` reverts");
        world.apply_namespace_settings(&"ns".into(), group("x"), &mut Vec::new());
        assert_eq!((watched(&world), is_new(&world)), ([true, true], true), "the namespace joins a group");
        world.apply_namespace_settings(&"ns".into(), NamespaceSettings::default(), &mut Vec::new());
        assert_eq!((watched(&world), is_new(&world)), ([false, true], true), "it leaves the group");
        let (third, record) = ("third".into(), world.workload(&key("web")).unwrap().clone());
        let key = WorkloadKey { namespace: Arc::clone(&third), ..key("web") };
        world.apply_namespace_settings(&third, group("x"), &mut Vec::new());
        for record in [None, Some(record), None] {
            let is_watched = record.is_some();
            world.apply_workload(&key, record, &mut Vec::new());
            assert_eq!(world.limited_namespaces().contains_key("third"), is_watched, "it has a workload");
        }
    }

    /// A namespace that refuses a content holds the others of its group. A failure there refuses the content here only with consent.
    #[test]
    fn refusal_elsewhere_only_holds() {
        let mut world = two_namespaces();
        let changes = &mut Vec::new();
        world.set_read(&source("a"), Some(reverting("a", 2)), changes);
        for namespace in ["ns", "other"] {
            world.apply_namespace_settings(&namespace.into(), group("x"), changes);
        }
        let verdict = |world: &World| {
            let source = source("a");
            let known = world.existing_source(&source).unwrap();
            let change = world.change(&source, known);
            let ChangeVerdict { refused, failed_elsewhere, .. } = change.verdict(world);
            (change.sources.len(), refused, failed_elsewhere)
        };
        assert_eq!(verdict(&world), (2, false, false));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&other("a").sibling(snapshot("a", 2)), Some(refused), changes);
        assert_eq!(verdict(&world), (2, false, true));
        let theirs = other("a");
        let change = world.change(&theirs, world.existing_source(&theirs).unwrap());
        let of_other = change.verdict(&world);
        assert_eq!((of_other.refused, of_other.failed_elsewhere), (true, false));
        for (consents, expected) in [(false, false), (true, true)] {
            let settings = NamespaceSettings { group_revert: consents, ..group("x") };
            world.apply_namespace_settings(&"ns".into(), settings, &mut Vec::new());
            let reaches = world.refused_elsewhere(&source("a")).is_some();
            assert_eq!(reaches, expected, "the namespace reverts with its group: {consents}");
        }
    }

    /// Several namespaces failed by themselves, and a retry is taken over in one of them first.
    #[test]
    fn retry_ends_failures_of_other_namespaces() {
        let mut world = two_namespaces();
        let changes = &mut Vec::new();
        world.set_read(&source("a"), Some(reverting("a", 2)), changes);
        for namespace in ["ns", "other"] {
            let settings = NamespaceSettings { group_revert: true, ..group("x") };
            world.apply_namespace_settings(&namespace.into(), settings, changes);
        }
        let at = |second| format!("1970-01-01T00:00:0{second}Z").into();
        let judge = |world: &mut World, source: &Name, verdict: Verdict| {
            let record = SnapshotRecord { verdict: Some(verdict.into()), ..snapshot_record("a", 2) };
            world.apply_snapshot(&source.sibling(snapshot("a", 2)), Some(record), &mut Vec::new());
        };
        let failed = RecordedFailure { at: at(5), ..RecordedFailure::default() };
        judge(&mut world, &other("a"), Verdict { failed: Some(failed), ..Verdict::default() });
        for (retried, expected) in [(4, true), (5, false), (6, false)] {
            judge(&mut world, &source("a"), Verdict { retried: Some(at(retried)), ..Verdict::default() });
            assert_eq!(world.refused_elsewhere(&source("a")).is_some(), expected, "retried at {retried}");
        }
    }

    /// A failure in `ns` refuses the content there, and in a namespace that reverts with its group.
    #[test]
    fn failure_reverts_where_a_source_says_so() {
        let lasting = || SourceRecord { spread: SpreadPolicy::default().into(), ..reverting("a", 2) };
        for (own_reverts, other_joins, expected) in
            [(true, true, true), (true, false, true), (false, false, false), (false, true, true)]
        {
            let mut world = two_namespaces();
            let own = if own_reverts { reverting("a", 2) } else { lasting() };
            world.set_read(&source("a"), Some(own), &mut Vec::new());
            world.apply_namespace_settings(&"ns".into(), group("x"), &mut Vec::new());
            let settings = NamespaceSettings { group_revert: other_joins, ..group("x") };
            world.apply_namespace_settings(&"other".into(), settings, &mut Vec::new());
            let name = source("a");
            let change = world.change(&name, world.existing_source(&name).unwrap());
            assert_eq!(change.reverts(&world), expected, "{own_reverts} {other_joins}");
            let failed = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
            world.apply_snapshot(&name.sibling(snapshot("a", 2)), Some(failed), &mut Vec::new());
            let theirs = other("a").sibling(snapshot("a", 2));
            world.apply_snapshot(&theirs, Some(snapshot_record("a", 2)), &mut Vec::new());
            assert_eq!(world.refused_elsewhere(&other("a")).is_some(), other_joins, "{own_reverts}");
        }
    }
}
