//! The texts of Events, from what the world knows.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use crate::{
    annotations,
    cluster::{Event, ObjectRef},
    gates::{About, ELSEWHERE, Why, proved_bad, retry, waves},
    resolve::{
        ALL_WAVES, AnalysisRun, Progress, Proof, Record, RecordedFailure, RunState, Use, UserAction,
        UserDecision,
    },
    snapshot::{DIGITS, Digest, ObjectName, snapshot_name},
    telemetry::metrics::Reason,
    world::{Name, User, WorkloadKey, World, shares::NAMESPACE, skipped::Skipped},
};

/// How many names an Event about idle holds gives.
const NAMED: usize = 5;

/// What happened to a referenced snapshot.
#[derive(Clone, Copy)]
pub(crate) enum Loss {
    /// Its content is lost.
    Lost,
    /// An object that is not a snapshot has its name.
    Taken,
    /// It was recreated.
    Restored,
}

/// An Event on a source; `None` if the source does not exist.
fn event_on_source(
    world: &World,
    source: &Name,
    reason: Reason,
    note: String,
    now: Timestamp,
) -> Option<Event> {
    let regarding = source_ref(world, source)?;
    let namespace = Arc::clone(&source.namespace);
    Some(Event { namespace, regarding, related: None, reason, same: note.clone(), note, at: now })
}

fn source_ref(world: &World, source: &Name) -> Option<ObjectRef> {
    let known = world.existing_source(source)?;
    Some(ObjectRef {
        api_version: "v1".to_owned(),
        kind: source.object.kind.as_str().to_owned(),
        name: source.object.name.to_string(),
        uid: known.uid.to_string(),
    })
}

fn event_on_user(world: &World, user: &User, reason: Reason, note: String, now: Timestamp) -> Option<Event> {
    let (namespace, regarding) = (Arc::clone(user.namespace()), world.owner(user)?.into());
    Some(Event { namespace, regarding, related: None, reason, same: note.clone(), note, at: now })
}

fn event_on_workload(
    world: &World,
    key: &WorkloadKey,
    reason: Reason,
    note: String,
    now: Timestamp,
) -> Option<Event> {
    event_on_user(world, &User::Workload(key.clone()), reason, note, now)
}

/// Events about a workload and a source: on the workload, which refers to the source, and on the source.
fn events_on_both(
    world: &World,
    (key, note): (&WorkloadKey, String),
    (source, note_on_source): (&Name, String),
    reason: Reason,
    now: Timestamp,
) -> impl Iterator<Item = Event> {
    let related = source_ref(world, source);
    let on_workload = event_on_workload(world, key, reason, note, now);
    let on_workload = on_workload.map(|event| Event { related, ..event });
    on_workload.into_iter().chain(event_on_source(world, source, reason, note_on_source, now))
}

/// A wave of a change begins.
pub(super) fn wave_begins(
    world: &World,
    source: &Name,
    progress: &Progress<WorkloadKey>,
    now: Timestamp,
) -> Option<Event> {
    let Progress { wave, waves, limit, total, .. } = progress;
    let to = named(source, &world.existing_source(source)?.present.digests.current());
    let note = format!("wave {wave} of {waves} begins: up to {limit} of {total} workloads move to {to}");
    event_on_source(world, source, Reason::WaveBegun, note, now)
}

/// A proof, as an Event in the namespace of a source reports it. It names no workload of another namespace of the group: a reader
/// of Events here may have no rights there.
pub(super) fn as_seen_from(source: &Name, proof: &Proof<WorkloadKey>) -> Proof<WorkloadKey> {
    match proof.clone() {
        Proof::Workload { workload, rolled_back } => {
            let workload = workload.filter(|workload| workload.namespace == source.namespace);
            Proof::Workload { workload, rolled_back }
        }
        Proof::Verdict(reason) => Proof::Verdict(reason),
    }
}

/// How a workload proved a content of a source bad.
pub(super) fn proof(world: &World, source: &Name, digest: &Digest, proof: &Proof<WorkloadKey>) -> String {
    let (by, how) = match proof {
        Proof::Workload { workload, rolled_back } => (workload, proved_bad(*rolled_back)),
        Proof::Verdict(reason) => return format!("{}: {reason}", named(source, digest)),
    };
    format!("{} {how} {}", display_in(world, source, by.as_ref()), named(source, digest))
}

/// A failed workload holds the others. `held`: how many.
pub(in crate::controller) fn held(
    world: &World,
    source: &Name,
    because: &Proof<WorkloadKey>,
    held: usize,
    now: Timestamp,
) -> Option<Event> {
    let known = world.existing_source(source)?;
    let held = if held == 1 { "1 workload is".to_owned() } else { format!("{held} workloads are") };
    let why = proof(world, source, &known.present.digests.current(), because);
    let policy = world.change(source, known).policy();
    let setting = match (policy.has_waves(), policy.max_in_flight) {
        (true, _) => "waves",
        (false, Some(_)) => "max-in-flight",
        (false, None) => "on-failure",
    };
    let or = match because {
        Proof::Workload { .. } => format!("remove {setting} to continue"),
        Proof::Verdict(_) => format!("run `{}`", retry(&source.object)),
    };
    let note = format!("{held} held: {why}. Correct the content, or {or}");
    event_on_source(world, source, Reason::RollHeld, note, now)
}

/// A workload that had failed with a content holds the others no longer.
pub(in crate::controller) fn released(
    world: &World,
    source: &Name,
    digest: &Digest,
    proof: &Proof<WorkloadKey>,
    now: Timestamp,
) -> Option<Event> {
    let is_present = world.existing_source(source)?.present.digests.contains(digest);
    let then = if is_present { "the next workloads roll" } else { "the source changed" };
    let of = named(source, digest);
    let by = match proof {
        Proof::Workload { workload, .. } => display_in(world, source, workload.as_ref()),
        Proof::Verdict(_) => "a failure".to_owned(),
    };
    let note = format!("{by} no longer holds the roll to {of}: {then}");
    event_on_source(world, source, Reason::RollReleased, note, now)
}

/// A setting of a source is invalid, so no workload rolls to its changes.
pub(super) fn invalid_on_source(world: &World, source: &Name, why: &str, now: Timestamp) -> Option<Event> {
    let note = format!("no workload rolls to a change of this source: {why}");
    event_on_source(world, source, Reason::SettingInvalid, note, now)
}

/// A setting of a workload or of its namespace is invalid, so the workload does not roll.
pub(super) fn invalid_on_workload(
    world: &World,
    key: &WorkloadKey,
    is_of_namespace: bool,
    why: &str,
    now: Timestamp,
) -> Option<Event> {
    let because = if is_of_namespace { ", because of its namespace" } else { "" };
    let note = format!("the workload does not roll automatically{because}: {why}");
    event_on_workload(world, key, Reason::SettingInvalid, note, now)
}

/// The name of the snapshot of a source's content.
fn named(source: &Name, digest: &Digest) -> String {
    snapshot_name(&source.object.name, digest, DIGITS[0])
}

/// A workload in a message in the namespace of a source. One of another namespace is not named.
fn display_in(world: &World, source: &Name, key: Option<&WorkloadKey>) -> String {
    match key.filter(|key| key.namespace == source.namespace) {
        Some(key) => world.display_short(key),
        None => ELSEWHERE.to_owned(),
    }
}

/// The sources that a workload moved to other content, with the names before and after.
fn moves(before: &Record, after: &Record) -> Vec<(ObjectName, Arc<str>, Arc<str>)> {
    let name_in = |record: &Record, used: &Use| {
        let held = record.uses.iter().find(|held| held.source == used.source);
        held.map(|held| held.snapshot.clone().unwrap_or_else(|| held.source.name.clone()))
    };
    let mut moves: Vec<(ObjectName, Arc<str>, Arc<str>)> = Vec::new();
    for used in after.uses.iter().filter(|used| used.snapshot.is_some()) {
        let (from, to) = (name_in(before, used), name_in(after, used));
        if let (Some(from), Some(to)) = (from, to)
            && from != to
            && !moves.iter().any(|(source, ..)| *source == used.source)
        {
            moves.push((used.source.clone(), from, to));
        }
    }
    moves
}

/// The sources to whose changed content a roll moved the workload, each with the snapshot.
pub(crate) fn changes(
    world: &World,
    key: &WorkloadKey,
    before: &Record,
    after: &Record,
) -> Vec<(Name, Arc<str>)> {
    let moves = moves(before, after).into_iter().filter(|(source, from, _)| *from != source.name);
    let moves = moves.map(|(source, from, to)| (key.beside(source), from, to));
    let moves = moves.filter(|(source, from, _)| !is_back(world, source, from));
    moves.map(|(source, _, to)| (source, to)).collect()
}

/// Whether a workload that leaves this snapshot of the source goes back: the content was refused.
fn is_back(world: &World, source: &Name, from: &Arc<str>) -> bool {
    world.refused(source).is_some_and(|(refused, _)| refused.object.name == *from)
}

/// A roll: one Event on the workload, and one on each source for each of its contents, however many workloads roll to it.
pub(crate) fn roll(
    world: &World,
    key: &WorkloadKey,
    before: &Record,
    after: &Record,
    now: Timestamp,
) -> Vec<Event> {
    let moves = moves(before, after);
    if before.is_marked && !after.is_marked {
        let note = "its last write was admitted while confrev did not answer: it kept its snapshots, and confrev has decided on it now";
        return event_on_workload(world, key, Reason::Carried, note.to_owned(), now).into_iter().collect();
    }
    let Some((first, ..)) = moves.first() else { return Vec::new() };
    let related = source_ref(world, &key.beside(first.clone()));
    let is_back = |source: &ObjectName, from: &Arc<str>| is_back(world, &key.beside(source.clone()), from);
    let notes = moves.iter().map(|(source, from, to)| {
        let is_first = *from == source.name;
        if is_first {
            format!("{source} resolved to {to}")
        } else if is_back(source, from) {
            format!("{source}: back from {from}, which was refused, to {to}")
        } else {
            format!("{source} changed: from {from} to {to}")
        }
    });
    let notes: Vec<_> = notes.collect();
    let reverts = moves.iter().any(|(source, from, _)| is_back(source, from));
    let reason = if reverts { Reason::Reverted } else { Reason::Rolled };
    let event = event_on_workload(world, key, reason, notes.join("; "), now);
    let mut events: Vec<_> = event.map(|event| Event { related, ..event }).into_iter().collect();
    for (source, from, to) in moves {
        let is_back = is_back(&source, &from);
        let source = key.beside(source);
        let count = world.workloads_using(&source).count();
        let workload = world.display_short(key);
        if is_back {
            let note = format!("{workload} went back from {from}, which was refused, to {to}");
            events.extend(event_on_source(world, &source, Reason::Reverted, note, now));
            continue;
        }
        let first = if count > 1 { format!(", the first of {count} workloads") } else { String::new() };
        let note = format!("{to} is now used by {workload}{first}");
        let event = event_on_source(world, &source, Reason::Rolled, note, now);
        events.extend(event.map(|event| Event { same: to.to_string(), ..event }));
    }
    events
}

/// A content that a source refuses from now on, or no longer: on the source. `failed`: the new verdict.
pub(crate) fn refused(
    world: &World,
    snapshot: &Name,
    failed: Option<&RecordedFailure>,
    now: Timestamp,
) -> Option<Event> {
    let source = snapshot.sibling(Arc::clone(&world.snapshot(snapshot)?.source));
    world.existing_source(&source).filter(|known| known.spread.reverts)?;
    let name = &snapshot.object.name;
    let Some(failed) = failed else {
        let note = format!("{name} is no longer refused: workloads roll to it again");
        return event_on_source(world, &source, Reason::RollReleased, note, now);
    };
    let is_on_it = |(_, record): &(&WorkloadKey, &Record)| {
        record.uses.iter().any(|used| used.source == source.object && used.snapshot.as_ref() == Some(name))
    };
    let count = world.workloads_using(&source).filter(is_on_it).count();
    let back = if count == 1 { "1 workload goes".to_owned() } else { format!("{count} workloads go") };
    let note = format!(
        "{name} is refused: {}. {back} back. Correct the content, or run `{}`",
        failed.reason,
        retry(&source.object)
    );
    let event = event_on_source(world, &source, Reason::ContentRefused, note, now)?;
    Some(Event { same: format!("{name} {}", failed.at), ..event })
}

/// A decision of a person that was taken over: on the source.
pub(in crate::controller) fn decided(
    world: &World,
    snapshot: &Name,
    decision: &UserDecision,
    now: Timestamp,
) -> Option<Event> {
    let source = snapshot.sibling(Arc::clone(&world.snapshot(snapshot)?.source));
    let name = &snapshot.object.name;
    let by = decision.by.as_ref().map(|user| format!(" by {user}")).unwrap_or_default();
    let note = match &decision.action {
        UserAction::Promote(wave) if **wave == *ALL_WAVES => {
            format!("all waves of {name} were promoted{by}: they begin whatever the state of the workloads")
        }
        UserAction::Promote(wave) => {
            format!("wave {wave} of {name} was promoted{by}: it begins whatever the state of the workloads")
        }
        UserAction::Abort => format!(
            "the change to {name} was aborted{by}: no further workload moves. `{}` continues it",
            retry(&source.object)
        ),
        UserAction::Resume => format!("the change to {name} was continued{by}"),
        UserAction::Retry => {
            format!("the change to {name} was retried{by}: failures until then no longer count")
        }
    };
    let event = event_on_source(world, &source, Reason::ChangeDecided, note, now)?;
    Some(Event { same: decision.to_string(), ..event })
}

/// The AnalysisRun of a wave that was read: on its source. `before`: the state in which this leader knew the run, if it did.
pub(in crate::controller) fn analysed(
    world: &World,
    source: &Name,
    AnalysisRun { name, state }: &AnalysisRun,
    wave: usize,
    (before, is_new): (Option<&RunState>, bool),
    now: Timestamp,
) -> Option<Event> {
    let [retry, promote] = ["retry", "promote"].map(|of| format!("`{}`", waves(of, &source.object)));
    let (reason, note) = match state {
        RunState::Running if is_new => {
            (Reason::AnalysisBegun, format!("wave {wave} is analysed by AnalysisRun {name}"))
        }
        // A new leader reports only what needs attention.
        RunState::Successful if before.is_some() && wave > 0 => {
            (Reason::AnalysisSucceeded, format!("wave {wave}: AnalysisRun {name} was successful"))
        }
        RunState::Unknown | RunState::Running | RunState::Successful => return None,
        RunState::Failed(why) => (
            Reason::AnalysisFailed,
            format!("wave {wave}: AnalysisRun {name}: {why}. Correct the content, or run {retry}"),
        ),
        RunState::Undecided(why) => (
            Reason::AnalysisHeld,
            format!(
                "no further wave begins: AnalysisRun {name} of wave {wave} {why}. Run {retry}, or begin the next wave with \
                 {promote}"
            ),
        ),
        RunState::Unavailable(why) if wave == 0 => {
            (Reason::AnalysisHeld, format!("no wave begins, since none can be analysed: {why}"))
        }
        RunState::Unavailable(why) => {
            (Reason::AnalysisHeld, format!("no further wave begins: wave {wave} cannot be analysed: {why}"))
        }
    };
    event_on_source(world, source, reason, note, now)
}

/// The part of the API server's message by which it names the policy that limits confrev's own writes.
const OF_OWN_LIMITS: &str = "ValidatingAdmissionPolicy 'confrev-self'";

/// A refused roll: on the workload and on each source that it did not roll to, with the API server's message.
pub(crate) fn refusal(
    world: &World,
    key: &WorkloadKey,
    code: u16,
    message: &str,
    now: Timestamp,
) -> Vec<Event> {
    let Some(record) = world.workload(key) else { return Vec::new() };
    let has_change = |used: &&Use| {
        let source = key.beside(used.source.clone());
        let Some(known) = world.existing_source(&source).filter(|_| !used.on_hold) else { return false };
        used.snapshot.is_none() || !record.has_seen(&used.source, &known.present.digests)
    };
    let changed: BTreeSet<_> =
        record.uses.iter().filter(has_change).map(|used| used.source.clone()).collect();
    // One Event for each kind of refusal in a while: the message may differ each time, like that of a quota.
    let same = code.to_string();
    // The policy refuses nothing that confrev's own admission writes.
    let changed_by = message.contains(OF_OWN_LIMITS).then_some(
        ", since another webhook changes the workload in the same write (docs/troubleshooting.md has what to do),",
    );
    let changed_by = changed_by.unwrap_or_default();
    let note =
        format!("the roll to the present content was refused{changed_by} and will be retried: {message}");
    let related = changed.first().and_then(|first| source_ref(world, &key.beside(first.clone())));
    let event = event_on_workload(world, key, Reason::RollRefused, note, now);
    let event = event.map(|event| Event { related, same: same.clone(), ..event });
    let mut events: Vec<_> = event.into_iter().collect();
    for source in changed {
        let source = key.beside(source);
        let workload = world.display_short(key);
        let note = format!(
            "the roll of {workload} to the present content was refused{changed_by} and will be retried: {message}"
        );
        let event = event_on_source(world, &source, Reason::RollRefused, note, now);
        events.extend(event.map(|event| Event { same: same.clone(), ..event }));
    }
    events
}

/// A source whose content the gates refuse: on the workload and on the source.
pub(crate) fn refused_content(
    world: &World,
    key: &WorkloadKey,
    source: &Name,
    why: &Why<WorkloadKey>,
    now: Timestamp,
) -> Vec<Event> {
    let reason = why.text(&About::alone(&source.object));
    let version = world.existing_source(source).map_or("", |known| &known.resource_version);
    let same = format!("{} {} {version}", why.gate().name(), source.object);
    let on_workload = format!("the roll to the present content was refused: {reason}");
    let workload = world.display_short(key);
    let on_source = format!("the roll of {workload} to the present content was refused: {reason}");
    let events = events_on_both(world, (key, on_workload), (source, on_source), Reason::RollRefused, now);
    events.map(|event| Event { same: same.clone(), ..event }).collect()
}

/// A workload that begins to keep other content than the present one: on the workload and on the source.
pub(crate) fn pins(
    world: &World,
    key: &WorkloadKey,
    before: &Record,
    after: &Record,
    now: Timestamp,
) -> Vec<Event> {
    let was_so = |used: &Use| {
        let same = |before: &&Use| (&before.source, &before.snapshot) == (&used.source, &used.snapshot);
        // The same keys are rejected as before: another key of the source has changed, and the workload has seen that.
        let rejects_same =
            before.pinned(&used.source).is_some_and(|rejected| after.pinned(&used.source) == Some(rejected));
        world.pinned(&key.namespace, before).any(|before| same(&before))
            || (rejects_same && before.uses.iter().any(|before| same(&before)))
    };
    let mut events = Vec::new();
    for used in world.pinned(&key.namespace, after).filter(|used| !was_so(used)) {
        let source = key.beside(used.source.clone());
        let held = used.snapshot.clone().unwrap_or_default();
        let (until, then) = match after.keys_of(&used.source) {
            None => ("the source changes again", ""),
            Some(_) => (
                "a key that the workload reads changes again",
                ". The workload then rolls to all of the present content, including the values that it does not use now",
            ),
        };
        let note = format!(
            "keeps {held}, which is not the present content of {}: confrev does not roll the workload until {until}, \
             or the workload is applied with the source's name{then}",
            source.object
        );
        let on_source =
            format!("{} keeps {held}, which is not the present content", world.display_short(key));
        events.extend(events_on_both(world, (key, note), (&source, on_source), Reason::Pinned, now));
    }
    once(events, after)
}

/// A workload that no longer keeps other content than the one that it has seen: on the workload and on the source.
pub(crate) fn unpins(
    world: &World,
    key: &WorkloadKey,
    before: &Record,
    after: &Record,
    now: Timestamp,
) -> Vec<Event> {
    let mut ended: Vec<&Use> = world.kept(&key.namespace, before).collect();
    ended.dedup_by(|a, b| a.source == b.source);
    ended.retain(|used| !world.kept(&key.namespace, after).any(|still| still.source == used.source));
    // A hold of the same snapshot replaces the undo or the pin.
    let is_kept_on =
        |used: &Use| on_hold(after).any(|now| (&now.source, &now.snapshot) == (&used.source, &used.snapshot));
    ended.retain(|used| !is_kept_on(used));
    let mut events = Vec::new();
    for used in ended {
        let source = key.beside(used.source.clone());
        let held = used.snapshot.clone().unwrap_or_default();
        let now_used = after.uses.iter().find(|used| used.source == source.object);
        let end = match now_used.map(|used| &used.snapshot) {
            Some(Some(snapshot)) if *snapshot == held => {
                format!("{held} has the present values of {} again", source.object)
            }
            Some(Some(snapshot)) => format!("no longer keeps {held}: uses {snapshot}"),
            Some(None) | None => format!("no longer keeps {held}"),
        };
        let on_source = format!("{}: {end}", world.display_short(key));
        events.extend(events_on_both(world, (key, end), (&source, on_source), Reason::Unpinned, now));
    }
    once(events, after)
}

/// The sources whose references the annotation `hold` keeps, each once.
fn on_hold(record: &Record) -> impl Iterator<Item = &Use> {
    let is_first = |world: usize, used: &Use| {
        !record.uses[..world].iter().any(|before| before.on_hold && before.source == used.source)
    };
    let uses = record.uses.iter().enumerate().filter(|(_, used)| used.on_hold);
    uses.filter(move |(world, used)| is_first(*world, used)).map(|(_, used)| used)
}

/// Holds that begin or end: on the workload and on the source.
pub(crate) fn holds(
    world: &World,
    key: &WorkloadKey,
    before: &Record,
    after: &Record,
    now: Timestamp,
) -> Vec<Event> {
    let is_in = |record: &Record, used: &Use| {
        on_hold(record).any(|other| (&other.source, &other.snapshot) == (&used.source, &used.snapshot))
    };
    let ended = on_hold(before).filter(|used| !after.is_on_hold(&used.source)).map(|used| {
        let held = used.snapshot.clone().unwrap_or_default();
        let now_used = after.uses.iter().find(|now| now.source == used.source);
        let then = match now_used.and_then(|now| now.snapshot.as_ref()) {
            Some(snapshot) if *snapshot != held => format!(": uses {snapshot}"),
            Some(_) | None => String::new(),
        };
        (used, Reason::HoldEnded, format!("is no longer held at {held}{then}"))
    });
    let begun = on_hold(after).filter(|used| !is_in(before, used)).map(|used| {
        let held = used.snapshot.clone().unwrap_or_default();
        (used, Reason::Held, format!("is held at {held} until annotation {} is removed", annotations::HOLD))
    });
    let mut events = Vec::new();
    for (used, reason, what) in ended.chain(begun) {
        let source = key.beside(used.source.clone());
        let note = format!("{} {what}", source.object);
        let on_source = format!("{} {what}", world.display_short(key));
        events.extend(events_on_both(world, (key, note), (&source, on_source), reason, now));
    }
    once(events, after)
}

/// Holds that hold nothing, since the workload was created or changed. Before it is admitted, no reference names a snapshot.
pub(crate) fn idle_holds(
    world: &World,
    key: &WorkloadKey,
    before: Option<&Record>,
    now: Timestamp,
) -> Option<Event> {
    let after = world.workload(key).filter(|_| world.is_synced() && !world.is_pending(key))?;
    let same = |before: &Record| before.uid == after.uid && before.idle_holds == after.idle_holds;
    let idle = after.idle_holds.as_ref().filter(|_| !before.is_some_and(same))?;
    let names: Vec<_> = idle.iter().take(NAMED).map(ToString::to_string).collect();
    let note = format!(
        "annotation {} has no effect: no reference of the template resolves to {}",
        annotations::HOLD,
        names.join(", ")
    );
    event_on_workload(world, key, Reason::SettingInvalid, note, now)
}

/// Events about one change of a workload. A workload may return to an earlier state at once, and each change counts.
fn once(events: Vec<Event>, after: &Record) -> Vec<Event> {
    let same = |event: &Event| format!("{} {}", event.note, after.resource_version);
    events.into_iter().map(|event| Event { same: same(&event), ..event }).collect()
}

/// The objects that a workload refers to and that are missing.
pub(crate) fn missing_sources(world: &World, key: &WorkloadKey, now: Timestamp) -> Option<Event> {
    let record = world.workload(key)?;
    let mut missing: Vec<_> = world.unresolved(&key.namespace, record).map(ToString::to_string).collect();
    missing.dedup();
    if missing.is_empty() {
        return None;
    }
    let verb = if missing.len() == 1 { "does" } else { "do" };
    let missing = missing.join(", ");
    let note = format!("{missing} {verb} not exist: pods that refer to it do not start until it does");
    event_on_workload(world, key, Reason::SourceMissing, note, now)
}

/// A referenced snapshot that was missing, and was recreated or is lost: on its source, and on the first workload and
/// revision that refer to it.
pub(crate) fn loss(world: &World, snapshot: &Name, loss: Loss, now: Timestamp) -> Vec<Event> {
    let users: Vec<_> = world.users().staying(snapshot).collect();
    let owners: Vec<_> = users.iter().filter_map(|user| world.owner(user)).collect();
    let mut names: Vec<_> =
        owners.iter().rev().take(3).map(|owner| format!("{} {}", owner.kind, owner.name)).collect();
    if owners.len() > names.len() {
        names.push(format!("{} more", owners.len() - names.len()));
    }
    let (reason, note) = loss_note(&snapshot.object, loss, &names.join(", "));
    let same = snapshot.object.name.to_string();
    let source = users.iter().find_map(|user| world.source_used_by(user, snapshot));
    let on_source = source.and_then(|source| event_on_source(world, &source, reason, note.clone(), now));
    let workload = users.iter().find(|user| matches!(user, User::Workload(_)));
    let revision = users.iter().find(|user| matches!(user, User::Revision(_)));
    let on_users = workload.into_iter().chain(revision);
    let on_users = on_users.filter_map(|user| event_on_user(world, user, reason, note.clone(), now));
    let events = on_source.into_iter().chain(on_users);
    events.map(|event| Event { same: same.clone(), ..event }).collect()
}

/// The oldest unused snapshots of a source are deleted early.
pub(in crate::controller) fn snapshots_dropped(
    world: &World,
    source: &Name,
    now: Timestamp,
) -> Option<Event> {
    let limit = world.config().max_snapshot_bytes >> 20;
    let note = format!(
        "unused snapshots of this source take more than {limit} MiB (--max-snapshot-bytes): the oldest of them are deleted, \
         although keep asks for more"
    );
    event_on_source(world, source, Reason::SnapshotsDropped, note, now)
}

fn loss_note(name: &ObjectName, loss: Loss, users: &str) -> (Reason, String) {
    match loss {
        Loss::Lost => (
            Reason::SnapshotLost,
            format!(
                "{name} is missing and its content is lost: pods of {users} do not start. Apply the workload again, or \
                 write the old content to the source again"
            ),
        ),
        Loss::Taken => (
            Reason::SnapshotLost,
            format!(
                "{name} is missing, and its name is taken by an object that is not a snapshot: pods of {users} read that \
                 object. Delete it, so that confrev can recreate the snapshot, or apply the workload again"
            ),
        ),
        Loss::Restored => (
            Reason::SnapshotRestored,
            format!("{name} was missing while {users} referred to it, and was recreated"),
        ),
    }
}

/// A namespace of which something is left out of the world.
pub(crate) fn partly_known(world: &World, namespace: &Arc<str>, now: Timestamp) -> Event {
    let uid = world.namespace_owner(namespace).map(|owner| owner.uid.to_string()).unwrap_or_default();
    let regarding = ObjectRef {
        api_version: "v1".to_owned(),
        kind: NAMESPACE.to_owned(),
        name: namespace.to_string(),
        uid,
    };
    let note = "the namespace has more workloads and revisions, or these refer to more names, than confrev keeps of one \
         namespace. Some are left out: a workload that is left out rolls only when it is applied, and snapshots are deleted later. \
         Delete ReplicaSets, ControllerRevisions and Jobs that nothing needs, or use several namespaces";
    Event {
        namespace: Arc::clone(namespace),
        regarding,
        related: None,
        reason: Reason::NamespacePartlyKnown,
        same: namespace.to_string(),
        note: note.to_owned(),
        at: now,
    }
}

/// An object that cannot be read and is skipped.
pub(crate) fn unreadable(world: &World, object: &User, skipped: &Skipped, now: Timestamp) -> Event {
    let (api_version, kind) = world.kind_of_user(object);
    let (name, uid) = (object.name().to_string(), skipped.uid.to_string());
    let regarding = ObjectRef { api_version, kind, name, uid };
    let why = match skipped.names_limit {
        None => {
            "the object cannot be read: it is nested too deep, or its pod template is malformed".to_owned()
        }
        Some(limit) => format!("the object refers to more than {limit} names (--max-reads)"),
    };
    let note =
        why + ". confrev skips it: its references are not resolved, and snapshots that it may use are kept";
    let namespace = Arc::clone(object.namespace());
    let (reason, same) = (Reason::ObjectUnreadable, String::new());
    Event { namespace, regarding, related: None, reason, same, note, at: now }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        tie::{ReadKey, Reads},
        world::{
            SnapshotRecord,
            fixture::{
                digest, failed, held, key, object, record, reverting, snapshot, snapshot_record, source,
                used, world,
            },
        },
    };

    /// Only after an admission do the references name snapshots.
    #[test]
    fn holds_without_effect_are_reported_once() {
        let idle =
            || Record { idle_holds: Some(Box::new([object("a-3")])), ..record("web", &[used("a", Some(2))]) };
        let held = record("web", &[used("a", Some(2))]);
        for (what, before, after, is_reported) in [
            ("it is created", None, idle(), true),
            ("it is reported again", Some(idle()), idle(), false),
            ("it gets the hold", Some(held.clone()), idle(), true),
            ("it is created again", Some(Record { uid: "2".into(), ..idle() }), idle(), true),
            ("it is not admitted yet", None, Record { uses: vec![used("a", None)], ..idle() }, false),
            ("it has no such hold", None, held.clone(), false),
        ] {
            let event = idle_holds(&world(&[("web", &after)]), &key("web"), before.as_ref(), NOW);
            assert_eq!(event.is_some(), is_reported, "{what}");
            assert!(event.is_none_or(|event| event.note.contains("a-3")), "{what}");
        }
    }

    /// Events as "object, related object: reason, note".
    fn lines(events: &[Event]) -> Vec<String> {
        let name = |object: &ObjectRef| format!("{}/{}", object.kind, object.name);
        let line = |event: &Event| {
            let related =
                event.related.as_ref().map_or(String::new(), |related| format!(", {}", name(related)));
            format!("{}{related}: {:?}, {}", name(&event.regarding), event.reason, event.note)
        };
        events.iter().map(line).collect()
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn decisions_are_reported_with_their_user() {
        let snapshot = source("a").sibling(snapshot("a", 2));
        let mut world = world(&[]);
        world.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
        world.apply_snapshot(&snapshot, Some(snapshot_record("a", 2)), &mut Vec::new());
        for (decision, expected) in [
            ("promote 2 by ann", "wave 2 of a-2000000000 was promoted by ann: it begins whatever"),
            ("promote all", "all waves of a-2000000000 were promoted: they begin whatever"),
            ("abort by ann", "the change to a-2000000000 was aborted by ann: no further workload moves."),
            ("resume", "the change to a-2000000000 was continued"),
            ("retry by ann", "the change to a-2000000000 was retried by ann"),
        ] {
            let (action, rest) = decision.split_once(' ').unwrap_or((decision, ""));
            let text = format!("{action} a-2000000000 1970-01-02T00:00:00Z {rest}");
            let decision = UserDecision::parse(text.trim_end()).unwrap();
            let lines = lines(&Vec::from_iter(decided(&world, &snapshot, &decision, NOW)));
            assert!(lines[0].starts_with(&format!("ConfigMap/a: ChangeDecided, {expected}")), "{lines:?}");
        }
    }

    #[test]
    fn roll_is_reported_on_workload_and_sources() {
        let before = record("web", &[used("a", None), used("b", Some(1))]);
        let after = record("web", &[used("a", Some(2)), used("b", Some(2))]);
        let other = record("other", &[used("b", Some(1))]);
        let world = world(&[("web", &after), ("other", &other)]);
        assert_eq!(
            lines(&roll(&world, &key("web"), &before, &after, NOW)),
            [
                "Deployment/web, ConfigMap/a: Rolled, ConfigMap \"a\" resolved to a-2000000000; ConfigMap \"b\" changed: from b-1000000000 to b-2000000000",
                "ConfigMap/a: Rolled, a-2000000000 is now used by Deployment/web",
                "ConfigMap/b: Rolled, b-2000000000 is now used by Deployment/web, the first of 2 workloads",
            ]
        );
        assert_eq!(lines(&roll(&world, &key("web"), &after, &after, NOW)), Vec::<String>::new());
    }

    #[test]
    fn return_from_refused_content_is_no_roll() {
        let (bad, previous, newer) = (used("a", Some(2)), used("a", Some(1)), used("a", Some(3)));
        let mut world = world(&[("web", &record("web", std::slice::from_ref(&previous)))]);
        world.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        let of = |before: &Use, after: &Use| {
            let [before, after] = [before, after].map(|used| record("web", std::slice::from_ref(used)));
            lines(&roll(&world, &key("web"), &before, &after, NOW))
        };
        assert_eq!(
            of(&bad, &previous),
            [
                "Deployment/web, ConfigMap/a: Reverted, ConfigMap \"a\": back from a-2000000000, which was refused, to a-1000000000",
                "ConfigMap/a: Reverted, Deployment/web went back from a-2000000000, which was refused, to a-1000000000",
            ]
        );
        assert_eq!(
            of(&previous, &newer),
            [
                "Deployment/web, ConfigMap/a: Rolled, ConfigMap \"a\" changed: from a-1000000000 to a-3000000000",
                "ConfigMap/a: Rolled, a-3000000000 is now used by Deployment/web",
            ]
        );
    }

    #[test]
    fn new_leader_reports_only_what_needs_attention() {
        use RunState::{Failed, Running, Successful, Unavailable, Undecided, Unknown};
        let world = world(&[]);
        let why = || "why".into();
        for (state, before, is_new, expected) in [
            (Unknown, None, false, None),
            (Running, None, true, Some(Reason::AnalysisBegun)),
            (Running, None, false, None),
            (Running, Some(Unknown), false, None),
            (Successful, None, false, None),
            (Successful, Some(Running), false, Some(Reason::AnalysisSucceeded)),
            (Failed(why()), None, false, Some(Reason::AnalysisFailed)),
            (Undecided(why()), None, false, Some(Reason::AnalysisHeld)),
            (Unavailable(why()), None, false, Some(Reason::AnalysisHeld)),
        ] {
            let run = AnalysisRun { name: "run".into(), state };
            let event = analysed(&world, &source("a"), &run, 1, (before.as_ref(), is_new), NOW);
            assert_eq!(event.map(|event| event.reason), expected, "{run:?}, before {before:?}");
        }
    }

    #[test]
    fn refusal_counts_workloads_that_go_back() {
        let failed = RecordedFailure { reason: "it fails".into(), at: "now".into(), previous: None };
        let cases: [(&[Option<u8>], &str); 4] = [
            (&[Some(1), None], "0 workloads go"),
            (&[Some(2), Some(1)], "1 workload goes"),
            (&[Some(2), Some(2)], "2 workloads go"),
            (&[None, Some(2)], "1 workload goes"),
        ];
        for (contents, expected) in cases {
            let records: Vec<_> =
                contents.iter().map(|content| record("web", &[used("a", *content)])).collect();
            let names = ["web", "other"];
            let workloads: Vec<_> = names.into_iter().zip(&records).collect();
            let mut world = world(&workloads);
            world.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
            let name = source("a").sibling(snapshot("a", 2));
            let event = refused(&world, &name, Some(&failed), NOW).unwrap();
            let note = format!(
                "a-2000000000 is refused: it fails. {expected} back. Correct the content, or run `kubectl confrev waves retry configmap/a`"
            );
            assert_eq!(event.note, note);
            assert_eq!(event.same, "a-2000000000 now");
            let again = refused(&world, &name, None, NOW).unwrap();
            assert_eq!(again.note, "a-2000000000 is no longer refused: workloads roll to it again");
        }
    }

    #[test]
    fn begin_and_end_of_pin_are_reported_once() {
        let (present, pinned) = (record("web", &[used("a", Some(2))]), record("web", &[used("a", Some(1))]));
        let world = world(&[("web", &pinned)]);
        let of = |before: &Record, after: &Record| {
            let (begun, ended) = (
                pins(&world, &key("web"), before, after, NOW),
                unpins(&world, &key("web"), before, after, NOW),
            );
            let versions = begun.iter().chain(&ended).all(|event| event.same == format!("{} 7", event.note));
            assert!(versions);
            (lines(&begun), lines(&ended))
        };
        let until = "keeps a-1000000000, which is not the present content of ConfigMap \"a\": confrev does not roll the workload until \
                     the source changes again, or the workload is applied with the source's name";
        let begun = vec![
            format!("Deployment/web, ConfigMap/a: Pinned, {until}"),
            "ConfigMap/a: Pinned, Deployment/web keeps a-1000000000, which is not the present content"
                .to_owned(),
        ];
        let none = Vec::<String>::new();
        assert_eq!(of(&present, &pinned), (begun, none.clone()));
        assert_eq!(of(&pinned, &pinned), (none.clone(), none.clone()));
        let ended = |what: &str| {
            vec![
                format!("Deployment/web, ConfigMap/a: Unpinned, {what}"),
                format!("ConfigMap/a: Unpinned, Deployment/web: {what}"),
            ]
        };
        assert_eq!(
            of(&pinned, &present),
            (none.clone(), ended("no longer keeps a-1000000000: uses a-2000000000"))
        );
        let live = record("web", &[used("a", None)]);
        assert_eq!(of(&pinned, &live), (none.clone(), ended("no longer keeps a-1000000000")));
        assert_eq!(of(&pinned, &record("web", &[])), (none.clone(), ended("no longer keeps a-1000000000")));
        // The content of the source came back to the one that it keeps.
        let same = pinned.clone().tied(&object("a"), |tie| tie.seen = Some(digest(1)));
        assert_eq!(
            of(&pinned, &same),
            (none.clone(), ended("a-1000000000 has the present values of ConfigMap \"a\" again"))
        );
        // Each source is reported once.
        let keyed = |content: u8| Use { whole: false, ..used("a", Some(content)) };
        let both = record("web", &[keyed(1), used("a", Some(1)), used("b", Some(1))]);
        let both = both.tied(&object("a"), |tie| tie.pinned = Some(Box::new(digest(2))));
        let moved = record("web", &[keyed(2), used("a", Some(2)), used("b", Some(2))]);
        let mut expected = ended("no longer keeps a-1000000000: uses a-2000000000");
        let of_b = expected.iter().map(|line| line.replace("ConfigMap/a", "ConfigMap/b").replace("a-", "b-"));
        expected.extend(of_b.collect::<Vec<_>>());
        assert_eq!(of(&both, &moved).1, expected);
        // A hold of the same snapshot replaces the pin, one of another does not.
        assert_eq!(of(&pinned, &record("web", &[held("a", 1)])), (none.clone(), none.clone()));
        assert_eq!(
            of(&pinned, &record("web", &[held("a", 3)])),
            (none, ended("no longer keeps a-1000000000: uses a-3000000000"))
        );
    }

    /// A workload that reads some keys keeps a snapshot until one of these keys changes.
    #[test]
    fn pin_of_keys_is_reported_once() {
        let read = ReadKey { key: "k".into(), required: true };
        let reads = || Some(Box::new(Reads { whole: false, keys: Box::new([read.clone()]) }));
        let with = |content: u8, rejected: Option<u8>| {
            record("web", &[Use { whole: false, ..used("a", Some(content)) }]).tied(&object("a"), |tie| {
                tie.reads = reads();
                tie.pinned = rejected.map(|rejected| Box::new(digest(rejected)));
            })
        };
        let world = world(&[("web", &with(1, Some(2)))]);
        let of = |before: &Record, after: &Record| lines(&pins(&world, &key("web"), before, after, NOW));
        let begun = of(&with(2, None), &with(1, Some(2)));
        assert!(begun[0].contains("until a key that the workload reads changes again, or"), "{begun:?}");
        assert!(begun[0].ends_with("including the values that it does not use now"), "{begun:?}");
        assert_eq!(begun.len(), 2);
        // Another key of the source changed: the workload rejects the same values as before.
        let earlier = with(1, Some(2)).tied(&object("a"), |tie| tie.seen = Some(digest(3)));
        assert_eq!(of(&earlier, &with(1, Some(2))).len(), 0);
        let earlier = with(3, Some(2)).tied(&object("a"), |tie| tie.seen = Some(digest(3)));
        assert_eq!(of(&earlier, &with(1, Some(2))).len(), 2, "it kept another snapshot");
        let earlier = with(1, Some(3)).tied(&object("a"), |tie| tie.seen = Some(digest(3)));
        assert_eq!(of(&earlier, &with(1, Some(2))).len(), 2, "it rejected other values");
    }

    #[test]
    fn begin_and_end_of_hold_are_reported_once() {
        let world = world(&[("web", &record("web", &[used("a", Some(2))]))]);
        let of = |before: &[Use], after: &[Use]| {
            let events = holds(&world, &key("web"), &record("web", before), &record("web", after), NOW);
            assert!(events.iter().all(|event| event.same == format!("{} 7", event.note)));
            lines(&events)
        };
        let (held_at, free) =
            ([held("a", 1), held("a", 1), used("b", Some(2))], [used("a", Some(2)), used("b", Some(2))]);
        assert_eq!(
            of(&free, &held_at),
            [
                "Deployment/web, ConfigMap/a: Held, ConfigMap \"a\" is held at a-1000000000 until annotation confrev.dev/hold is removed",
                "ConfigMap/a: Held, Deployment/web is held at a-1000000000 until annotation confrev.dev/hold is removed",
            ]
        );
        assert_eq!(of(&held_at, &held_at), Vec::<String>::new());
        assert_eq!(
            of(&held_at, &free),
            [
                "Deployment/web, ConfigMap/a: HoldEnded, ConfigMap \"a\" is no longer held at a-1000000000: uses a-2000000000",
                "ConfigMap/a: HoldEnded, Deployment/web is no longer held at a-1000000000: uses a-2000000000",
            ]
        );
        let still = of(&held_at, &[used("a", Some(1))]);
        assert_eq!(still[1], "ConfigMap/a: HoldEnded, Deployment/web is no longer held at a-1000000000");
        assert_eq!(of(&held_at, &[used("a", None)])[1], still[1]);
        assert_eq!(of(&held_at, &[])[1], still[1]);
        let moved = of(&[held("a", 1)], &[held("a", 3), held("b", 2)]);
        assert_eq!(moved.len(), 3 + usize::from(world.existing_source(&source("b")).is_some()), "{moved:?}");
        assert!(moved[0].contains("is held at a-3000000000"), "{moved:?}");
    }
}
