//! The lists of labels and annotations in the chart and in the reference come from the table of keys. `CONFREV_GOLDENS=write`
//! writes them again.

use std::{fmt::Write as _, fs, path::Path};

use confrev::annotations::{self, By, Form, KEYS, Key, On};

const TEMPLATE: &str = "charts/confrev/templates/_keys.tpl";
const REFERENCE: &str = "docs/reference.md";
/// The most characters in a line of a list.
const WIDTH: usize = 100;

/// Compares a file with the text that the table gives, or writes it.
fn compare(path: &str, held: &str, wanted: &str) {
    if std::env::var_os("CONFREV_GOLDENS").is_some_and(|value| value == "write") {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(path), wanted).unwrap();
        return;
    }
    assert!(held == wanted, "{path} differs: CONFREV_GOLDENS=write updates it; then run `make manifests`");
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_default()
}

/// A named template with a list in CEL, broken into lines.
fn list(name: &str, about: &str, items: impl IntoIterator<Item = String>) -> String {
    let mut lines = vec![String::new()];
    let mut items: Vec<_> = items.into_iter().collect();
    // Users see some of the lists in messages.
    items.sort();
    for (place, item) in items.iter().enumerate() {
        let end = if place + 1 == items.len() { "" } else { "," };
        let line = lines.last_mut().unwrap();
        if !line.is_empty() && line.len() + item.len() > WIDTH {
            lines.push(format!("{item}{end}"));
        } else {
            let space = if line.is_empty() { "" } else { " " };
            let _ = write!(line, "{space}{item}{end}");
        }
    }
    let lines = lines.join("\n");
    format!(
        "\n{{{{/* {about} */}}}}\n{{{{- define \"confrev.keys.{name}\" -}}}}\n[{lines}]\n{{{{- end }}}}\n"
    )
}

fn quoted(keys: impl IntoIterator<Item = &'static str>) -> Vec<String> {
    let mut unique = Vec::new();
    for key in keys.into_iter().map(|key| format!("{key:?}")) {
        if !unique.contains(&key) {
            unique.push(key);
        }
    }
    unique
}

fn of_form(form: Form) -> Vec<String> {
    quoted(KEYS.iter().filter(|key| key.form == form).map(|key| key.name))
}

/// The settings of workloads of which some values need no check. A new value of `roll` is valid, whatever it is.
fn checked() -> impl Iterator<Item = &'static Key> {
    KEYS.iter()
        .filter(|key| key.form == Form::Annotation && key.by == By::User && key.on.contains(&On::Workload))
        .filter(|key| key.name != annotations::ROLL)
}

#[test]
fn chart_has_every_key() {
    let plain = |key: &Key| key.plain.map(|plain| format!("[{:?}, {plain:?}]", key.name));
    let text = [
        "{{/* Lists of labels and annotations, in CEL. Do not edit: tests/repository/keys.rs writes them from the table in\n\
         core/src/annotations.rs. */}}\n"
            .to_owned(),
        list("labels", "All labels.", of_form(Form::Label)),
        list("annotations", "All annotations.", of_form(Form::Annotation)),
        list("namespace", "Those that users write on Namespaces.", quoted(annotations::settings(On::Namespace))),
        list("workload", "Those that users write on workloads.", quoted(annotations::settings(On::Workload))),
        list("source", "Those that users write on sources.", quoted(annotations::settings(On::Source))),
        list("template", "The annotations that confrev writes on pod templates.", quoted(annotations::records(On::Template))),
        list("decided", "Those of workloads that admission decides on.", quoted(annotations::decided())),
        list(
            "rewritten",
            "Those that confrev's own writes of a workload may change.",
            quoted([annotations::ROLL].into_iter().chain(annotations::records(On::Workload))),
        ),
        list("plain", "Settings of workloads, and a pattern of valid values.", checked().filter_map(plain)),
        list(
            "checked",
            "Settings of workloads whose values are always checked.",
            quoted(checked().filter(|key| key.plain.is_none()).map(|key| key.name)),
        ),
    ];
    compare(TEMPLATE, &read(TEMPLATE), &text.concat());
}

/// How the reference names the objects of a row.
fn objects(key: &Key) -> String {
    let name = |on: &On| match on {
        On::Namespace => "Namespace",
        On::Workload => "workload",
        On::Source => "ConfigMap, Secret",
        On::Template => "pod template",
        On::Snapshot => "snapshot",
        On::Lease => "the Lease `confrev`",
    };
    key.on.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The rows of the table of keys that users, or that confrev and its commands write.
fn rows(by_users: bool) -> String {
    let mut text = "| key | on | value; default | meaning |\n|---|---|---|---|\n".to_owned();
    for key in KEYS.iter().filter(|key| (key.by == By::User) == by_users) {
        let form = if key.form == Form::Label { " (label)" } else { "" };
        let _ =
            writeln!(text, "| `{}`{form} | {} | {} | {} |", key.name, objects(key), key.value, key.meaning);
    }
    if !by_users {
        let _ = writeln!(
            text,
            "| `{}` (label) | snapshot | `{}` | |",
            annotations::MANAGED_BY,
            annotations::MANAGER
        );
    }
    text
}

#[test]
fn reference_lists_every_key() {
    let page = read(REFERENCE);
    let mut wanted = page.clone();
    for (heading, by_users) in [("## What you write\n\n", true), ("## What confrev writes\n\n", false)] {
        let start = wanted.find(heading).expect("the page has the heading") + heading.len();
        let length = wanted[start..].find("\n\n").expect("the table ends") + 1;
        wanted.replace_range(start..start + length, &rows(by_users));
    }
    compare(REFERENCE, &page, &wanted);
}
