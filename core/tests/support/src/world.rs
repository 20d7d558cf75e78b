//! Objects of one namespace in memory, and admission as the webhook does it: facts on demand, snapshots before the object.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use confrev_core::{
    annotations,
    kinds::{Kinds, REVISION_KINDS, WorkloadKind},
    resolve::{
        Carried, Decision, Defaults, Facts, Health, NamespaceFacts, Need, Observed, Past, RefusedContents,
        Request, RevisionsOf, Spares, Unmarked, Workload, decide,
    },
    snapshot::{Keying, Made, ObjectName, Rotated, SourceKind, snapshot_json},
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::carry::carry;

/// The namespace of all objects.
pub const NAMESPACE: &str = "ns";

/// ConfigMaps and Secrets by name.
#[derive(Clone, Default)]
pub struct World {
    /// The stored objects, snapshots included.
    pub objects: BTreeMap<ObjectName, Value>,
    /// The settings of the namespace.
    pub namespace: NamespaceFacts,
    /// Whether the target of a `workloadRef` is opted in; `None` means no.
    pub target_enabled: Option<bool>,
    /// Revision objects of any kind, each with its index into `REVISION_KINDS`.
    pub revisions: Vec<(usize, Value)>,
    /// The keys and the namespace for the digests of Secrets.
    pub keying: Keying,
    /// The ConfigMaps that are never snapshotted.
    pub rotated: Rotated,
    /// Further names for a snapshot whose usual names are all taken.
    pub spares: Spares,
    /// Why the contents of sources fail their schemas.
    pub schema_failures: BTreeMap<ObjectName, String>,
    /// The contents that the installation refuses.
    pub refused: RefusedContents,
    /// Whether the client of the reviews may not learn about that.
    pub withholds_verdicts: bool,
    /// The worst health of the Rollouts that use the workload's template.
    pub referrers: Health,
    /// Whether snapshots of Secrets are disabled in the installation.
    pub secrets_disabled: bool,
    /// What the workloads inherit.
    pub defaults: Defaults,
}

/// The result of an admission.
pub struct Admitted {
    /// The object as it is stored.
    pub object: Value,
    /// The decision.
    pub decision: Decision,
}

/// A built-in kind of workload.
pub fn kind(name: &str) -> WorkloadKind {
    Kinds::default().iter().find(|kind| kind.kind == name).unwrap().clone()
}

/// Whether an object has the mark of a write that confrev did not answer.
pub fn is_marked(object: &Value) -> bool {
    object["metadata"]["labels"].get(annotations::CARRIED).is_some()
}

/// An object without empty maps and nulls.
pub fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), pruned(value)));
            let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(pruned).collect()),
        other => other.clone(),
    }
}

/// The name of a ConfigMap.
pub fn configmap(name: &str) -> ObjectName {
    ObjectName::new(SourceKind::ConfigMap, name)
}

impl World {
    /// Sets the content of a ConfigMap.
    pub fn set(&mut self, name: &str, data: Value) {
        self.set_object(
            name,
            json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "data": data}),
        );
    }

    /// Stores a ConfigMap.
    pub fn set_object(&mut self, name: &str, object: Value) {
        self.objects.insert(configmap(name), object);
    }

    /// Sets the label `enabled` of a ConfigMap.
    pub fn labelled(&mut self, name: &str, enabled: &str) {
        let object = self.objects.get_mut(&configmap(name)).unwrap();
        object["metadata"]["labels"] = json!({annotations::ENABLED: enabled});
    }

    /// Deletes a ConfigMap.
    pub fn remove(&mut self, name: &str) {
        self.objects.remove(&configmap(name));
    }

    /// The content of a ConfigMap.
    pub fn data(&self, name: &str) -> &Value {
        &self.objects[&configmap(name)]["data"]
    }

    /// Admits a creation or an update of a Deployment; panics if it is refused.
    pub fn admit(&mut self, new: &Value, old: Option<&Value>) -> Admitted {
        let admitted = self.review(&kind("Deployment"), new, old);
        assert_eq!(admitted.decision.denial, None);
        admitted
    }

    /// Admits a creation, and returns the object as it is stored.
    pub fn create(&mut self, new: &Value) -> Value {
        self.admit(new, None).object
    }

    /// Admits an update, and returns the object as it is stored.
    pub fn update(&mut self, new: &Value, old: &Value) -> Value {
        self.admit(new, Some(old)).object
    }

    /// Admits an object of any kind; the decision may be a refusal.
    pub fn review(&mut self, kind: &WorkloadKind, new: &Value, old: Option<&Value>) -> Admitted {
        let admitted = self.admission(kind, new, old, false);
        if old.is_none_or(|old| !is_marked(old)) {
            let marked = carry(kind, new, old, self.namespace.opt_in.is_in());
            let carried = self.admission(kind, &marked, old, true);
            assert_eq!(carried.decision.denial, admitted.decision.denial, "with confrev-carry");
            if admitted.decision.denial.is_none() {
                let [carried, alone] = [&carried, &admitted].map(|admitted| pruned(&admitted.object));
                assert_eq!(carried, alone, "with confrev-carry, which made {marked}");
            }
        }
        if admitted.decision.denial.is_none() {
            self.take(&admitted.decision);
        }
        admitted
    }

    /// Admits an update that the policy `confrev-carry` has marked.
    pub fn review_carried(&mut self, new: &Value, old: &Value) -> Admitted {
        let kind = kind("Deployment");
        let marked = carry(&kind, new, Some(old), false);
        let admitted = self.admission(&kind, &marked, Some(old), true);
        self.take(&admitted.decision);
        admitted
    }

    /// What admission makes of an object. `is_believed`: the policy has marked it.
    fn admission(
        &self,
        kind: &WorkloadKind,
        new: &Value,
        old: Option<&Value>,
        is_believed: bool,
    ) -> Admitted {
        let (new_text, old_text) = (new.to_string(), old.map(Value::to_string));
        let parse = |new_text| Request {
            namespace: NAMESPACE,
            secrets: !self.secrets_disabled,
            new: self.parse(kind, new_text),
            old: old_text.as_ref().map(|text| self.parse(kind, text)),
            carried: Carried::default(),
        };
        let unmarked = Unmarked::of(&parse(&new_text), is_believed).unwrap_or_default();
        let request = unmarked.requested(parse(unmarked.text.as_ref().unwrap_or(&new_text)));
        let mut decision = self.decide(&request);
        drop(request);
        let mut object = new.clone();
        if decision.denial.is_none() {
            decision.patch = unmarked.patch_with(decision.patch);
            json_patch::patch(&mut object, &decision.patch).unwrap();
        }
        Admitted { object, decision }
    }

    /// A workload under what it inherits.
    fn parse<'w>(&self, kind: &'w WorkloadKind, text: &'w str) -> Workload<'w> {
        Workload::parse(kind, text).unwrap().under(self.defaults.clone())
    }

    /// The decision on the creation of an object that is given as text.
    pub fn decision(&self, kind: &WorkloadKind, text: &str) -> Decision {
        let new = Workload::parse(kind, text).unwrap();
        self.decide(&Request {
            namespace: NAMESPACE,
            secrets: !self.secrets_disabled,
            new,
            old: None,
            carried: Carried::default(),
        })
    }

    /// Whether the decision on an update asks for revisions.
    pub fn reads_revisions(&self, kind: &WorkloadKind, new: &Value, old: &Value) -> bool {
        self.needs(kind, new, old).iter().any(|need| matches!(need, Need::Revisions(_)))
    }

    /// Everything that the decision on an update asks for.
    pub fn needs(&self, kind: &WorkloadKind, new: &Value, old: &Value) -> BTreeSet<Need> {
        let (new, old) = (new.to_string(), old.to_string());
        let parse = |text| Workload::parse(kind, text).unwrap();
        let request = Request {
            namespace: NAMESPACE,
            secrets: !self.secrets_disabled,
            new: Workload::parse(kind, &new).unwrap(),
            old: Some(parse(&old)),
            carried: Carried::default(),
        };
        let mut all = BTreeSet::new();
        self.decide_with(&request, &mut Facts::default(), &mut |needs| all.extend(needs.iter().cloned()));
        all
    }

    fn decide(&self, request: &Request<'_>) -> Decision {
        let mut facts = Facts::default();
        facts.set_rotated(self.rotated.clone());
        facts.set_referrers_health(self.referrers);
        if self.withholds_verdicts {
            facts.withhold_verdicts();
        }
        let mut rounds = 0;
        self.decide_with(request, &mut facts, &mut |needs| {
            assert!(!needs.is_empty(), "a decision that needs facts lists them");
            rounds += 1;
            assert!(rounds < 12, "no decision after 12 rounds");
        })
    }

    /// Decides, and shows what each pass needs to `see`.
    fn decide_with(
        &self,
        request: &Request<'_>,
        facts: &mut Facts,
        see: &mut dyn FnMut(&BTreeSet<Need>),
    ) -> Decision {
        let decision = decide(request, facts, |needs, facts| {
            see(&needs);
            for need in &needs {
                self.find(need, facts);
            }
            Ok::<_, Infallible>(())
        });
        let Ok(decision) = decision;
        decision
    }

    /// Adds a fact to these.
    fn find(&self, need: &Need, facts: &mut Facts) {
        match need {
            Need::Namespace => facts.set_namespace(self.namespace),
            Need::Target(_) => facts.set_target_enabled(self.target_enabled.unwrap_or(false)),
            Need::Newest { .. } => {}
            Need::Spares(source) => {
                facts.set_spares(source.clone(), self.spares.clone());
            }
            Need::Schema(source) => {
                facts.set_verdict(source.clone(), self.schema_failures.get(source).cloned());
            }
            Need::Revisions(of) => facts.set_revisions(self.revisions_of(of)),
            Need::Object(name) => facts.set_object(name.clone(), self.observe(name)),
        }
    }

    fn revisions_of(&self, of: &RevisionsOf) -> Vec<Past> {
        let is_selected = |(kind, object): &&(usize, Value)| {
            let has = |(key, value): &(String, String)| object["metadata"]["labels"][key] == **value;
            *kind == of.kind && of.labels.iter().all(has)
        };
        let found = self.revisions.iter().filter(is_selected);
        found.map(|(kind, object)| Past::read(&REVISION_KINDS[*kind], &object.to_string()).unwrap()).collect()
    }

    /// An object as admission reads it.
    pub fn observe(&self, name: &ObjectName) -> Option<Observed> {
        let object = self.objects.get(name)?;
        let json = object.to_string().into_bytes();
        let observed = Observed::read_keyed(name.kind, json, self.keying.clone()).unwrap();
        Some(observed.refused_by(&self.refused))
    }

    /// Creates the snapshots that a decision asks for.
    fn take(&mut self, decision: &Decision) {
        for ensure in &decision.ensure {
            let source = self.objects[&ensure.source].to_string();
            let (name, identity) = (ensure.snapshot(), ensure.identity());
            let json = snapshot_json(
                name.kind,
                NAMESPACE,
                &name.name,
                &identity,
                source.as_bytes(),
                &[],
                Made::at(Timestamp::MAX),
            )
            .unwrap();
            let before = self.objects.insert(name.clone(), serde_json::from_slice(&json).unwrap());
            assert!(before.is_none(), "{name} existed: a snapshot never replaces another object");
        }
    }
}

/// An opted-in Deployment with one volume for each of the ConfigMaps.
pub fn deployment(configmaps: &[&str]) -> Value {
    let volumes: Vec<_> = configmaps
        .iter()
        .map(|name| json!({"name": format!("v-{name}"), "configMap": {"name": name}}))
        .collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": NAMESPACE, "labels": {annotations::ENABLED: "true"}},
        "spec": {"replicas": 1, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i:1"}], "volumes": volumes},
        }},
    })
}

/// Sets an annotation of the object.
pub fn annotate(object: &mut Value, key: &str, value: &str) {
    object["metadata"].as_object_mut().unwrap().entry("annotations").or_insert_with(|| json!({}))[key] =
        json!(value);
}

/// The name in the volume at `index`.
pub fn volume(object: &Value, index: usize) -> &str {
    object["spec"]["template"]["spec"]["volumes"][index]["configMap"]["name"].as_str().unwrap()
}

/// The pod template of a workload.
pub fn template(object: &Value) -> &Value {
    &object["spec"]["template"]
}

/// The map in an annotation of the template or of the workload.
pub fn annotation(object: &Value, key: &str) -> Value {
    object["annotations"][key].as_str().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// One field of the annotation `state`, by kind and source; null if no source has it.
pub fn remembered(workload: &Value, field: &str) -> Value {
    let mut found = Value::Null;
    let state = annotation(&workload["metadata"], annotations::STATE);
    for (kind, sources) in state.as_object().into_iter().flatten() {
        for (source, record) in sources.as_object().into_iter().flatten() {
            if let Some(value) = record.get(field) {
                found[kind][source] = value.clone();
            }
        }
    }
    found
}

/// The annotation `state` with one field, by kind and source.
pub fn state_of(field: &str, values: &Value) -> String {
    let mut state = values.clone();
    for sources in state.as_object_mut().into_iter().flat_map(|kinds| kinds.values_mut()) {
        for value in sources.as_object_mut().into_iter().flat_map(|sources| sources.values_mut()) {
            *value = json!({field: value.take()});
        }
    }
    state.to_string()
}
