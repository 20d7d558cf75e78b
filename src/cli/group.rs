//! The group of a namespace (`confrev.dev/group`): the sources that are one change with a source, in the other namespaces.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    failure::Failure,
    history::History,
    inventory::{Inventory, OptedIn, Scope, label, text},
    output,
    target::Target,
};
use crate::{
    annotations,
    resolve::{Observed, order_of_namespace},
    snapshot::ObjectName,
};

/// The most namespaces that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// The sources of other namespaces that are one change with a source.
#[derive(Default)]
pub(super) struct Others {
    /// The name of the group.
    pub(super) group: Option<String>,
    /// The sources, each with its snapshots.
    pub(super) sources: Vec<History>,
    /// The `order` of each namespace that has one. An error says why it cannot be followed.
    pub(super) orders: Vec<(String, Result<i32, String>)>,
}

impl Others {
    /// Finds the other sources of the change. If the user may not read the group, there are none, which a warning reports.
    pub(super) async fn of(target: &Target, history: &History) -> Result<Self, Failure> {
        let own = match target.get(&format!("/api/v1/namespaces/{}", target.namespace)).await {
            Err(Failure::Refused(_)) | Ok(None) => return Ok(Self::default()),
            Ok(Some(own)) => own,
            Err(error) => return Err(error),
        };
        let Some(group) = label(&own, annotations::GROUP).filter(|group| !group.is_empty()) else {
            return Ok(Self { orders: order(&own).into_iter().collect(), ..Self::default() });
        };
        match Self::read(target, history, group).await {
            Err(Failure::Refused(reason)) => {
                output::warn(&format!(
                    "the numbers are of namespace {:?} alone, but it is in the group {group:?}: {reason}",
                    target.namespace
                ));
                Ok(Self { group: Some(group.to_owned()), ..Self::default() })
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
        let orders = namespaces.iter().filter_map(order).collect();
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
        Ok(Self { group: Some(group.to_owned()), sources, orders })
    }

    /// The present source of each other namespace.
    pub(super) fn present(&self) -> impl Iterator<Item = (&str, &Observed)> {
        self.sources.iter().filter_map(|other| Some((other.namespace.as_str(), other.present.as_ref()?)))
    }

    /// Why the `order` of a namespace cannot be followed that a workload of the change takes from it. `own`: the namespace that was
    /// asked about.
    pub(super) fn invalid_order(
        &self,
        own: &str,
        inventory: &Inventory,
        source: &ObjectName,
    ) -> Option<&str> {
        let has_source = |name: &str| name == own || self.sources.iter().any(|other| other.namespace == name);
        let counts = |name: &str| {
            let mut in_it = inventory.workloads.iter().filter(|workload| workload.namespace() == name);
            let takes = |workload: &OptedIn| {
                workload.record.pace.order.is_none() && workload.sources().contains(source)
            };
            has_source(name) && in_it.any(takes)
        };
        let mut orders = self.orders.iter().filter(|(name, _)| counts(name));
        orders.find_map(|(_, order)| order.as_ref().err().map(String::as_str))
    }

    /// Adds the workloads of the other namespaces, and what decides about their turn.
    pub(super) async fn join(&self, target: &Target, inventory: &mut Inventory) -> Result<(), Failure> {
        let valid =
            |(name, order): &(String, Result<i32, String>)| Some((name.clone(), *order.as_ref().ok()?));
        inventory.orders = self.orders.iter().filter_map(valid).collect();
        let reads = stream::iter(&self.sources).map(|other| async move {
            Inventory::read_moves(target, &Scope::Namespace(other.namespace.clone())).await
        });
        let found: Vec<_> = reads.buffered(MAX_CONCURRENT_READS).try_collect().await?;
        for other in found {
            inventory.workloads.extend(other.workloads);
            inventory.snapshots.extend(other.snapshots);
        }
        Ok(())
    }
}

/// The annotation `order` of a Namespace, with its name.
fn order(namespace: &serde_json::Value) -> Option<(String, Result<i32, String>)> {
    let order = super::inventory::annotation(namespace, annotations::ORDER)?;
    let name = text(namespace, "/metadata/name");
    Some((name.to_owned(), order_of_namespace(name, order)))
}
