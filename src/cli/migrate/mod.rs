//! `kubectl confrev migrate`: what other tools roll, and what becomes of it.

mod followed;
mod migration;
mod reloader;
mod tools;

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args, ValueEnum as _};
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    followed::Marks,
    migration::{Found, Migration, Tool},
    reloader::{is_marked, of_reloader},
};
use super::{
    failure::Failure,
    inventory,
    manifests::{self, ManifestFlags},
    objects::{Scope, belongs_to_workload, label, opt_in_of, text},
    output::{self, OutputFlag, OutputFormat, Row},
    render::{is_namespace, workload_kind},
    target::{Flags, Target},
};
use crate::{
    annotations,
    cluster::Listed,
    kinds::WorkloadKind,
    resolve::{NamespaceOptIn, Workload},
    snapshot::{ObjectName, SourceKind},
    world::Inherited,
};

/// Options of `migrate`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["filename", "kustomize"]))]
pub(super) struct MigrateOptions {
    /// Only what these tools wrote. May be given more than once. Default: all of them.
    #[arg(long, value_enum, value_name = "TOOL", value_delimiter = ',')]
    from: Vec<Tool>,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "input"])]
    all_namespaces: bool,
    /// Only workloads with these labels.
    #[arg(
        short = 'l',
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "SELECTOR",
        conflicts_with = "input"
    )]
    selector: String,
    /// Replace the annotations of other tools by settings of confrev, unless the write would restart pods. Without this flag, nothing is
    /// written.
    #[arg(short, long, conflicts_with_all = ["input", "output"])]
    yes: bool,
    /// Also opt in each workload by its own label, and remove what the tool left in its pod template: each restarts once.
    #[arg(long)]
    opt_in: bool,
    /// Read manifests in place of the cluster. With -o yaml or -o json, print them as they become.
    #[command(flatten)]
    manifests: ManifestFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// One thing of another tool on an object, and what becomes of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MigrationRow {
    namespace: String,
    object: String,
    tool: Tool,
    found: String,
    becomes: String,
}

impl Row for MigrationRow {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["NAMESPACE", "OBJECT", "FOUND", "BECOMES", "TOOL"], 4);

    fn cells(&self) -> Vec<String> {
        vec![
            self.namespace.clone(),
            self.object.clone(),
            self.found.clone(),
            self.becomes.clone(),
            self.tool.to_possible_value().map_or_else(String::new, |tool| tool.get_name().to_owned()),
        ]
    }

    fn name(&self) -> String {
        self.object.to_lowercase()
    }
}

/// A workload that comes from another tool.
struct Migrated {
    namespace: String,
    /// Kind and name.
    object: String,
    path: String,
    found: Vec<Found>,
    asks_for_secrets: bool,
    /// Why it stays as it is.
    blocked: Option<String>,
    /// A JSON patch.
    operations: Vec<Value>,
}

impl Migrated {
    /// What becomes of a workload in a namespace that says this about its workloads; `None` if nothing of another tool is on it.
    fn of(
        kind: &WorkloadKind,
        value: &Value,
        (tools, marks, inherited): (&BTreeSet<Tool>, &Marks, &Inherited),
        opts_in: bool,
        of_namespace: Option<NamespaceOptIn>,
    ) -> Option<Self> {
        let workload = Workload::read(kind, value).ok()?;
        let workload = inherited.workload(text(value, "/metadata/namespace"), workload);
        let migration = Migration::of(&workload, value, tools, marks);
        if migration.found.is_empty() {
            return None;
        }
        let namespace = text(value, "/metadata/namespace").to_owned();
        let collection = Scope::Namespace(namespace.clone()).collection(&kind.api_version(), &kind.plural);
        Some(Self {
            object: format!("{}/{}", kind.kind, workload.name()),
            path: format!("{collection}/{}", workload.name()),
            operations: migration.patch(value, &kind.template_pointer(), opts_in),
            blocked: migration.blocked(value, opts_in, of_namespace),
            asks_for_secrets: migration.asks_for_secrets,
            found: migration.found,
            namespace,
        })
    }

    /// `Deployment/web in namespace shop`; without the namespace if the manifest has none.
    fn display(&self) -> String {
        if self.namespace.is_empty() {
            self.object.clone()
        } else {
            format!("{} in namespace {}", self.object, self.namespace)
        }
    }

    /// Whether it changes.
    fn changes(&self) -> bool {
        self.blocked.is_none() && !self.operations.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = MigrationRow> {
        self.found.iter().map(|found| MigrationRow {
            namespace: self.namespace.clone(),
            object: self.object.clone(),
            tool: found.tool,
            found: found.what.clone(),
            becomes: found.becomes.clone(),
        })
    }
}

/// Runs the command.
pub(super) async fn run(options: &MigrateOptions) -> Result<(), Failure> {
    let given = options.from.iter().copied().collect::<BTreeSet<_>>();
    let tools = if given.is_empty() { Tool::value_variants().iter().copied().collect() } else { given };
    if !options.manifests.is_empty() {
        return of_manifests(options, &tools);
    }
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let all = of_cluster(&target, &scope, options, &tools).await?;
    if all.is_empty() && !options.all_namespaces {
        target.require_namespace().await?;
    }
    if options.yes {
        return write(&target, &all).await;
    }
    show(&all, options.output.output)?;
    let changing = all.iter().filter(|one| one.changes()).count();
    if matches!(options.output.output, OutputFormat::Table | OutputFormat::Wide) && !all.is_empty() {
        let restart = if options.opt_in { "each restarts once" } else { "nothing restarts" };
        output::note(&format!(
            "nothing was written; --yes changes {}, and {restart}",
            output::count(changing, "workload")
        ));
    }
    note(&all);
    Ok(())
}

fn show(all: &[Migrated], format: OutputFormat) -> Result<(), Failure> {
    let rows: Vec<_> = all.iter().flat_map(Migrated::rows).collect();
    output::list(format, &rows, "nothing of another tool was found")
}

/// Names what is not migrated, and why, and what the installation needs.
fn note(all: &[Migrated]) {
    for one in all {
        if let Some(why) = &one.blocked {
            output::warn(&format!("{} stays as it is: {why}", one.display()));
        }
    }
    if all.iter().any(|one| one.asks_for_secrets && one.changes()) {
        output::note(&format!(
            "{}: true has an effect only if the installation makes snapshots of Secrets (--secrets)",
            annotations::SECRETS
        ));
    }
}

/// Makes the writes, each on its own: one that is refused stops no other.
async fn write(target: &Target, all: &[Migrated]) -> Result<(), Failure> {
    let (mut written, mut failed) = (0, 0);
    for one in all.iter().filter(|one| one.changes()) {
        let patch = Value::Array(one.operations.clone());
        match target.patch(&one.path, "application/json-patch+json", &patch, false).await {
            Ok(_) => {
                output::print_line(&format!("{} migrated", one.display()))?;
                written += 1;
            }
            Err(error) => {
                output::warn(&format!("{}: {error}", one.display()));
                failed += 1;
            }
        }
    }
    note(all);
    output::note(&format!("migrated: {}", output::count(written, "workload")));
    left(all, failed)
}

/// An error if workloads stay as they are. `failed`: how many writes failed.
fn left(all: &[Migrated], failed: usize) -> Result<(), Failure> {
    let left = failed + all.iter().filter(|one| one.blocked.is_some()).count();
    if left == 0 {
        return Ok(());
    }
    let left = output::count(left, "workload");
    Err(Failure::Refused(format!(
        "not migrated: {left}; the warnings say why, and the other tool still serves them"
    )))
}

/// What becomes of the workloads of a cluster.
async fn of_cluster(
    target: &Target,
    scope: &Scope,
    options: &MigrateOptions,
    tools: &BTreeSet<Tool>,
) -> Result<Vec<Migrated>, Failure> {
    let mut workloads = Vec::new();
    inventory::enter(target, scope).await?;
    for kind in target.kinds.iter() {
        let collection = scope.collection(&kind.api_version(), &kind.plural);
        // A part would mislead: a tool is uninstalled if nothing of it is found.
        let found = target.try_list(&collection, &kind.kind, &options.selector).await;
        let found = found.map_err(|error| target.failure_of_selector(error, &options.selector))?;
        let own = found.into_iter().filter(|value| !belongs_to_workload(value));
        workloads.extend(own.map(|value| (kind, value)));
    }
    let marks = if tools.contains(&Tool::Reloader) {
        marks(target, scope, &workloads).await?
    } else {
        BTreeMap::new()
    };
    let (unmarked, inherited) = (Marks::default(), target.strategies.inherited());
    let mut namespaces = BTreeMap::new();
    let mut all = Vec::new();
    for (kind, value) in &workloads {
        let namespace = text(value, "/metadata/namespace");
        if !namespaces.contains_key(namespace) {
            let found = target.get(&format!("/api/v1/namespaces/{namespace}")).await?.unwrap_or_default();
            namespaces.insert(namespace.to_owned(), opt_in_of(&found));
        }
        let of_namespace = namespaces.get(namespace).copied();
        let known = (tools, marks.get(namespace).unwrap_or(&unmarked), &inherited);
        let mut one = Migrated::of(kind, value, known, options.opt_in, of_namespace);
        if let Some(stored) = one.as_mut().filter(|_| !kind.rolls) {
            stored.blocked = Some("a stored Job never changes: opt in its manifest".to_owned());
        }
        all.extend(one);
    }
    all.sort_by(|one, other| (&one.namespace, &one.object).cmp(&(&other.namespace, &other.object)));
    Ok(all)
}

/// What the sources of each namespace say to Reloader. They are listed only if a workload of their namespace has an annotation of it.
async fn marks(
    target: &Target,
    scope: &Scope,
    workloads: &[(&WorkloadKind, Value)],
) -> Result<BTreeMap<String, Marks>, Failure> {
    let is_of_reloader = |(kind, value): &&(&WorkloadKind, Value)| {
        let template = value.pointer(&kind.template_pointer()).unwrap_or(&Value::Null);
        [value, template].iter().any(|of| of_reloader(&of["metadata"]["annotations"]).next().is_some())
    };
    let namespaces = workloads.iter().filter(is_of_reloader);
    let namespaces = namespaces.map(|(_, value)| text(value, "/metadata/namespace").to_owned());
    let mut marks: BTreeMap<_, _> = namespaces.map(|namespace| (namespace, Marks::default())).collect();
    if marks.is_empty() {
        return Ok(marks);
    }
    for kind in [SourceKind::ConfigMap, SourceKind::Secret] {
        let collection = scope.collection("v1", kind.plural());
        let of = Listed { collection, selector: String::new(), only: None, metadata_only: true };
        let mut pages = target.api.pages(&of);
        loop {
            let page = match pages.next().await {
                Err(error) if error.is_missing_right() => {
                    for marks in marks.values_mut() {
                        marks.unread.insert(kind);
                    }
                    break;
                }
                other => other.map_err(|error| target.failure(error))?,
            };
            let Some(page) = page else { break };
            for item in page.items().filter_map(|item| serde_json::from_str::<Value>(item).ok()) {
                if let Some(marks) = marks.get_mut(text(&item, "/metadata/namespace")) {
                    mark(marks, ObjectName::new(kind, text(&item, "/metadata/name")), &item);
                }
            }
        }
    }
    Ok(marks)
}

/// Records what a source says to Reloader.
fn mark(marks: &mut Marks, source: ObjectName, value: &Value) {
    if is_marked(value, "match") {
        marks.matching.insert(source.clone());
    }
    if label(value, annotations::ENABLED) == Some("false") {
        marks.left_alone.insert(source.clone());
    }
    if is_marked(value, "ignore") {
        marks.ignored.insert(source);
    }
}

/// Prints what becomes of the workloads of manifests, or the manifests as they become.
fn of_manifests(options: &MigrateOptions, tools: &BTreeSet<Tool>) -> Result<(), Failure> {
    let kinds = options.flags.kinds.in_force();
    let mut all = options.manifests.read()?;
    let namespace = |object: &Value| text(object, "/metadata/namespace").to_owned();
    let mut marks: BTreeMap<String, Marks> = BTreeMap::new();
    let mut namespaces = BTreeMap::new();
    for (file, object) in &all {
        if is_namespace(object) {
            namespaces.insert(text(object, "/metadata/name").to_owned(), opt_in_of(object));
        }
        let marks = marks.entry(namespace(object)).or_default();
        let known = marks.only.get_or_insert_default();
        if let Some(source) = manifests::source(file, object)? {
            known.insert(source.name.clone());
            mark(marks, source.name, object);
        }
    }
    let (mut found, inherited) = (Vec::new(), Inherited::default());
    for (file, object) in &mut all {
        let Some(kind) = workload_kind(&kinds, object) else { continue };
        let known = (tools, &marks[&namespace(object)], &inherited);
        let of_namespace = namespaces.get(&namespace(object)).copied();
        let Some(one) = Migrated::of(kind, object, known, options.opt_in, of_namespace) else { continue };
        if one.changes() {
            apply(object, &one.operations)
                .map_err(|error| manifests::error(file, &kind.kind, &one.object, &error))?;
        }
        found.push(one);
    }
    match options.output.output {
        OutputFormat::Yaml => output::yaml(&all.into_iter().map(|(_, object)| object).collect::<Vec<_>>())?,
        OutputFormat::Json => {
            let items: Vec<_> = all.into_iter().map(|(_, object)| object).collect();
            output::json(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        }
        other => {
            show(&found, other)?;
            note(&found);
            return Ok(());
        }
    }
    note(&found);
    left(&found, 0)
}

fn apply(object: &mut Value, operations: &[Value]) -> Result<(), String> {
    let patch = serde_json::from_value::<json_patch::Patch>(Value::Array(operations.to_vec()));
    let patch = patch.map_err(|error| error.to_string())?;
    json_patch::patch(object, &patch).map_err(|error| error.to_string())
}
