//! Follows the collections by watches, and keeps the store up to date.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use kube::core::WatchEvent;
use serde::Deserialize as _;
use serde_json::{Value, value::RawValue};

use super::{
    model::Model,
    parts::Part,
    store::{PartId, Store},
};
use crate::cluster::{ApiError, Listed, OPEN};

/// How long to wait before looking again for a kind that is not installed, or that the user may not list.
const AGAIN: Duration = Duration::from_secs(30);
/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that is silent for longer is dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(OPEN as u64 + 10);

/// Follows all collections forever. They are listed one after the other, workloads first.
pub(super) async fn all(model: Arc<Model>) {
    let mut tasks = tokio::task::JoinSet::new();
    for (id, part) in model.parts.iter().cloned().enumerate() {
        let Some(kind) = part.source_kind() else {
            let listed = list(&model, id, &part).await;
            tasks.spawn(follow(Arc::clone(&model), id, part, listed));
            continue;
        };
        let model = Arc::clone(&model);
        tasks.spawn(async move {
            // Secrets are read only if a workload uses one.
            model.uses(kind).await;
            let listed = list(&model, id, &part).await;
            follow(model, id, part, listed).await;
        });
    }
    model.listed();
    while tasks.join_next().await.is_some() {}
}

/// Lists a collection into the store. Returns the version to watch from.
async fn list(model: &Model, id: PartId, part: &Part) -> Result<String, ApiError> {
    let of = part.listed(&model.scope);
    let (mut pages, mut version, mut found) = (model.target.api.pages(&of), String::new(), Vec::new());
    let read: Result<(), ApiError> = async {
        while let Some(page) = pages.next().await? {
            // An object that cannot be read is left out, as in the commands.
            let items = page.items().filter_map(|item| serde_json::from_str::<Value>(item).ok());
            let small = |store: &Store| items.filter_map(|item| store.small(part, item).ok()).collect();
            let small: Vec<_> = model.read_store(small);
            found.extend(small);
            version.clone_from(&page.resource_version);
        }
        Ok(())
    }
    .await;
    match read {
        Err(error) if error.is_not_found() => {
            model.with_store(|store| store.replace((id, part), Vec::new()));
            Err(error)
        }
        Err(error) => {
            if error.is_missing_right() {
                model.with_store(|store| store.refuse(part));
            }
            Err(error)
        }
        Ok(()) => {
            model.with_store(|store| store.replace((id, part), found));
            Ok(version)
        }
    }
}

async fn follow(model: Arc<Model>, id: PartId, part: Part, mut listed: Result<String, ApiError>) {
    let of = part.listed(&model.scope);
    let mut pause = FIRST_PAUSE;
    loop {
        match listed {
            Ok(version) => {
                pause = FIRST_PAUSE;
                watch(&model, &of, (id, &part), version).await;
                tokio::time::sleep(pause).await;
            }
            Err(error) if error.is_not_found() || error.is_missing_right() => {
                tokio::time::sleep(AGAIN).await;
                if let Part::Sources(kind) = part {
                    model.with_store(|store| store.forget_sources(kind));
                }
            }
            Err(_) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        listed = list(&model, id, &part).await;
    }
}

/// Watches until the collection has to be listed again.
async fn watch(model: &Model, of: &Listed, (id, part): (PartId, &Part), mut version: String) {
    loop {
        let Ok(events) = model.target.api.watch(of, &version).await else { return };
        let mut events = std::pin::pin!(events);
        loop {
            let event = match tokio::time::timeout(LONGEST_SILENCE, events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                // The API server ends each watch after some time.
                Ok(Ok(None)) => break,
                Ok(Err(_)) | Err(_) => return,
            };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let Some(object) = parse(&object) else { continue };
                    version = version_of(&object, version);
                    model.with_store(|store| store.set((id, part), object));
                }
                WatchEvent::Deleted(object) => {
                    let Some(object) = parse(&object) else { continue };
                    version = version_of(&object, version);
                    model.with_store(|store| store.remove((id, part), &object));
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(_) => return,
            }
        }
    }
}

fn parse(object: &RawValue) -> Option<Value> {
    Value::deserialize(object).ok()
}

fn version_of(object: &Value, before: String) -> String {
    object["metadata"]["resourceVersion"].as_str().map_or(before, str::to_owned)
}
