//! The same pages as files, for the record of an incident: no actions, no updates, no server.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    assets::ASSETS,
    links::Links,
    model::{View, row},
    overview::{self, Filter},
    settings::Settings,
    source::{self, Compared},
    workload,
};
use crate::{
    cli::{explain, failure::Failure, inventory::Inventory, objects::Scope, source_state, target::Target},
    snapshot::ObjectName,
};

/// How many pages are made at the same time.
const PAGES: usize = 8;
/// The folder of a page of a workload or a source, below that of the report.
const DEPTH: usize = 3;

/// Writes the report into a new or empty folder. Returns the number of pages.
pub(super) async fn write(
    target: &Target,
    scope: &Scope,
    folder: &Path,
    settings: &Settings,
) -> Result<usize, Failure> {
    must_be_empty(folder)?;
    let all = Inventory::read_partly(target, scope).await?;
    all.unread.warn();
    let unread: BTreeSet<_> = all.unread.resources.iter().cloned().collect();
    let namespaces: BTreeSet<_> =
        all.workloads.iter().map(|workload| workload.namespace().to_owned()).collect();
    let mut views = BTreeMap::new();
    for namespace in namespaces {
        // An inventory per namespace, as the commands read it.
        let own = Inventory::read_partly(target, &Scope::Namespace(namespace.clone())).await?;
        let mut view = View::default();
        let (inventory, of) = (&own, &Target { namespace: namespace.clone(), ..target.clone() });
        let states = stream::iter(&own.workloads).map(|workload| async move {
            let sources = source_state::of_workload(of, inventory, workload).await?;
            Ok::<_, Failure>((workload.reference(), row(inventory, workload, sources, Links::Files(0))))
        });
        view.rows = states.buffered(PAGES).try_collect().await?;
        view.inventory = own;
        views.insert(namespace, Arc::new(view));
    }
    for asset in ASSETS.iter().filter(|asset| asset.name != "idiomorph.min.js") {
        save(folder, &format!("assets/{}", asset.name), asset.text)?;
    }
    let top = Links::Files(0);
    let overview = overview::page(&views, &Filter::default(), &unread, top);
    save(folder, "index.html", &overview.render(top, &settings.about))?;
    let mut pages = 1;
    for (namespace, view) in &views {
        let target = &Target { namespace: namespace.clone(), ..target.clone() };
        let workloads = stream::iter(&view.inventory.workloads).map(|workload| async move {
            let title = workload.reference();
            let links = Links::Files(DEPTH);
            let page = workload::page(target, view, workload, &title, settings, links).await?;
            save(folder, &top.workload(namespace, &title), &page.render(links, &settings.about))
        });
        let workloads: Vec<()> = workloads.buffer_unordered(PAGES).try_collect().await?;
        let sources: BTreeSet<&ObjectName> =
            view.inventory.workloads.iter().flat_map(|one| one.sources()).collect();
        let sources = stream::iter(sources).map(|name| async move {
            let title = format!("{}/{}", name.kind.as_str(), name.name);
            let links = Links::Files(DEPTH);
            let compared = Compared::default();
            let page = source::page(target, &view.inventory, name, &title, &compared, settings, links).await;
            let text = match page {
                Ok(page) => page.render(links, &settings.about),
                // A source that never existed, or that the user may not read, is a part of the record too.
                Err(failure @ (Failure::NotFound(_) | Failure::Refused(_))) => {
                    source::unreadable(&title, namespace, &failure, links).render(links, &settings.about)
                }
                Err(failure) => return Err(failure),
            };
            save(folder, &top.source(namespace, name), &text)
        });
        let sources: Vec<()> = sources.buffer_unordered(PAGES).try_collect().await?;
        pages += workloads.len() + sources.len();
    }
    Ok(pages)
}

fn must_be_empty(folder: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(Failure::Usage(format!(
            "--output {}: the folder is not empty, and nothing was written: give a new one",
            folder.display()
        ))),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(wrong(folder, &error)),
        _ => Ok(()),
    }
}

fn save(folder: &Path, page: &str, text: &str) -> Result<(), Failure> {
    let file: PathBuf = folder.join(page);
    let parent = file.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(|error| wrong(parent, &error))?;
    std::fs::write(&file, text).map_err(|error| wrong(&file, &error))
}

fn wrong(file: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("--output: cannot write {}: {}", file.display(), explain::io_error(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_overwrites_no_file() {
        let folder = std::env::temp_dir().join(format!("confrev-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(must_be_empty(&folder).is_ok());
        save(&folder, "workloads/shop/deployment/web.html", "page").unwrap();
        let error = must_be_empty(&folder).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains("is not empty, and nothing was written"), "{error}");
        assert!(must_be_empty(&folder).is_ok(), "a folder that does not exist is made");
    }
}
