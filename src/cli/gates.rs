//! What the gates ask about a workload and a source, as far as the user can read it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    failure::Failure,
    inventory::{self, Inventory, LiveSource, NamespaceSettings, OptedIn, annotation, label},
    target::Target,
};
use crate::{
    annotations,
    gate_settings::{Place, Texts},
    gates::{self, Answer, Asked},
    resolve::{Membership, Observed, Present, Record, RecordedFailure, SetVersion, SpreadPolicy, Use, Wait},
    snapshot::ObjectName,
};

/// A workload, and a source to whose content it would move.
pub(super) struct Question<'q> {
    record: &'q Record,
    used: &'q Use,
    present: Present,
    settings: Vec<(Place, Texts)>,
    /// The sources of the workload that belong to sets, each with the text of its annotation.
    sets: Vec<(ObjectName, String)>,
    /// Those that did and do not exist now, each with its set.
    missing: Vec<(ObjectName, String)>,
    refusal: Option<(String, RecordedFailure)>,
    /// Why others hold the workload.
    pub(super) wait: Option<Wait<String>>,
    now: Timestamp,
}

impl<'q> Question<'q> {
    /// Reads what the gates ask, but for the others. `None` if the workload does not use the source. `given` replaces the present sources.
    pub(super) async fn read(
        target: &Target,
        inventory: &Inventory,
        workload: &'q OptedIn,
        source: &ObjectName,
        content: &Observed,
        given: &BTreeMap<&ObjectName, &Observed>,
    ) -> Result<Option<Self>, Failure> {
        let record = &workload.record;
        let present = Present::from(content);
        let uses = || record.uses.iter().filter(|used| used.source == *source);
        let pending = uses().find(|used| record.is_pending_for(used, &present));
        let Some(used) = pending.or_else(|| uses().next()) else { return Ok(None) };
        let of_namespace = settings(target, inventory, workload.namespace()).await?.gates;
        let of_source = Texts::read(|key| content.annotation(key));
        let settings = vec![
            (Place::Workload, record.gates.clone()),
            (Place::Namespace, of_namespace),
            (Place::Source(source.clone()), of_source),
        ];
        let (mut sets, mut missing) = (Vec::new(), Vec::new());
        if content.annotation(annotations::SET).is_some() {
            let names: BTreeSet<_> = record.uses.iter().map(|used| &used.source).collect();
            for name in names {
                let observed = if name == source {
                    LiveSource::Present(Arc::new(content.clone()))
                } else if let Some(given) = given.get(name) {
                    LiveSource::Present(Arc::new((*given).clone()))
                } else {
                    self::present(target, inventory, workload, name).await?
                };
                let set = record.ties.get(name).and_then(|tie| tie.set.as_deref());
                let observed = match observed {
                    LiveSource::Present(observed) => observed,
                    LiveSource::Missing => {
                        let is_used = record.uses.iter().any(|used| used.source == *name && !used.excluded);
                        missing.extend(set.filter(|_| is_used).map(|set| (name.clone(), set.to_owned())));
                        continue;
                    }
                    LiveSource::Forbidden => continue,
                };
                let as_present = Present::from(&*observed);
                let moves = |used: &&Use| used.source == *name && as_present.mode_for(used).rolls();
                let set = observed
                    .annotation(annotations::SET)
                    .filter(|_| record.uses.iter().any(|used| moves(&used)));
                sets.extend(set.map(|set| (name.clone(), set)));
            }
        }
        let policy = content.spread_policy();
        let refusal = refused(inventory, workload.namespace(), source, (&present, &policy));
        Ok(Some(Self {
            record,
            used,
            present,
            settings,
            sets,
            missing,
            refusal,
            wait: None,
            now: inventory.now(),
        }))
    }

    /// Leaves out what was found or decided about the content.
    pub(super) fn forget_verdict(&mut self) {
        self.refusal = None;
        self.wait.take_if(|wait| matches!(wait, Wait::Bad(_) | Wait::Aborted | Wait::Refused));
    }

    /// The answer of the gates.
    pub(super) fn answer(mut self) -> Answer<String> {
        gates::answer(&mut self)
    }
}

impl Asked for Question<'_> {
    type Key = String;

    fn record(&self) -> &Record {
        self.record
    }

    fn used(&self) -> &Use {
        self.used
    }

    fn present(&self) -> &Present {
        &self.present
    }

    fn settings(&self) -> Vec<(Place, &Texts)> {
        self.settings.iter().map(|(of, texts)| (of.clone(), texts)).collect()
    }

    fn sets(&self) -> Option<Vec<(&ObjectName, Membership<'_>)>> {
        let stated = self.sets.iter().map(|(source, text)| (source, Membership::Stated(text)));
        let missing = self.missing.iter().map(|(source, set)| (source, Membership::Missing(set)));
        Some(stated.chain(missing).collect())
    }

    fn refusal(&self) -> Option<(String, &RecordedFailure)> {
        self.refusal.as_ref().map(|(snapshot, failure)| (snapshot.clone(), failure))
    }

    fn wait(&mut self) -> Option<Wait<String>> {
        self.wait.take()
    }

    fn now(&self) -> Timestamp {
        self.now
    }
}

/// The other sources of the set of a source to whose present contents the workload would move, too.
pub(super) async fn others_of_set(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    content: &Observed,
) -> Result<Vec<(ObjectName, Observed)>, Failure> {
    fn set(observed: &Observed) -> Option<String> {
        let text = observed.annotation(annotations::SET)?;
        Some(SetVersion::parse(&text)?.name.to_owned())
    }
    let (record, mut others) = (&workload.record, Vec::new());
    let Some(own) = set(content) else { return Ok(others) };
    for used in record.uses.iter().filter(|used| used.source != *source) {
        let observed = present(target, inventory, workload, &used.source).await?;
        let LiveSource::Present(observed) = observed else { continue };
        let is_pending = record.is_pending_for(used, &Present::from(&*observed));
        let is_known = others.iter().any(|(known, _)| *known == used.source);
        if is_pending && !is_known && set(&observed).as_ref() == Some(&own) {
            others.push((used.source.clone(), Observed::clone(&observed)));
        }
    }
    Ok(others)
}

/// The refusal of a content, with the refused snapshot.
pub(super) fn refused(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
) -> Option<(String, RecordedFailure)> {
    let (name, snapshot) =
        inventory.judged(namespace, source, &content.digests).filter(|_| policy.reverts)?;
    Some((name.to_owned(), snapshot.verdict()?.failed?))
}

/// A source as it is.
async fn present(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    name: &ObjectName,
) -> Result<LiveSource, Failure> {
    let key = workload.key(name);
    if let Some(known) = inventory.sources.get(&key) {
        return Ok(known.clone());
    }
    match inventory::source(target, &key).await {
        Ok(Some(found)) => Ok(LiveSource::Present(Arc::new(found))),
        Ok(None) => Ok(LiveSource::Missing),
        Err(Failure::Refused(_)) => Ok(LiveSource::Forbidden),
        Err(error) => Err(error),
    }
}

/// The settings of a namespace, read once; none if the user may not read it.
pub(super) async fn settings(
    target: &Target,
    inventory: &Inventory,
    namespace: &str,
) -> Result<NamespaceSettings, Failure> {
    let mut known = inventory.namespaces.lock().await;
    if let Some(known) = known.get(namespace) {
        return Ok(known.clone());
    }
    let settings = match target.get(&format!("/api/v1/namespaces/{namespace}")).await {
        Err(Failure::Refused(_)) | Ok(None) => NamespaceSettings::default(),
        Ok(Some(found)) => NamespaceSettings {
            gates: Texts::read(|key| annotation(&found, key)),
            group: label(&found, annotations::GROUP).filter(|group| !group.is_empty()).map(str::to_owned),
            order: annotation(&found, annotations::ORDER).map(str::to_owned),
        },
        Err(error) => return Err(error),
    };
    known.insert(namespace.to_owned(), settings.clone());
    Ok(settings)
}
