//! Lists, of which only little is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Precondition;
use crate::kinds::WorkloadKind;

/// One page of a list, of which only little metadata is read.
#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    #[serde(default)]
    pub(super) items: Vec<Item>,
}

#[derive(Default, Deserialize)]
pub(super) struct PageMetadata {
    #[serde(default, rename = "continue")]
    pub(super) next: String,
}

#[derive(Deserialize)]
pub(super) struct Item {
    pub(super) metadata: ItemMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ItemMetadata {
    pub(super) name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<ItemOwner>,
}

#[derive(Deserialize)]
struct ItemOwner {
    #[serde(default)]
    controller: bool,
}

impl Item {
    /// That it carries no `enabled` label still.
    pub(super) fn unlabelled(&self) -> Precondition {
        Precondition::Unlabelled {
            has_labels: !self.metadata.labels.is_empty(),
            has_annotations: !self.metadata.annotations.is_empty(),
        }
    }

    /// Whether it is a revision of another workload, which must stay as it was made: a ReplicaSet that has a controller.
    /// The webhooks leave those out too.
    pub(super) fn is_revision(&self, kind: &WorkloadKind) -> bool {
        kind.kind == "ReplicaSet" && self.metadata.owner_references.iter().any(|owner| owner.controller)
    }
}
