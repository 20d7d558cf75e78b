//! `kubectl confrev impact`: which workloads would roll if a change were applied. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::{
    delay::Delay,
    delays,
    failure::Failure,
    flags::namespace_name,
    given, group,
    inventory::{Inventory, SNAPSHOTS},
    joining,
    manifests::{self, ManifestFlags},
    objects::{self, LiveSource, OptedIn, Scope, source_name},
    output::{self, OutputFlag, Row},
    source_state,
    target::{Flags, Target},
};
use crate::{
    annotations,
    resolve::{Facts, Mode, Observed, Plan, Present, Use},
    snapshot::{Digest, ObjectName, SourceKind},
};

/// Options of `impact`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["source", "filename", "kustomize", "opt_in"]).required(true))]
pub(super) struct ImpactOptions {
    /// A source (NAME, configmap/NAME, secret/NAME): show which workloads would roll if all of it changed.
    source: Option<String>,
    /// Show which workloads would roll if this namespace opted its workloads in, and what confrev would store.
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    opt_in: Option<String>,
    #[command(flatten)]
    manifests: ManifestFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// The effect on one workload.
#[derive(Debug, Serialize)]
pub(super) struct Effect {
    #[serde(skip)]
    show_namespace: bool,
    pub(super) namespace: String,
    pub(super) source: String,
    pub(super) workload: String,
    pub(super) rolls: bool,
    /// The workload would roll, but admission would refuse it.
    pub(super) refused: bool,
    /// Why it would not roll at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delay: Option<String>,
    /// The gate that delays it, or keeps it where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gate: Option<&'static str>,
    pub(super) why: String,
}

impl Effect {
    fn set_delay(&mut self, delay: Option<&Delay>) {
        self.delay = delay.map(ToString::to_string);
        self.gate = delay.and_then(Delay::gate);
    }
}

impl Row for Effect {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["NAMESPACE", "SOURCE", "WORKLOAD", "ROLLS", "WHY"], 5);

    fn cells(&self) -> Vec<String> {
        let namespace = if self.show_namespace { self.namespace.clone() } else { String::new() };
        let why = std::iter::once(&self.why).chain(&self.delay).map(String::as_str).collect::<Vec<_>>();
        vec![namespace, self.source.clone(), self.workload.clone(), self.word().to_owned(), why.join("; ")]
    }

    fn name(&self) -> String {
        self.workload.to_lowercase()
    }
}

impl Effect {
    /// Whether the workload would roll, in one word.
    pub(super) const fn word(&self) -> &'static str {
        match (self.rolls, self.refused, &self.delay) {
            (true, _, None) => "yes",
            (true, _, Some(_)) => "later",
            (false, true, _) => "refused",
            (false, false, _) => "no",
        }
    }
}

/// A change of a source in a namespace, with its content then; `None`: any change of the whole source.
pub(super) type ChangedSource = (ObjectName, String, Option<Observed>);

/// Runs the command.
pub(super) async fn run(options: &ImpactOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    if let Some(namespace) = &options.opt_in {
        return joining::run(&target, namespace, options.output.output).await;
    }
    let mut changes: Vec<ChangedSource> = Vec::new();
    if let Some(source) = &options.source {
        changes.push((source_name(source)?, target.namespace.clone(), None));
    }
    let all = options.manifests.read()?;
    for warning in manifests::wrong_orders(&target.kinds, &all) {
        output::warn(&warning);
    }
    for (file, object) in &all {
        let Some(source) = manifests::source(file, object)? else { continue };
        let observed = Observed::read(source.name.kind, source.json.as_bytes().to_vec())
            .map_err(|error| manifests::error(file, source.name.kind.as_str(), &source.name.name, &error))?;
        let namespace = source.namespace.unwrap_or_else(|| target.namespace.clone());
        let observed = target.under_strategies(&namespace, observed).await?;
        changes.push((source.name, namespace, Some(observed)));
    }
    let effects = effects(&target, &changes).await?;
    output::list(options.output.output, &effects, "no opted-in workload uses these sources")
}

/// The effects of changes on the workloads that use the sources.
pub(super) async fn effects(target: &Target, changes: &[ChangedSource]) -> Result<Vec<Effect>, Failure> {
    let mut effects = Vec::new();
    let show_namespace = changes.windows(2).any(|pair| pair[0].1 != pair[1].1);
    // The sources that each namespace would then have.
    let mut given: BTreeMap<&str, BTreeMap<&ObjectName, &Observed>> = BTreeMap::new();
    for (source, namespace, content) in changes {
        given.entry(namespace).or_default().extend(content.as_ref().map(|content| (source, content)));
    }
    let mut read = BTreeSet::new();
    for (source, namespace, content) in changes {
        let scope = Scope::Namespace(namespace.clone());
        let mut inventory = Inventory::read_workloads(target, &scope).await?;
        let is_used = inventory.workloads.iter().any(|workload| workload.sources().contains(source));
        let present = match objects::source(target, &(namespace.clone(), source.clone())).await {
            // The user may not read it.
            Err(Failure::Refused(_)) => None,
            Ok(None) if content.is_none() && !is_used => {
                let message =
                    format!("{source} does not exist in namespace {namespace:?}, and no workload uses it");
                return Err(Failure::NotFound(message));
            }
            other => other?,
        };
        let content_then = content.as_ref().or(present.as_ref());
        let others = match content_then.filter(|_| is_used) {
            Some(content) => group::Others::of_content(target, namespace, source, content).await?,
            None => group::Others::default(),
        };
        let own = content_then.map(Observed::spread_policy).unwrap_or_default();
        // The strictest source of a group decides.
        let policy =
            others.present().fold(own, |policy, (_, other)| policy.strictest(&other.spread_policy()));
        // The verdict on the content is on its snapshot.
        if is_used && policy.is_limited() {
            inventory.read_snapshots(target, &scope, SNAPSHOTS).await?;
        }
        if read.insert(namespace) {
            inventory.unread.warn();
        }
        others.join(target, &mut inventory).await?;
        let then = given.get(namespace.as_str()).into_iter().flatten();
        let then = then.map(|(source, content)| {
            let content = LiveSource::Present(Observed::clone(content).into());
            ((namespace.clone(), ObjectName::clone(source)), content)
        });
        inventory.sources.extend(then);
        let is_user =
            |workload: &&OptedIn| workload.namespace() == namespace && workload.sources().contains(source);
        let users: Vec<_> = inventory.workloads.iter().filter(is_user).collect();
        let first = effects.len();
        for workload in &users {
            let outcome = effect(target, workload, source, (content.as_ref(), present.as_ref())).await?;
            let (mut rolls, mut why, mut gate) = outcome.parts();
            let (mut delay, mut is_refused) = (None, false);
            if let Some(then) = content_then.filter(|_| rolls) {
                let then = (then, content.is_some());
                match delays::of_content(target, &inventory, workload, source, then).await? {
                    Ok(found) => delay = found,
                    Err(refused) => {
                        (rolls, is_refused, gate) = (false, true, refused.gate());
                        why = refused.to_string();
                    }
                }
            }
            if rolls {
                let given = given.get(namespace.as_str());
                let present = present.as_ref().filter(|_| content.is_none());
                if let Some(refusal) =
                    refusal_beside_gates(target, (workload, source), given, present).await?
                {
                    (rolls, is_refused, why, delay) = (false, true, refusal, None);
                }
            }
            let name = format!("{}/{}", source.kind.as_str(), source.name);
            let mut effect = Effect {
                show_namespace,
                namespace: namespace.clone(),
                source: name,
                workload: workload.reference(),
                rolls,
                refused: is_refused,
                delay: None,
                gate: None,
                why,
            };
            effect.set_delay(delay.as_ref());
            effect.gate = effect.gate.or(gate);
            effects.push(effect);
        }
        let rolling = effects[first..].iter().filter(|effect| effect.rolls).count();
        for effect in effects[first..].iter_mut().filter(|effect| effect.rolls && effect.delay.is_none()) {
            effect.set_delay(delays::turns(policy.max_in_flight, rolling).as_ref());
        }
    }
    Ok(effects)
}

/// Whether a workload would roll, and why or why not.
enum Outcome {
    Rolls(String),
    Stays(String),
    /// By its own settings.
    StaysBy(Delay),
}

impl Outcome {
    /// Whether the workload rolls, why or why not, and the gate of its own settings.
    fn parts(self) -> (bool, String, Option<&'static str>) {
        match self {
            Self::Rolls(why) => (true, why, None),
            Self::Stays(why) => (false, why, None),
            Self::StaysBy(delay) => (false, delay.to_string(), delay.gate()),
        }
    }
}

async fn effect(
    target: &Target,
    workload: &OptedIn,
    source: &ObjectName,
    (content, present): (Option<&Observed>, Option<&Observed>),
) -> Result<Outcome, Failure> {
    let (rolls, stays) =
        (|why: String| Ok(Outcome::Rolls(why)), |why: &str| Ok(Outcome::Stays(why.to_owned())));
    let record = &workload.record;
    let Some(used) = record.uses.iter().find(|used| used.source == *source) else {
        return stays("does not use it");
    };
    let mode = content.or(present).map_or(Mode::Snapshot, |content| Present::from(content).mode_for(used));
    let as_written = match mode {
        Mode::Bound => {
            Some("it is bound to its revisions and stays as written: no workload rolls to its change")
        }
        Mode::AsWritten => Some("its references stay as written: pods read the change when they start"),
        Mode::Live | Mode::Snapshot => None,
    };
    if let Some(why) = as_written {
        return stays(why);
    }
    if !workload.kind.rolls {
        return stays(&format!("a stored {} never changes", workload.kind));
    }
    if content.is_some_and(|content| record.has_seen(source, content.digests())) {
        return stays("it has already taken this content into account");
    }
    if let Some(own) = delays::of_workload(record, used) {
        return Ok(Outcome::StaysBy(own));
    }
    let is_unresolved_secret = source.kind == SourceKind::Secret && used.snapshot.is_none() && !used.live;
    if is_unresolved_secret
        && present.is_some()
        && let Some(delay @ Delay::SecretsOff) = delays::probe(target, workload, Some(source)).await
    {
        return stays(&format!("its references stay as written: {delay}"));
    }
    let Some(content) = content else {
        let why =
            if used.whole { "it uses the whole source" } else { "it uses some keys: only if those change" };
        let end = if record.pinned(source).is_some() { ENDS_PIN } else { "" };
        return rolls(format!("{why}{end}"));
    };
    let (held, from) = match &used.snapshot {
        _ if mode == Mode::Live => (source.clone(), "the source is live: every pod restarts".to_owned()),
        Some(snapshot) => (ObjectName::new(source.kind, snapshot.clone()), format!("from {snapshot}")),
        None => return rolls("it is not resolved yet".to_owned()),
    };
    let held = match objects::source(target, &workload.key(&held)).await {
        Err(Failure::Refused(_)) => return rolls(format!("{from}, unless the content is the same")),
        held => held?,
    };
    if held.as_ref().is_some_and(|held| source_state::reads_the_same(workload, source, held, content)) {
        return stays("the keys that it reads do not change");
    }
    let rejected = record.pinned(source).zip(record.keys_of(source));
    if rejected.is_some_and(|(pinned, keys)| content.digests_of(Some(&keys)).judge(pinned) == Some(true)) {
        return stays("the keys that it reads do not change: its undo or pin stays");
    }
    let key = record.seen(source).and_then(Digest::key);
    let held = held.as_ref().and_then(|held| held.digests().iter().find(|digest| digest.key() == key));
    let is_pinned = record.keeps_other(used, held);
    rolls(if is_pinned { from + ENDS_PIN } else { from })
}

/// Added to the reason of a roll that ends an undo or a pin.
const ENDS_PIN: &str = "; this ends its undo or pin: it rolls to the whole present content";

/// Why a roll that no gate holds would be refused; `None` if it would not, or if that cannot be known. `given`: the contents that replace
/// the present ones; `present`: the content of the source if nothing replaces it.
async fn refusal_beside_gates(
    target: &Target,
    (workload, source): (&OptedIn, &ObjectName),
    given: Option<&BTreeMap<&ObjectName, &Observed>>,
    present: Option<&Observed>,
) -> Result<Option<String>, Failure> {
    if let Some(given) = given
        && let Some(refusal) = refusal(target, workload, given).await?
    {
        return Ok(Some(refusal));
    }
    // What refuses a change that waits may refuse the next one, too.
    if present.is_none_or(|present| workload.record.has_seen(source, present.digests())) {
        return Ok(None);
    }
    let probed = delays::probe(target, workload, None).await;
    Ok(probed.filter(|delay| matches!(delay, Delay::Refused(_))).map(|delay| delay.to_string()))
}

/// Why admission would refuse the roll, as with `missing: deny`; `None` if it would not, or if that cannot be known.
/// This runs admission's own decision, with the content of `given` in place of the current sources.
async fn refusal(
    target: &Target,
    workload: &OptedIn,
    given: &BTreeMap<&ObjectName, &Observed>,
) -> Result<Option<String>, Failure> {
    let mut poked = serde_json::Value::clone(&workload.value);
    poked["metadata"]["annotations"][annotations::ROLL] =
        Plan::every(jiff::Timestamp::now(), true).to_value().into();
    // If snapshots of Secrets are off, no template names one.
    let of_secret = |used: &Use| used.source.kind == SourceKind::Secret && used.snapshot.is_some();
    let secrets = workload.record.uses.iter().any(of_secret);
    let update = (&workload.kind, &*workload.value, &poked);
    let decided =
        given::decide(target, workload.namespace(), update, secrets, given, &mut Facts::default()).await?;
    Ok(decided.and_then(|decision| decision.denial))
}
