//! The group of a namespace (`confrev.dev/group`): the sources that are one change with a source, in the other namespaces.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{
    failure::Failure,
    history::History,
    inventory::Inventory,
    objects::{LiveSource, Scope, label, text},
    output,
    target::Target,
    world::settings_of,
};
use crate::{annotations, resolve::Observed, snapshot::ObjectName, world::NamespaceSettings};

/// The most namespaces that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// Whether the namespace is in a group, so that a source without settings may follow others. False if the user may not read it.
pub(super) async fn is_grouped(target: &Target) -> Result<bool, Failure> {
    Ok(own_namespace(target).await?.is_some_and(|own| group_of(&own).is_some()))
}

/// The namespace; `None` if it does not exist, or the user may not read it.
async fn own_namespace(target: &Target) -> Result<Option<Value>, Failure> {
    match target.get(&format!("/api/v1/namespaces/{}", target.namespace)).await {
        Err(Failure::Refused(_)) => Ok(None),
        found => found,
    }
}

/// The group of a Namespace.
fn group_of(namespace: &Value) -> Option<&str> {
    label(namespace, annotations::GROUP).filter(|group| !group.is_empty())
}

/// The sources of other namespaces that are one change with a source.
#[derive(Default)]
pub(super) struct Others {
    /// The name of the group.
    pub(super) group: Option<String>,
    /// The sources, each with its snapshots.
    pub(super) sources: Vec<History>,
    /// The settings of the namespaces.
    pub(super) settings: BTreeMap<String, NamespaceSettings>,
}

impl Others {
    /// Finds the other sources of the change. If the user may not read the group, there are none, which a warning reports.
    pub(super) async fn of(target: &Target, history: &History) -> Result<Self, Failure> {
        let Some(own) = own_namespace(target).await? else { return Ok(Self::default()) };
        let Some(group) = group_of(&own) else {
            return Ok(Self { settings: [named(&own)].into(), ..Self::default() });
        };
        match Self::read(target, history, group).await {
            Err(Failure::Refused(reason)) => {
                output::warn(&format!(
                    "the numbers are of namespace {:?} alone, but it is in the group {group:?}: {reason}",
                    target.namespace
                ));
                let settings = [named(&own)].into();
                Ok(Self { group: Some(group.to_owned()), settings, ..Self::default() })
            }
            other => other,
        }
    }

    /// Finds the sources of other namespaces that have this content, which the source may get.
    pub(super) async fn of_content(
        target: &Target,
        namespace: &str,
        source: &ObjectName,
        content: &Observed,
    ) -> Result<Self, Failure> {
        let target = Target { namespace: namespace.to_owned(), ..target.clone() };
        let (source, present) = (source.clone(), Some(content.clone()));
        let history = History { namespace: namespace.to_owned(), source, present, snapshots: Vec::new() };
        Self::of(&target, &history).await
    }

    async fn read(target: &Target, history: &History, group: &str) -> Result<Self, Failure> {
        let selector = format!("{}={group}", annotations::GROUP);
        let namespaces = target.list("/api/v1/namespaces", "Namespace", &selector).await?;
        let settings = namespaces.iter().map(named).collect();
        let others = namespaces.iter().map(|namespace| text(namespace, "/metadata/name").to_owned());
        let others = others.filter(|name| *name != target.namespace);
        let reads = stream::iter(others).map(|namespace| async move {
            let target = Target { namespace, ..target.clone() };
            match History::read(&target, history.source.clone()).await {
                Err(Failure::NotFound(_)) => Ok(None),
                other => other.map(Some),
            }
        });
        let found: Vec<_> = reads.buffered(MAX_CONCURRENT_READS).try_collect().await?;
        let is_same = |other: &History| {
            other.present.as_ref().zip(history.present.as_ref()).is_some_and(|(a, b)| a.same_content(b))
        };
        let sources = found.into_iter().flatten().filter(is_same).collect();
        Ok(Self { group: Some(group.to_owned()), sources, settings })
    }

    /// The present source of each other namespace.
    pub(super) fn present(&self) -> impl Iterator<Item = (&str, &Observed)> {
        self.sources.iter().filter_map(|other| Some((other.namespace.as_str(), other.present.as_ref()?)))
    }

    /// Adds the workloads of the other namespaces, and what decides about their turn.
    pub(super) async fn join(&self, target: &Target, inventory: &mut Inventory) -> Result<(), Failure> {
        inventory.namespaces.clone_from(&self.settings);
        let reads = stream::iter(&self.sources).map(|other| async move {
            Inventory::read_moves(target, &Scope::Namespace(other.namespace.clone())).await
        });
        let found: Vec<_> = reads.buffered(MAX_CONCURRENT_READS).try_collect().await?;
        for other in found {
            inventory.workloads.extend(other.workloads);
            inventory.snapshots.extend(other.snapshots);
        }
        for History { namespace, source, present, .. } in &self.sources {
            let present = present.clone().map(|present| LiveSource::Present(present.into()));
            inventory.sources.extend(present.map(|present| ((namespace.clone(), source.clone()), present)));
        }
        Ok(())
    }
}

/// The name of a Namespace, with its settings.
fn named(namespace: &Value) -> (String, NamespaceSettings) {
    (text(namespace, "/metadata/name").to_owned(), settings_of(namespace))
}
