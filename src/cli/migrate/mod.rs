//! `kubectl confrev migrate`: what other tools roll, and what becomes of it.

mod followed;
mod migration;
mod reloader;
mod tools;

use std::collections::{BTreeMap, BTreeSet};

use clap::{ArgGroup, Args};
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    followed::Matching,
    migration::{Found, Migration, Tool},
};
use super::{
    failure::Failure,
    manifests::{self, ManifestFlags},
    objects::{Scope, annotation, belongs_to_workload, text},
    output::{self, OutputFlag, OutputFormat, Row},
    render::workload_kind,
    target::{Flags, Target},
};
use crate::{
    annotations::{self, pointer_token},
    cluster::{ApiError, Listed},
    kinds::{Kinds, WorkloadKind},
    resolve::Workload,
    snapshot::{ObjectName, SourceKind},
};

/// The annotation by which a source tells Reloader to restart the workloads that search for it.
const MATCH: &str = "reloader.stakater.com/match";
/// The annotation by which a source tells Reloader to restart nothing.
const IGNORE: &str = "reloader.stakater.com/ignore";
/// What becomes of a source with that annotation.
const LEFT_ALONE: &str = "false";

/// Options of `migrate`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["filename", "kustomize"]))]
pub(super) struct MigrateOptions {
    /// Only what these tools wrote. May be given more than once. Default: all of them.
    #[arg(long, value_enum, value_name = "TOOL", value_delimiter = ',')]
    from: Vec<Tool>,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Only workloads with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true, value_name = "SELECTOR")]
    selector: String,
    /// Replace the annotations of other tools by settings of confrev, unless the write would restart pods. Without this flag, nothing is
    /// written.
    #[arg(short, long, conflicts_with = "input")]
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
        let tool = format!("{:?}", self.tool).to_lowercase();
        vec![self.namespace.clone(), self.object.clone(), self.found.clone(), self.becomes.clone(), tool]
    }

    fn name(&self) -> String {
        self.object.to_lowercase()
    }
}

/// An object that comes from another tool.
struct Migrated {
    namespace: String,
    /// Kind and name.
    object: String,
    path: String,
    template: Option<String>,
    value: Value,
    found: Vec<Found>,
    blocked: Option<String>,
    /// A JSON patch.
    operations: Vec<Value>,
}

impl Migrated {
    fn rows(&self) -> impl Iterator<Item = MigrationRow> {
        self.found.iter().map(|found| MigrationRow {
            namespace: self.namespace.clone(),
            object: self.object.clone(),
            tool: found.tool,
            found: found.what.clone(),
            becomes: found.becomes.clone(),
        })
    }

    /// Its pod template in this state of it; null if it has none.
    fn template_in<'v>(&self, value: &'v Value) -> &'v Value {
        self.template.as_deref().and_then(|pointer| value.pointer(pointer)).unwrap_or(&Value::Null)
    }
}

/// Runs the command.
pub(super) async fn run(options: &MigrateOptions) -> Result<(), Failure> {
    let every = [Tool::Reloader, Tool::Wave, Tool::Checksum, Tool::Kustomize];
    let tools = if options.from.is_empty() { &every[..] } else { &options.from[..] };
    if !options.manifests.is_empty() {
        return of_manifests(options, tools);
    }
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let all = of_cluster(&target, &scope, options, tools).await?;
    if all.is_empty() && !options.all_namespaces {
        target.require_namespace().await?;
    }
    if options.yes {
        return write(&target, &all, options.opt_in).await;
    }
    let rows: Vec<_> = all.iter().flat_map(Migrated::rows).collect();
    output::list(options.output.output, &rows, "nothing of another tool was found")?;
    if matches!(options.output.output, OutputFormat::Table | OutputFormat::Wide) && !rows.is_empty() {
        let changed = all.iter().filter(|one| !one.operations.is_empty() && one.blocked.is_none()).count();
        let restart = if options.opt_in { "each restarts once" } else { "nothing restarts" };
        output::note(&format!(
            "nothing was written; --yes changes {}, and {restart}",
            output::count(changed, "object")
        ));
    }
    blocked(&all);
    Ok(())
}

/// Names what is not migrated, and why.
fn blocked(all: &[Migrated]) {
    for one in all {
        if let Some(why) = &one.blocked {
            output::warn(&format!("{} in namespace {} stays as it is: {why}", one.object, one.namespace));
        }
    }
}

/// Makes the writes, each on its own: one that is refused stops no other.
async fn write(target: &Target, all: &[Migrated], opts_in: bool) -> Result<(), Failure> {
    let (mut written, mut failed) = (0, 0);
    for one in all.iter().filter(|one| one.blocked.is_none() && !one.operations.is_empty()) {
        match write_one(target, one, opts_in).await {
            Ok(()) => {
                output::print_line(&format!("{} in namespace {} migrated", one.object, one.namespace))?;
                written += 1;
            }
            Err(error) => {
                output::warn(&format!("{} in namespace {}: {error}", one.object, one.namespace));
                failed += 1;
            }
        }
    }
    blocked(all);
    output::note(&format!("{} migrated", output::count(written, "object")));
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::Refused(format!("{} were not migrated: see the warnings", output::count(failed, "object"))))
}

async fn write_one(target: &Target, one: &Migrated, opts_in: bool) -> Result<(), Failure> {
    let mut operations = vec![json!({
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": one.value["metadata"]["resourceVersion"],
    })];
    operations.extend(one.operations.iter().cloned());
    let patch = Value::Array(operations);
    let send = |dry_run| target.patch(&one.path, "application/json-patch+json", &patch, dry_run);
    if !opts_in {
        let then = send(true).await?;
        if one.template_in(&then) != one.template_in(&one.value) {
            let why = "it is opted in, so the write would restart its pods: give --opt-in to accept that";
            return Err(Failure::Refused(why.to_owned()));
        }
    }
    match send(false).await {
        Err(Failure::Api(error)) if error.is_conflict() => {
            Err(Failure::Refused("it was changed at the same time: try again".to_owned()))
        }
        other => other.map(drop),
    }
}

/// What becomes of the objects of a cluster.
async fn of_cluster(
    target: &Target,
    scope: &Scope,
    options: &MigrateOptions,
    tools: &[Tool],
) -> Result<Vec<Migrated>, Failure> {
    let mut workloads = Vec::new();
    // A stored Job never changes.
    for kind in target.kinds.iter().filter(|kind| kind.kind != "Job") {
        let collection = scope.collection(&kind.api_version(), &kind.plural);
        let found = target.list(&collection, &kind.kind, &options.selector).await?;
        workloads
            .extend(found.into_iter().filter(|value| !belongs_to_workload(value)).map(|value| (kind, value)));
    }
    let (sources, marks) = if tools.contains(&Tool::Reloader) {
        of_sources(target, scope, &workloads).await?
    } else {
        (Vec::new(), BTreeMap::new())
    };
    let mut all: Vec<_> = workloads
        .into_iter()
        .filter_map(|(kind, value)| {
            let marked = marks.get(text(&value, "/metadata/namespace")).cloned().unwrap_or_default();
            of_workload(kind, value, tools, &marked, options.opt_in)
        })
        .chain(sources)
        .collect();
    all.sort_by(|one, other| (&one.namespace, &one.object).cmp(&(&other.namespace, &other.object)));
    Ok(all)
}

/// What becomes of a workload; `None` if nothing of another tool is on it.
fn of_workload(
    kind: &WorkloadKind,
    value: Value,
    tools: &[Tool],
    matching: &Matching,
    opts_in: bool,
) -> Option<Migrated> {
    let migration = Migration::of(&Workload::read(kind, &value).ok()?, &value, tools, matching);
    if migration.found.is_empty() {
        return None;
    }
    let namespace = text(&value, "/metadata/namespace").to_owned();
    let name = text(&value, "/metadata/name");
    let collection = Scope::Namespace(namespace.clone()).collection(&kind.api_version(), &kind.plural);
    let template = kind.template_pointer();
    Some(Migrated {
        object: format!("{}/{name}", kind.kind),
        path: format!("{collection}/{name}"),
        operations: migration.patch(&value, &template, opts_in),
        template: Some(template),
        namespace,
        value,
        found: migration.found,
        blocked: migration.blocked,
    })
}

/// The sources that Reloader ignores, and by namespace those that it finds by a search. The sources are listed only if a workload has
/// annotations of Reloader.
async fn of_sources(
    target: &Target,
    scope: &Scope,
    workloads: &[(&WorkloadKind, Value)],
) -> Result<(Vec<Migrated>, BTreeMap<String, Matching>), Failure> {
    let is_marked = |value: &Value| {
        let keys = value["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key);
        keys.into_iter().any(|key| key.contains(reloader::RELOADER))
    };
    let namespaces: BTreeSet<_> = workloads
        .iter()
        .filter(|(_, value)| is_marked(value))
        .map(|(_, value)| text(value, "/metadata/namespace").to_owned())
        .collect();
    let mut marks: BTreeMap<_, _> =
        namespaces.into_iter().map(|namespace| (namespace, Some(BTreeSet::new()))).collect();
    let mut ignored = Vec::new();
    if marks.is_empty() {
        return Ok((ignored, marks));
    }
    for kind in [SourceKind::ConfigMap, SourceKind::Secret] {
        let Some(found) = metadata(target, scope, kind).await? else {
            output::warn(&format!(
                "you may not list {}: which of them Reloader ignores is not known",
                kind.plural()
            ));
            for marks in marks.values_mut() {
                *marks = None;
            }
            continue;
        };
        for value in found {
            let namespace = text(&value, "/metadata/namespace");
            if annotation(&value, MATCH) == Some("true")
                && let Some(Some(marked)) = marks.get_mut(namespace)
            {
                marked.insert(ObjectName::new(kind, text(&value, "/metadata/name")));
            }
            ignored.extend(of_source(kind, value));
        }
    }
    Ok((ignored, marks))
}

/// What becomes of a source that Reloader ignores.
fn of_source(kind: SourceKind, value: Value) -> Option<Migrated> {
    let what = annotation(&value, IGNORE).filter(|text| *text == "true")?;
    let namespace = text(&value, "/metadata/namespace").to_owned();
    let name = text(&value, "/metadata/name");
    let label = &value["metadata"]["labels"];
    let mut operations = Vec::new();
    if label[annotations::ENABLED].is_null() {
        if !label.is_object() {
            operations.push(json!({"op": "add", "path": "/metadata/labels", "value": {}}));
        }
        let path = format!("/metadata/labels/{}", pointer_token(annotations::ENABLED));
        operations.push(json!({"op": "add", "path": path, "value": LEFT_ALONE}));
    }
    let found = Found {
        tool: Tool::Reloader,
        what: format!("{IGNORE}: {what}"),
        becomes: format!("label {}: \"{LEFT_ALONE}\"", annotations::ENABLED),
    };
    Some(Migrated {
        object: format!("{}/{name}", kind.as_str()),
        path: format!("/api/v1/namespaces/{namespace}/{}/{name}", kind.plural()),
        template: None,
        found: vec![found],
        blocked: None,
        namespace,
        operations,
        value,
    })
}

/// The metadata of all sources of a kind, without their contents; `None` if the user may not list them.
async fn metadata(target: &Target, scope: &Scope, kind: SourceKind) -> Result<Option<Vec<Value>>, Failure> {
    let collection = scope.collection("v1", kind.plural());
    let of = Listed { collection, selector: String::new(), only: None, metadata_only: true };
    let (mut pages, mut found) = (target.api.pages(&of), Vec::new());
    loop {
        let page = match pages.next().await {
            Err(error) if error.is_missing_right() => return Ok(None),
            other => other.map_err(|error: ApiError| target.failure(error))?,
        };
        let Some(page) = page else { return Ok(Some(found)) };
        found.extend(page.items().filter_map(|item| serde_json::from_str(item).ok()));
    }
}

/// Prints what becomes of the objects of manifests, or the manifests as they become.
fn of_manifests(options: &MigrateOptions, tools: &[Tool]) -> Result<(), Failure> {
    let kinds = options.flags.kinds.in_force();
    let all = options.manifests.read()?;
    let mut marked = BTreeSet::new();
    for (file, object) in &all {
        if let Some(source) = manifests::source(file, object)?
            && annotation(object, MATCH) == Some("true")
        {
            marked.insert(source.name);
        }
    }
    let (mut rows, mut becoming, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    for (_, object) in all {
        let found = of_manifest(&kinds, &object, tools, &Some(marked.clone()), options.opt_in);
        let mut object = object;
        if let Some(one) = found {
            rows.extend(one.rows());
            if one.blocked.is_none() {
                apply(&mut object, &one.operations);
            }
            stopped.push(one);
        }
        becoming.push(object);
    }
    match options.output.output {
        OutputFormat::Yaml => output::yaml(&becoming)?,
        OutputFormat::Json => output::json(&json!({"apiVersion": "v1", "kind": "List", "items": becoming}))?,
        other => output::list(other, &rows, "nothing of another tool was found")?,
    }
    blocked(&stopped);
    Ok(())
}

fn of_manifest(
    kinds: &Kinds,
    object: &Value,
    tools: &[Tool],
    matching: &Matching,
    opts_in: bool,
) -> Option<Migrated> {
    let source = match (object["apiVersion"].as_str()?, object["kind"].as_str()?) {
        ("v1", "ConfigMap") => Some(SourceKind::ConfigMap),
        ("v1", "Secret") => Some(SourceKind::Secret),
        _ => None,
    };
    match source {
        Some(kind) if tools.contains(&Tool::Reloader) => of_source(kind, object.clone()),
        Some(_) => None,
        None => of_workload(workload_kind(kinds, object)?, object.clone(), tools, matching, opts_in),
    }
}

/// Applies a patch that was made for this object.
fn apply(object: &mut Value, operations: &[Value]) {
    let patch: json_patch::Patch =
        serde_json::from_value(Value::Array(operations.to_vec())).unwrap_or_default();
    let _ = json_patch::patch(object, &patch);
}
