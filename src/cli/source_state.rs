//! The state of a workload towards each of its sources, with the words of `status`, `wait` and `impact`.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    analysis::JudgingRun,
    delay::Delay,
    delays,
    failure::Failure,
    inventory::Inventory,
    objects::{LiveSource, OptedIn, Snapshot, SourceKey, source},
    pauses::Pause,
    target::Target,
};
use crate::{
    gates::Why,
    resolve::{Health, Mode, Observed, Present, Relation, Use, Values, Workload},
    snapshot::{Digest, ObjectName},
    template::{Reference, Template},
};

/// The state of a workload towards one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SourceState {
    /// It has the current content, or one that is equal in the keys that it uses.
    Current,
    /// Its references stay as written.
    AsWritten,
    /// The source does not exist, and every reference to it is optional. References stay as written, in revisions for
    /// good.
    Absent,
    /// The source itself is bound to the workload's revisions.
    Bound,
    /// Its references stay as written, and a change of the source rolls it.
    Live,
    /// It is a Job, which keeps the content from its creation, and the source has changed since.
    AsCreated,
    /// It does not follow changes by itself (`track: "false"`), and the source has changed.
    Paused,
    /// An undo or a pin holds it, until the source changes again.
    Pinned,
    /// The annotation `hold` keeps its snapshot, until the annotation is removed.
    Held,
    /// The source is deleted; the workload keeps its snapshot.
    SourceGone,
    /// The user may not read the source.
    Unknown,
    /// It will roll to the current content.
    Pending,
    /// This installation makes no snapshots of Secrets, and the workload asks for them.
    SecretsOff,
    /// The API server, a webhook or a policy refuses the roll to the current content.
    Refused,
    /// The source lacks a key that the template requires, and the workload has no snapshot of it.
    KeyMissing,
    /// The source does not exist, and the workload has no snapshot of it.
    Missing,
}

impl SourceState {
    /// All states.
    pub(super) const ALL: [Self; 16] = [
        Self::Current,
        Self::AsWritten,
        Self::Absent,
        Self::Bound,
        Self::Live,
        Self::AsCreated,
        Self::Paused,
        Self::Pinned,
        Self::Held,
        Self::SourceGone,
        Self::Unknown,
        Self::Pending,
        Self::SecretsOff,
        Self::Refused,
        Self::KeyMissing,
        Self::Missing,
    ];

    /// The word for this state.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::AsWritten => "as written",
            Self::Absent => "absent",
            Self::Bound => "bound",
            Self::Live => "live",
            Self::AsCreated => "as created",
            Self::Paused => "paused",
            Self::Pinned => "pinned",
            Self::Held => "held",
            Self::SourceGone => "source gone",
            Self::Unknown => "unknown",
            Self::Pending => "pending",
            Self::SecretsOff => "secrets off",
            Self::Refused => "refused",
            Self::KeyMissing => "key missing",
            Self::Missing => "missing",
        }
    }

    /// Whether this state needs no mention.
    pub(super) const fn is_plain(self) -> bool {
        matches!(self, Self::Current | Self::AsWritten | Self::Bound | Self::Live)
    }
}

/// One source of a workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsedSource {
    /// `ConfigMap/name` or `Secret/name`.
    pub(super) source: String,
    /// The snapshot that the workload uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    /// The workload's state towards it.
    pub(super) state: SourceState,
    /// The state that the workload would have without a hold.
    #[serde(skip)]
    pub(super) beneath: SourceState,
    /// The strategy of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<String>,
    /// Why the workload has not rolled to the present content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The gate that keeps it from the present content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gate: Option<&'static str>,
    /// When that gate opens, as far as the time alone decides that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Timestamp>,
    /// The AnalysisRun that the workload waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) analysis: Option<JudgingRun>,
    /// The reason, for programs.
    #[serde(skip)]
    pub(super) delay: Option<Delay>,
    /// The source's kind and name.
    #[serde(skip)]
    pub(super) object: ObjectName,
}

/// The state of a workload towards all its sources, each once.
pub(super) async fn of_workload(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
) -> Result<Vec<UsedSource>, Failure> {
    let mut found: Vec<UsedSource> = Vec::new();
    for used in &workload.record.uses {
        if is_repeated(inventory, workload, used, &found) {
            continue;
        }
        let present = inventory.sources.get(&workload.key(&used.source)).unwrap_or(&LiveSource::Forbidden);
        let learned = learned(target, inventory, workload, used, present).await?;
        let present = learned.as_ref().unwrap_or(present);
        let mut state = without_contents(workload, inventory, used, present);
        // Only keys that the workload does not use may have changed.
        if let (LiveSource::Present(present), Some(held), SourceState::AsCreated) =
            (present, &used.snapshot, state)
        {
            let held = ObjectName::new(used.source.kind, held.clone());
            let held = source(target, &workload.key(&held)).await?;
            if held.is_some_and(|held| reads_the_same(workload, &used.source, &held, present)) {
                state = SourceState::Current;
            }
        }
        let beneath = state;
        if used.on_hold {
            state = SourceState::Held;
        }
        let delay = match (own_reason(workload, used, beneath), present) {
            (None, LiveSource::Present(present)) if state == SourceState::Pending => {
                delays::of(target, inventory, workload, &used.source, present).await?
            }
            (own, _) => own,
        };
        match &delay {
            Some(Delay::Refused(_)) => state = SourceState::Refused,
            Some(Delay::Shut { why, .. }) if why.is_refusal() && !matches!(why, Why::Others(_)) => {
                state = SourceState::Refused;
            }
            Some(Delay::SecretsOff) => state = SourceState::SecretsOff,
            Some(Delay::Unanswered(_) | Delay::Shut { .. }) | None => {}
        }
        found.push(UsedSource::new((used, present), state, beneath, delay));
    }
    Ok(found)
}

/// The state of a workload towards all its sources, each once, as far as names and digests show it. Makes no call.
#[cfg(feature = "dashboard")]
pub(super) fn at_a_glance(inventory: &Inventory, workload: &OptedIn) -> Vec<UsedSource> {
    let mut found: Vec<UsedSource> = Vec::new();
    for used in &workload.record.uses {
        if is_repeated(inventory, workload, used, &found) {
            continue;
        }
        let present = inventory.sources.get(&workload.key(&used.source)).unwrap_or(&LiveSource::Forbidden);
        let beneath = without_contents(workload, inventory, used, present);
        let state = if used.on_hold { SourceState::Held } else { beneath };
        let own = own_reason(workload, used, beneath);
        found.push(UsedSource::new((used, present), state, beneath, own));
    }
    found
}

/// Why a workload does not move to other content of a source, by its own settings. `beneath`: its state without a hold.
fn own_reason(workload: &OptedIn, used: &Use, beneath: SourceState) -> Option<Delay> {
    let is_behind = matches!(beneath, SourceState::Pending | SourceState::Paused);
    is_behind.then(|| delays::of_workload(&workload.record, used)).flatten()
}

/// Whether a use needs no state of its own. A second snapshot of one source is recorded under its own name; the first one decides
/// for the source.
fn is_repeated(inventory: &Inventory, workload: &OptedIn, used: &Use, found: &[UsedSource]) -> bool {
    (used.snapshot.as_ref() == Some(&used.source.name) && !is_bound(inventory, workload, &used.source))
        || found.iter().any(|known| known.object == used.source)
}

impl UsedSource {
    fn new(
        (used, present): (&Use, &LiveSource),
        state: SourceState,
        beneath: SourceState,
        delay: Option<Delay>,
    ) -> Self {
        let strategy = match present {
            LiveSource::Present(present) => present.strategy(),
            LiveSource::Missing | LiveSource::Forbidden => None,
        };
        Self {
            source: format!("{}/{}", used.source.kind.as_str(), used.source.name),
            snapshot: used.snapshot.as_deref().map(str::to_owned),
            state,
            beneath,
            strategy: strategy.map(str::to_owned),
            reason: delay.as_ref().map(ToString::to_string),
            gate: delay.as_ref().and_then(Delay::gate),
            until: delay.as_ref().and_then(Delay::until),
            analysis: match &delay {
                Some(Delay::Shut { run, .. }) => run.clone(),
                _ => None,
            },
            delay,
            object: used.source.clone(),
        }
    }
}

/// The current Secret, with the digests of the snapshots that the workload uses or has seen, if their content is equal.
/// Such digests use a key of the installation, so contents are compared instead. `None` if there is nothing to compare.
async fn learned(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    used: &Use,
    present: &LiveSource,
) -> Result<Option<LiveSource>, Failure> {
    let LiveSource::Present(present) = present else { return Ok(None) };
    let held = used.snapshot.as_ref().map(|name| ObjectName::new(used.source.kind, name.clone()));
    let seen = workload.record.seen(&used.source);
    let is_unknown = |digest: Option<&Digest>| {
        digest.is_some_and(|digest| digest.key().is_some() && !present.digests().contains(digest))
    };
    let states = |key: &&SourceKey, snapshot: &Snapshot| {
        let is_its = snapshot.source == used.source && key.0 == workload.namespace();
        let is_wanted = Some(&key.1) == held.as_ref() || snapshot.digest.as_ref() == seen;
        is_its && is_wanted && is_unknown(snapshot.digest.as_ref())
    };
    let stating: Vec<_> = inventory
        .snapshots
        .iter()
        .filter(|(key, snapshot)| states(key, snapshot))
        .map(|(key, _)| key)
        .collect();
    if stating.is_empty() {
        return Ok(None);
    }
    let mut present = Observed::clone(present);
    for key in stating {
        source(target, key).await?.iter().for_each(|snapshot| present.learn(snapshot));
    }
    Ok(Some(LiveSource::Present(Arc::new(present))))
}

fn is_bound(inventory: &Inventory, workload: &OptedIn, object: &ObjectName) -> bool {
    let live = inventory.sources.get(&workload.key(object));
    matches!(live, Some(LiveSource::Present(live)) if live.is_bound_itself())
}

/// The state as far as names and digests show it.
fn without_contents(
    workload: &OptedIn,
    inventory: &Inventory,
    used: &Use,
    present: &LiveSource,
) -> SourceState {
    let record = &workload.record;
    let present = match present {
        LiveSource::Forbidden => return SourceState::Unknown,
        LiveSource::Missing if used.snapshot.is_some() => return SourceState::SourceGone,
        LiveSource::Missing if is_optional(workload, &used.source) => return SourceState::Absent,
        LiveSource::Missing => return SourceState::Missing,
        LiveSource::Present(present) => Present::from(&**present),
    };
    let to_it = record.uses.iter().filter(|other| other.source == used.source);
    let relation = |used| record.relation(used, &present, inventory.held_digest(workload, used).as_ref());
    match to_it.map(relation).max().unwrap_or(Relation::Apart) {
        // The digest of a Secret uses a key of the installation.
        Relation::AtSource(Mode::Live) | Relation::Unjudged => SourceState::Live,
        Relation::AtSource(Mode::Bound) => SourceState::Bound,
        Relation::AtSource(_) => SourceState::AsWritten,
        Relation::Lacking => SourceState::KeyMissing,
        Relation::Seen(Values::Rejected) => SourceState::Pinned,
        Relation::Seen(_) | Relation::Unrecorded | Relation::Apart => SourceState::Current,
        Relation::Behind if workload.kind.rolls && record.track => SourceState::Pending,
        Relation::Behind if workload.kind.rolls => SourceState::Paused,
        Relation::Behind if used.snapshot.is_none() && !used.live => SourceState::AsWritten,
        Relation::Behind => SourceState::AsCreated,
    }
}

/// Whether pods start without the source: every reference to it is optional.
fn is_optional(workload: &OptedIn, source: &ObjectName) -> bool {
    let Ok(parsed) = Workload::read(&workload.kind, &*workload.value) else { return false };
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    let mut to_it = references
        .iter()
        .filter(|reference| reference.kind == source.kind && *reference.name == *source.name);
    to_it.all(|reference| reference.optional)
}

/// Whether both contents are equal for the workload: in the keys that it uses, or in all keys if it uses the whole
/// source.
pub(super) fn reads_the_same(
    workload: &OptedIn,
    source: &ObjectName,
    held: &Observed,
    present: &Observed,
) -> bool {
    if held.same_content(present) {
        return true;
    }
    let Ok(parsed) = Workload::read(&workload.kind, &*workload.value) else { return false };
    let entered = parsed.sources();
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    let concerned = |reference: &&Reference<'_>| {
        let of = entered.source_of(reference.kind, reference.name);
        of == Some(source) || (reference.kind == source.kind && *reference.name == *source.name)
    };
    references.iter().filter(concerned).all(|reference| match &reference.keys {
        None => false,
        Some(keys) => held.same_values(present, keys.iter().copied()),
    })
}

/// The word for the rollout's state: `paused` if it continues only after a command of a user. A Job has no rollout; its word is the status that `kubectl get jobs` shows.
pub(super) fn rollout(workload: &OptedIn, pause: Option<&Pause>) -> &'static str {
    if !workload.kind.rolls {
        let conditions = workload.value["status"]["conditions"].as_array();
        let is = |kind: &str| {
            conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
        };
        let known = [("Complete", "complete"), ("Failed", "failed"), ("Suspended", "suspended")];
        return known.iter().find(|(kind, _)| is(kind)).map_or("running", |(_, word)| word);
    }
    if pause.is_some() {
        return "paused";
    }
    match workload.record.health {
        Health::Idle | Health::Settled => "settled",
        Health::Unobserved | Health::Progressing | Health::Unavailable => "progressing",
        Health::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cli::inventory::Inventory, kinds::Kinds, snapshot::Rotated};

    #[test]
    fn optional_reference_to_nothing_is_absent() {
        let kinds = Kinds::default();
        let deployments = kinds.iter().find(|kind| kind.kind == "Deployment").unwrap();
        for (optional, state, word) in
            [(true, SourceState::Absent, "absent: demo"), (false, SourceState::Missing, "missing: demo")]
        {
            let volume = json!({"name": "v", "configMap": {"name": "demo", "optional": optional}});
            let deployment = json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "d"},
                "spec": {"template": {"spec": {"volumes": [volume]}}},
            });
            let workload = OptedIn::read(
                deployments,
                deployment,
                (&Rotated::default(), &crate::world::Inherited::default()),
            )
            .unwrap();
            let used = &workload.record.uses[0];
            assert_eq!(without_contents(&workload, &Inventory::default(), used, &LiveSource::Missing), state);
            let source = UsedSource {
                source: "ConfigMap/demo".to_owned(),
                snapshot: None,
                state,
                beneath: state,
                gate: None,
                until: None,
                reason: None,
                strategy: None,
                analysis: None,
                delay: None,
                object: used.source.clone(),
            };
            assert_eq!(crate::cli::status::state(&[source]), word);
        }
    }

    #[test]
    fn deployment_reports_state_of_referencing_rollout() {
        let kinds = Kinds::default();
        let deployments = kinds.iter().find(|kind| kind.kind == "Deployment").unwrap();
        let state_with = |status: serde_json::Value,
                          namespace: &str,
                          of: &str,
                          generation: &str,
                          phase: &str| {
            let deployment = json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "d", "generation": 2},
                "spec": {"replicas": 0, "template": {}},
                "status": status,
            });
            let rollout = json!({
                "metadata": {"name": "web", "namespace": namespace, "uid": "r", "generation": 1},
                "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": of}},
                "status": {"observedGeneration": "1", "phase": phase, "workloadObservedGeneration": generation},
            });
            let mut inventory = Inventory {
                workloads: vec![
                    OptedIn::read(
                        deployments,
                        deployment,
                        (&Rotated::default(), &crate::world::Inherited::default()),
                    )
                    .unwrap(),
                ],
                rollouts: vec![rollout.into()],
                ..Inventory::default()
            };
            inventory.let_rollouts_say_how_their_templates_fare();
            super::rollout(&inventory.workloads[0], None)
        };
        let state_of = |namespace: &str, of: &str, generation: &str, phase: &str| {
            state_with(json!({"observedGeneration": 2}), namespace, of, generation, phase)
        };
        for (namespace, of, generation, phase, word) in [
            ("shop", "web", "2", "Healthy", "settled"),
            ("shop", "web", "2", "Paused", "progressing"),
            ("shop", "web", "2", "Degraded", "failed"),
            ("shop", "web", "1", "Healthy", "progressing"),
            ("shop", "web", "", "Healthy", "settled"),
            ("shop", "other", "1", "Degraded", "settled"),
            ("elsewhere", "web", "1", "Degraded", "settled"),
        ] {
            assert_eq!(
                state_of(namespace, of, generation, phase),
                word,
                "{namespace} {of} {generation} {phase}"
            );
        }
        // The Deployment starts no pods, so its own status says nothing.
        for (generation, word) in [("2", "settled"), ("1", "progressing")] {
            let outdated = json!({"observedGeneration": 1});
            assert_eq!(state_with(outdated, "shop", "web", generation, "Healthy"), word);
        }
    }
}
