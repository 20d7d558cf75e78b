//! What each value changes, and that the API server takes the result.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::bare::Bare;
use crate::helm::{Setting, find, render, root};
use crate::table::{Row, WEBHOOKS, rows};

#[test]
fn each_value_changes_what_it_says_and_nothing_had_it_before() {
    let plain = render("confrev", &[]);
    for Row { settings, object, at, becomes } in rows() {
        let rendered = render("confrev", &settings);
        let read = |objects: &[Value]| {
            find(objects, object).and_then(|o| o.pointer(at)).cloned().unwrap_or_default()
        };
        assert_eq!(read(&rendered), becomes, "{settings:?} at {object} {at}");
        assert_ne!(read(&plain), becomes, "{object} {at} is so without {settings:?}");
    }
}

#[test]
fn every_value_of_the_schema_has_a_row_in_the_table() {
    let schema = fs::read_to_string(root().join("charts/confrev/values.schema.json")).unwrap();
    let mut names = BTreeSet::new();
    collect(&serde_json::from_str(&schema).unwrap(), "", &mut names);
    // Helm's own, unused here.
    names.remove("global");
    let rows = rows();
    let covered = |name: &str| rows.iter().any(|row| overlap(row.settings[0].0, name));
    names.retain(|name| !covered(name));
    assert_eq!(names, BTreeSet::new(), "values without a row");
}

#[test]
fn every_value_of_the_schema_is_told_of_in_the_docs() {
    let schema = fs::read_to_string(root().join("charts/confrev/values.schema.json")).unwrap();
    let docs = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let mut names = BTreeSet::new();
    collect(&serde_json::from_str(&schema).unwrap(), "", &mut names);
    names.remove("global");
    let told: BTreeSet<_> = docs.split('`').skip(1).step_by(2).collect();
    names.retain(|name| !told.iter().any(|told| overlap(told, name)));
    assert_eq!(names, BTreeSet::new(), "values that docs/install.md does not tell of");
}

/// One is the other, or a part of it.
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

/// A template elsewhere than where the built-in kinds have it needs a term of its own, else its changes would never be
/// sent. No other kind gets one: it would undo what is let pass of Rollouts.
#[test]
fn a_kind_with_its_template_elsewhere_and_no_other_is_sent_for_that_path() {
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

/// Strictly: an unknown field, a wrong type or an expression that does not compile is refused.
#[test]
fn the_api_server_takes_what_every_value_renders() {
    // Where no other installation is in the way.
    let bare = Bare::new();
    let cluster = bare.cluster;
    let namespace = cluster.namespace("chart");
    let mut seen = BTreeSet::new();
    for Row { settings, .. } in rows() {
        // Claims are of devices that the pod must name, and the PEM above is no certificate.
        if ["resources.claims", "certificates.secret.caBundle"].contains(&settings[0].0) {
            continue;
        }
        let mut items = render(namespace.name(), &settings);
        // Kinds that only their own installation brings.
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
