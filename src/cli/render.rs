//! `kubectl confrev render`: the result of admission for manifests, without a cluster.

use std::{collections::BTreeMap, convert::Infallible};

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    failure::Failure,
    flags::{DefaultsFlag, KindFlag, RotatedFlag},
    manifests::{self, ManifestFlags},
    objects::opt_in_of,
    output::{self, OutputFlag, OutputFormat},
};
use crate::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::{
        self, Carried, Decision, Defaults, Facts, NamespaceFacts, Need, Observed, Request, Spares,
        Strategies, Workload,
    },
    schema::Schemas,
    snapshot::{Made, ObjectName, Rotated, snapshot_json},
    world::{Inherited, NamespaceChoice},
};

/// Options of `render`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["filename", "kustomize"]).required(true))]
pub(super) struct RenderOptions {
    #[command(flatten)]
    manifests: ManifestFlags,
    /// The namespace of objects that do not specify one.
    #[arg(short, long, default_value = "default", value_name = "NAMESPACE")]
    namespace: String,
    /// Also print the snapshots, before the workloads.
    #[arg(long)]
    snapshots: bool,
    /// Secrets are snapshotted in this installation. References to them still stay as written: the names of their snapshots
    /// depend on a key of the installation.
    #[arg(long, env = "CONFREV_SECRETS")]
    secrets: bool,
    #[command(flatten)]
    kinds: KindFlag,
    #[command(flatten)]
    rotated: RotatedFlag,
    #[command(flatten)]
    defaults: DefaultsFlag,
    #[command(flatten)]
    output: OutputFlag,
}

/// The objects of the manifests that decisions need.
#[derive(Default)]
pub(super) struct Given {
    pub(super) objects: BTreeMap<(String, ObjectName), Observed>,
    namespaces: BTreeMap<String, NamespaceFacts>,
    workloads: Vec<(String, Value)>,
    /// What the installation and the Namespaces give to their workloads.
    pub(super) inherited: Inherited,
    pub(super) rotated: Rotated,
    /// Whether every content counts as matching its schema.
    pub(super) ignores_schemas: bool,
}

/// Runs the command.
pub(super) fn run(options: &RenderOptions) -> Result<(), Failure> {
    let kinds = options.kinds.in_force();
    let all = options.manifests.read()?;
    let (rendered, warnings) = render(&kinds, &all, options)?;
    for warning in warnings {
        output::warn(&warning);
    }
    match options.output.output {
        OutputFormat::Json => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": rendered});
            output::json(&list)
        }
        OutputFormat::Name => {
            let name = |object: &Value| {
                let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
                format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
            };
            output::print(&rendered.iter().map(name).collect())
        }
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Yaml => output::yaml(&rendered),
    }
}

/// All objects as they would be stored, in order, and the warnings of admission.
fn render(
    kinds: &Kinds,
    all: &[(String, Value)],
    options: &RenderOptions,
) -> Result<(Vec<Value>, Vec<String>), Failure> {
    let defaults = options.defaults.in_force().map_err(Failure::Usage)?;
    let given = Given::read(kinds, all, &options.namespace, defaults)?;
    let given = Given { rotated: options.rotated.in_force(), ..given };
    let (mut rendered, mut warnings) = (Vec::new(), Vec::new());
    for (file, object) in all {
        let Some(kind) = workload_kind(kinds, object) else {
            rendered.push(object.clone());
            continue;
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let wrong = |reason: String| manifests::error(file, &kind.kind, name, &reason);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&options.namespace);
        let text = object.to_string();
        let new = Workload::parse(kind, &text).map_err(|error| wrong(error.to_string()))?;
        let new = given.inherited.workload(namespace, new);
        // The names of snapshots of Secrets depend on a key that only the installation has.
        let request = Request { namespace, secrets: false, new, old: None, carried: Carried::default() };
        let mut decision = given.preview(&request);
        if options.secrets {
            for warning in
                decision.warnings.iter_mut().filter(|warning| warning.contains(annotations::SECRETS))
            {
                *warning = format!(
                    "{}: references to Secrets stay as written here: the names of their snapshots depend on a key of the \
                     installation",
                    request.new.display()
                );
            }
        }
        if let Some(denial) = decision.denial {
            return Err(Failure::No(format!("{file}: {denial}")));
        }
        warnings.extend(decision.warnings.iter().map(|warning| format!("{file}: {warning}")));
        if options.snapshots {
            for snapshot in given.snapshots(namespace, &decision) {
                if !rendered.contains(&snapshot) {
                    rendered.push(snapshot);
                }
            }
        }
        let mut stored = object.clone();
        json_patch::patch(&mut stored, &decision.patch).map_err(|error| wrong(error.to_string()))?;
        rendered.push(stored);
    }
    Ok((rendered, warnings))
}

/// The kind of a workload; `None` for another object.
pub(super) fn workload_kind<'k>(kinds: &'k Kinds, object: &Value) -> Option<&'k WorkloadKind> {
    kinds.by_kind(object["apiVersion"].as_str()?, object["kind"].as_str()?)
}

/// Whether it is a Namespace.
pub(super) fn is_namespace(object: &Value) -> bool {
    object["apiVersion"] == "v1" && object["kind"] == "Namespace"
}

impl Given {
    /// The objects of manifests. Those without a namespace are in `default`.
    pub(super) fn read(
        kinds: &Kinds,
        all: &[(String, Value)],
        default: &str,
        defaults: Defaults,
    ) -> Result<Self, Failure> {
        let mut given =
            Self { inherited: Inherited::new(Strategies::default(), defaults), ..Self::default() };
        for (file, object) in all {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(default).to_owned();
            if let Some(source) = manifests::source(file, object)? {
                let kind = source.name.kind;
                let observed = Observed::read(kind, source.json.into_bytes())
                    .map_err(|error| manifests::error(file, kind.as_str(), &source.name.name, &error))?;
                given.objects.insert((namespace, source.name), observed);
            } else if is_namespace(object) {
                let facts = NamespaceFacts {
                    opt_in: opt_in_of(object),
                    secrets: object["metadata"]["annotations"][annotations::SECRETS] == "true",
                    live_secrets: object["metadata"]["annotations"][annotations::SECRETS_MODE] == "live",
                    terminating: false,
                };
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let choice = NamespaceChoice::read(|key| object["metadata"]["annotations"][key].as_str());
                given.inherited.choose(&name.into(), choice);
                given.namespaces.insert(name.to_owned(), facts);
            } else if workload_kind(kinds, object).is_some() {
                given.workloads.push((namespace, object.clone()));
            }
        }
        Ok(given)
    }

    /// The decision, as if only the manifests existed.
    pub(super) fn preview(&self, request: &Request<'_>) -> Decision {
        let mut facts = Facts::default();
        facts.set_rotated(self.rotated.clone());
        let decision = resolve::decide(request, &mut facts, |needs, facts| {
            for need in needs {
                self.add_fact(request.namespace, need, facts);
            }
            Ok::<_, Infallible>(())
        });
        let Ok(decision) = decision;
        decision
    }

    fn add_fact(&self, namespace: &str, need: Need, facts: &mut Facts) {
        match need {
            Need::Namespace => {
                facts.set_namespace(self.namespaces.get(namespace).copied().unwrap_or_default());
            }
            Need::Object(name) => {
                let observed = self.objects.get(&(namespace.to_owned(), name.clone())).cloned();
                facts.set_object(name, observed);
            }
            // Manifests contain no revisions.
            Need::Revisions(_) => facts.set_revisions(Vec::new()),
            Need::Schema(source) => {
                let content = facts.object(&source).flatten().filter(|_| !self.ignores_schemas).cloned();
                let failure = content.and_then(|content| self.schema_failure(namespace, &content));
                // Without the schema, admission decides.
                facts.set_verdict(source, failure.and_then(Result::err));
            }
            // The decision also asks for the snapshot by its name.
            Need::Newest { .. } => {}
            // Without a cluster, no name is taken.
            Need::Spares(source) => facts.set_spares(source, Spares::default()),
            Need::Target(target) => {
                let enabled = self.workloads.iter().any(|(of, object)| {
                    of == namespace
                        && object["kind"] == target.kind
                        && object["metadata"]["name"] == target.name
                        && object["metadata"]["labels"][annotations::ENABLED] == "true"
                });
                facts.set_target_enabled(enabled);
            }
        }
    }

    /// Whether a content matches its schema, or why it does not; `None` if the manifests do not have the schema.
    pub(super) fn schema_failure(&self, namespace: &str, content: &Observed) -> Option<Result<(), String>> {
        let given = |namespace: &str, name: &ObjectName| {
            self.objects.get(&(namespace.to_owned(), name.clone())).cloned()
        };
        Schemas::default().failure_of_given(namespace, given, content)
    }

    /// The snapshots that the decision needs.
    fn snapshots(&self, namespace: &str, decision: &Decision) -> Vec<Value> {
        let objects = decision.ensure.iter().filter_map(|ensure| {
            let content = self.objects.get(&(namespace.to_owned(), ensure.source.clone()))?;
            let identity = ensure.identity();
            let (kind, json) = (ensure.source.kind, content.json());
            let snapshot = snapshot_json(
                kind,
                namespace,
                &ensure.name,
                &identity,
                json,
                &[],
                Made::at(Timestamp::now()),
            )
            .ok()?;
            serde_json::from_slice(&snapshot).ok()
        });
        objects.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFESTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {color: blue}\n---\n\
        apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {confrev.dev/enabled: \"true\"}}\n\
        spec: {template: {spec: {volumes: [{name: v, configMap: {name: demo}}]}}}\n";

    fn rendered(text: &str, snapshots: bool) -> Result<(Vec<Value>, Vec<String>), String> {
        let options = RenderOptions {
            manifests: ManifestFlags::default(),
            namespace: "default".to_owned(),
            snapshots,
            secrets: false,
            kinds: KindFlag::default(),
            rotated: RotatedFlag::default(),
            defaults: DefaultsFlag::default(),
            output: OutputFlag::default(),
        };
        let objects = manifests::objects("f", text).unwrap();
        let all: Vec<_> = objects.into_iter().map(|object| ("f".to_owned(), object)).collect();
        render(&Kinds::default(), &all, &options).map_err(|error| error.to_string())
    }

    #[test]
    fn render_resolves_references_like_admission() {
        let (objects, warnings) = rendered(MANIFESTS, true).unwrap();
        assert_eq!(warnings, [""; 0]);
        let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ConfigMap", "ConfigMap", "Deployment"]);
        assert_eq!(objects[1]["metadata"]["name"], "demo-3a18d34e26");
        assert_eq!(objects[1]["immutable"], true);
        let template = &objects[2]["spec"]["template"];
        assert_eq!(template["spec"]["volumes"][0]["configMap"]["name"], "demo-3a18d34e26");
        // The result does not depend on the order of a workload and its sources in the files.
        let (first, second) = MANIFESTS.split_once("---\n").unwrap();
        let (turned, _) = rendered(&format!("{second}---\n{first}"), false).unwrap();
        assert_eq!(turned[0], objects[2]);
    }

    /// The template stays as written if the workload is not opted in, or if the files lack the source.
    #[test]
    fn render_keeps_workload_without_opt_in_or_source() {
        let plain = MANIFESTS.replace("\"true\"", "\"false\"");
        assert_eq!(rendered(&plain, false).unwrap().0, manifests::objects("f", &plain).unwrap());
        let (_, alone) = MANIFESTS.split_once("---\n").unwrap();
        let (objects, warnings) = rendered(alone, false).unwrap();
        assert_eq!(objects[0]["spec"], manifests::objects("f", alone).unwrap()[0]["spec"]);
        assert!(warnings[0].contains("ConfigMap \"demo\" does not exist"), "{warnings:?}");
    }

    #[test]
    fn render_error_names_file_and_annotation() {
        let wrong = MANIFESTS.replace("{name: web,", "{name: web, annotations: {confrev.dev/track: maybe},");
        let error = rendered(&wrong, false).unwrap_err();
        assert!(error.starts_with("f: ") && error.contains("confrev.dev/track"), "{error}");
    }
}
