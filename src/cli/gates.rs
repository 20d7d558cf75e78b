//! Why a pending change may not reach a workload now, whatever the others do: a closed window, or a set whose sources have
//! different versions. The controller decides by the same rules.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    delay::Delay,
    failure::Failure,
    inventory::{self, Inventory, LiveSource, NamespaceSettings, OptedIn, annotation, label},
    target::Target,
};
use crate::{
    annotations,
    resolve::{Closed, Observed, SetWait, WindowOf},
    snapshot::ObjectName,
};

/// Why the content of a source may not reach the workload now; `None` if it may. `given` replaces the present sources.
pub(super) async fn of(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    content: &Observed,
    given: &BTreeMap<&ObjectName, &Observed>,
) -> Result<Option<Delay>, Failure> {
    let of_namespace = settings(target, inventory, workload.namespace()).await?.window;
    let (mut windows, mut sets) = (Vec::new(), Vec::new());
    let names: BTreeSet<_> =
        workload.record.uses.iter().filter(|used| !used.excluded).map(|used| &used.source).collect();
    for name in names {
        let observed = if name == source {
            Some(content.clone())
        } else if let Some(given) = given.get(name) {
            Some((*given).clone())
        } else {
            present(target, inventory, workload, name).await?
        };
        let Some(observed) = observed else { continue };
        if observed.stays_as_written() && observed.is_live() != Some(true) {
            continue;
        }
        let is_pending = name == source
            || (!workload.record.is_on_hold(name) && !workload.record.has_seen(name, observed.digests()));
        let window = observed.annotation(annotations::WINDOW).filter(|_| is_pending);
        windows.extend(window.map(|window| (WindowOf::Source(name.clone()), window)));
        sets.extend(observed.annotation(annotations::SET).map(|set| (name.clone(), set)));
    }
    let own = workload.record.window.as_deref().map(|window| (WindowOf::Workload, window));
    let of_namespace = of_namespace.as_deref().map(|window| (WindowOf::Namespace, window));
    let of_sources = windows.iter().map(|(of, window)| (of.clone(), window.as_str()));
    let all = own.into_iter().chain(of_namespace).chain(of_sources);
    if let Some(closed) = Closed::of(all, inventory.now()) {
        return Ok(Some(match closed {
            Closed::Invalid { .. } => Delay::Stopped(format!("held by {closed}")),
            Closed::Until { opens, reason } => Delay::Closed { reason, opens },
        }));
    }
    let wait = SetWait::of(source, sets.iter().map(|(name, set)| (name, set.as_str())));
    Ok(wait.map(|wait| Delay::Held(wait.to_string())))
}

/// A source as it is; `None` if it does not exist, or if the user may not read it.
async fn present(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    name: &ObjectName,
) -> Result<Option<Observed>, Failure> {
    let key = workload.key(name);
    match inventory.sources.get(&key) {
        Some(LiveSource::Present(present)) => Ok(Some(Observed::clone(present))),
        Some(LiveSource::Missing | LiveSource::Forbidden) => Ok(None),
        None => match inventory::source(target, &key).await {
            Err(Failure::Refused(_)) => Ok(None),
            other => other,
        },
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
            window: annotation(&found, annotations::WINDOW).map(str::to_owned),
            group: label(&found, annotations::GROUP).filter(|group| !group.is_empty()).map(str::to_owned),
            order: annotation(&found, annotations::ORDER).map(str::to_owned),
        },
        Err(error) => return Err(error),
    };
    known.insert(namespace.to_owned(), settings.clone());
    Ok(settings)
}
