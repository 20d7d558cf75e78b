//! Lists, of which only little is read.

use serde::Deserialize;

use crate::kinds::WorkloadKind;

/// One page of a list, of which only names and versions are read.
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
    pub(super) resource_version: String,
    #[serde(default)]
    owner_references: Vec<ItemOwner>,
}

#[derive(Deserialize)]
struct ItemOwner {
    #[serde(default)]
    controller: bool,
}

impl Item {
    /// Whether it is a revision of another workload, which must stay as it was made: a ReplicaSet that has a controller.
    /// The webhooks leave those out too.
    pub(super) fn is_revision(&self, kind: &WorkloadKind) -> bool {
        kind.kind == "ReplicaSet" && self.metadata.owner_references.iter().any(|owner| owner.controller)
    }
}
