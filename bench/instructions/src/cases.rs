//! The cases to count: whole decisions by number of references and by size, and the parts of a decision.

use confrev_instructions::{
    kinds::Kinds,
    resolve::{Carried, Facts, Observed, Request, Workload, resolve},
    review::{Answer, Review},
    snapshot::{Identity, Made, Object, SourceKind, snapshot_json},
};
use serde_json::Value;

use crate::{
    case::case,
    decide::{Answered, answer, decide},
    objects::{NAMESPACE, Stored, config_map, deployment, review, source, sources},
};

const KIB: usize = 1000;
/// The size of all objects in a case that does not vary the size.
const SMALL: usize = KIB;
/// The number of references in a case that does not vary it.
const FEW: usize = 3;

/// Whole decisions, from body to answer.
pub(crate) fn decisions() {
    for references in [1, 10, 100] {
        decision(&format!("references/{references}"), references, references, 10 * KIB, SMALL);
    }
    for (name, bytes) in SIZES {
        decision(&format!("workload/{name}"), bytes, FEW, bytes, SMALL);
    }
    for (name, bytes) in SIZES {
        decision(&format!("source/{name}"), bytes, 1, 10 * KIB, bytes);
    }
}

const SIZES: [(&str, usize); 3] = [("10kB", 10 * KIB), ("100kB", 100 * KIB), ("1MB", 1000 * KIB)];

/// A creation that creates all snapshots, then an update that changes nothing about them.
fn decision(name: &str, size: usize, references: usize, bytes: usize, source_bytes: usize) {
    let kinds = Kinds::default();
    let mut stored = sources(references, source_bytes);
    let new = deployment(references, bytes);
    let create = review(&new, None);
    let Answered { patch, made, .. } = answered(&format!("create/{name}"), size, &kinds, &create, &stored);
    assert_eq!(made.len(), references, "one snapshot per source");
    stored.extend(made);
    let mut old = new;
    json_patch::patch(&mut old, &patch).expect("the patch applies");
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = Value::from("registry.example/web:1.2.4");
    let update = review(&new, Some(&old));
    let again = answered(&format!("update/{name}"), size, &kinds, &update, &stored);
    assert_eq!(again.patch.0.len(), 0, "nothing changes");
}

/// The baseline parses everything that the decision reads: the body and the ConfigMaps.
fn answered(name: &str, size: usize, kinds: &Kinds, body: &[u8], stored: &Stored) -> Answered {
    let mut texts = vec![body];
    // An update reads only the sources.
    texts.extend(stored.iter().filter(|(name, _)| is_source(&name.name)).map(|(_, text)| text.as_slice()));
    let mut answered = None;
    case(&format!("decision/{name}"), size, &texts, || answered = answer(kinds, body, stored));
    let answered = answered.expect("an answer");
    assert!(answered.body.starts_with(b"{\"apiVersion\""));
    answered
}

fn is_source(name: &str) -> bool {
    name.matches('-').count() == 1
}

/// The pure functions, each by itself.
pub(crate) fn parts() {
    for (name, bytes) in SIZES {
        let text = config_map("settings-0", bytes);
        let object = Object::parse(&text).expect("a ConfigMap");
        case(&format!("part/digest/{name}"), bytes, &[&text], || object.digest(SourceKind::ConfigMap).ok());
        case(&format!("part/observe/{name}"), bytes, &[&text], || {
            Observed::read(SourceKind::ConfigMap, text.clone()).ok()
        });
        let digest = object.digest(SourceKind::ConfigMap).expect("a digest");
        let identity = Identity { source: "settings-0".to_owned(), digest };
        let kind = SourceKind::ConfigMap;
        case(&format!("part/snapshot/{name}"), bytes, &[&text], || {
            snapshot_json(
                kind,
                NAMESPACE,
                "settings-0-1",
                &identity,
                &text,
                &[],
                Made::at(jiff::Timestamp::MAX),
            )
            .ok()
        });
    }
    let kinds = Kinds::default();
    let kind = kinds.by_resource("apps", "deployments").expect("a kind");
    for references in [10, 100] {
        let text = deployment(references, 10 * KIB).to_string();
        let body = review(&deployment(references, 10 * KIB), None);
        let texts = [text.as_bytes()];
        case(&format!("part/review/{references}"), references, &[&body], || Review::parse(&body).is_ok());
        case(&format!("part/workload/{references}"), references, &texts, || {
            Workload::parse(kind, &text).is_ok()
        });
        let new = Workload::parse(kind, &text).expect("a Deployment");
        case(&format!("part/rewrite/{references}"), references, &texts, || {
            new.template.as_ref().map_or(0, |template| template.references().len())
        });
        let request =
            Request { namespace: NAMESPACE, secrets: false, new, old: None, carried: Carried::default() };
        let mut facts = Facts::default();
        let decision = decide(&request, &mut facts, &sources(references, SMALL)).expect("a decision");
        assert!(facts.object(&source(0)).is_some());
        case(&format!("part/resolve/{references}"), references, &texts, || resolve(&request, &facts));
        let answer = Answer::patched(decision.patch);
        case(&format!("part/patch/{references}"), references, &texts, || {
            answer.to_json("705ab4f5-6393-11e8-b7cc-42010a800002")
        });
    }
}
