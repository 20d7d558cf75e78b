//! The effect of each value, and the API server's acceptance of the result.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::empty_cluster::Bare;
use crate::helm::{Setting, find, render, root};
use crate::value_table::{Row, WEBHOOKS, rows};

#[test]
fn each_value_changes_the_rendered_field() {
    let plain = render("confrev", &[]);
    for Row { settings, object, at, becomes } in rows() {
        let rendered = render("confrev", &settings);
        let read = |objects: &[Value]| {
            find(objects, object).and_then(|o| o.pointer(at)).cloned().unwrap_or_default()
        };
        assert_eq!(read(&rendered), becomes, "{settings:?} at {object} {at}");
        assert_ne!(read(&plain), becomes, "{object} {at} is the same without {settings:?}");
    }
}

#[test]
fn every_value_of_the_schema_has_a_row() {
    let schema = fs::read_to_string(root().join("charts/confrev/values.schema.json")).unwrap();
    let mut names = BTreeSet::new();
    collect(&serde_json::from_str(&schema).unwrap(), "", &mut names);
    // Helm's own value, which the chart does not use.
    names.remove("global");
    let rows = rows();
    let covered = |name: &str| rows.iter().any(|row| overlap(row.settings[0].0, name));
    names.retain(|name| !covered(name));
    assert_eq!(names, BTreeSet::new(), "values without a row");
}

#[test]
fn every_value_of_the_schema_is_documented() {
    let schema = fs::read_to_string(root().join("charts/confrev/values.schema.json")).unwrap();
    let docs = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let mut names = BTreeSet::new();
    collect(&serde_json::from_str(&schema).unwrap(), "", &mut names);
    names.remove("global");
    let told: BTreeSet<_> = docs.split('`').skip(1).step_by(2).collect();
    names.retain(|name| !told.iter().any(|told| overlap(told, name)));
    assert_eq!(names, BTreeSet::new(), "values that docs/install.md does not have");
}

/// Whether one name equals the other, or is a part of it.
fn overlap(a: &str, b: &str) -> bool {
    let within =
        |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    within(a, b) || within(b, a)
}

fn collect(schema: &Value, name: &str, names: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) => properties.iter().for_each(|(key, below)| {
            let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            collect(below, &name, names);
        }),
        None => drop(names.insert(name.to_owned())),
    }
}

/// A template at another path than that of the built-in kinds needs its own term; otherwise the API server would not send
/// its changes. No other kind gets a term: it would send changes of Rollouts that need no admission.
#[test]
fn match_condition_covers_templates_at_other_paths() {
    let kinds =
        |path| json!([{"group": "a.b", "version": "v1", "resource": "cs", "kind": "C", "path": path}]);
    let conditions = |settings: &[Setting<'_>]| {
        let rendered = render("confrev", settings);
        let webhooks = find(&rendered, WEBHOOKS).unwrap()["webhooks"].clone();
        [0, 1].map(|index| {
            let conditions = webhooks[index]["matchConditions"].as_array().unwrap();
            let changed =
                conditions.iter().find(|condition| condition["name"] == "template-or-settings-changed");
            changed.unwrap()["expression"].as_str().unwrap().to_owned()
        })
    };
    let term = r#" || (request.kind.kind == "C" && object[?"spec"][?"function"][?"pod"] "#.to_owned()
        + r#"!= oldObject[?"spec"][?"function"][?"pod"]) || "#;
    let [plain, elsewhere] = [conditions(&[]), conditions(&[("extraKinds", kinds("spec.function.pod"))])];
    for (plain, elsewhere) in plain.iter().zip(&elsewhere) {
        assert_eq!(elsewhere.replace(&term, " || "), *plain);
        assert_ne!(elsewhere, plain);
    }
    assert_eq!(conditions(&[("extraKinds", kinds("spec.template"))]), plain);
}

/// The validation is strict: unknown fields, wrong types and expressions that do not compile are refused.
#[test]
fn api_server_accepts_manifests_of_every_value() {
    // A cluster without another installation.
    let bare = Bare::new();
    let cluster = bare.cluster;
    let namespace = cluster.namespace("chart");
    let mut seen = BTreeSet::new();
    for Row { settings, .. } in rows() {
        // Claims refer to devices that the pod must name, and the PEM of the table is not a certificate.
        if ["resources.claims", "certificates.secret.caBundle"].contains(&settings[0].0) {
            continue;
        }
        let mut items = render(namespace.name(), &settings);
        // Kinds whose CRDs are not installed here.
        items.retain(|object| {
            let version = object["apiVersion"].as_str().unwrap();
            !version.starts_with("cert-manager.io/") && !version.starts_with("monitoring.coreos.com/")
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        if seen.insert(list.to_string()) {
            let apply =
                ["apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts"];
            let output = cluster.kubectl(&apply).arg("-f").arg("-").stdin(&list).run();
            assert!(output.status.success(), "{settings:?}: {output}");
        }
    }
}
