//! `docs/metrics.md` matches the metrics of the program.

use std::{collections::BTreeMap, collections::BTreeSet, fs, path::Path, time::Duration};

use confrev::telemetry::Metrics;

/// A metric: its type, its help, and the values of its labels.
#[derive(Debug, Default, PartialEq)]
struct Described {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// The metrics of the program by their names in queries. One API request gives the codes a value; all other labels have one.
fn written() -> BTreeMap<String, Described> {
    let metrics = Metrics::new();
    metrics.api_request("get", 200, Duration::ZERO);
    let text = metrics.encode();
    let mut found = BTreeMap::<String, Described>::new();
    // The encoder writes the name of a family without the suffix of its type.
    let name_of = |family: &str, kind: &str| match kind {
        "counter" => format!("{family}_total"),
        "info" => format!("{family}_info"),
        _ => family.to_owned(),
    };
    let mut help = BTreeMap::new();
    let mut families = BTreeMap::new();
    for line in text.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", family, text] => drop(help.insert(family, text)),
            ["#", "TYPE", family, kind] => {
                let described = Described {
                    kind: kind.to_owned(),
                    help: help[family].to_owned(),
                    ..Described::default()
                };
                families.insert(family, name_of(family, kind));
                found.insert(name_of(family, kind), described);
            }
            _ if line.starts_with("confrev_") => {
                let sample = line.split(['{', ' ']).next().unwrap();
                let family = families.keys().filter(|family| sample.starts_with(**family));
                let family = family.max_by_key(|family| family.len()).unwrap();
                let labels = &mut found.get_mut(&families[family]).unwrap().labels;
                let Some((_, rest)) = line.split_once('{') else { continue };
                for pair in rest.split_once('}').unwrap().0.split("\",").filter(|pair| !pair.is_empty()) {
                    let (label, value) = pair.split_once("=\"").unwrap();
                    if label != "le" {
                        labels
                            .entry(label.to_owned())
                            .or_default()
                            .insert(value.trim_matches('"').to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// The cells of the page's rows that begin with a word in backticks.
fn rows() -> Vec<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = fs::read_to_string(page).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn in_backticks(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn documented_metrics_match_the_program() {
    let written = written();
    let mut told = BTreeSet::new();
    for row in rows().iter().filter(|row| row.len() == 4) {
        let [name, kind, labels, meaning] = &row[..] else { unreachable!() };
        let name = name.trim_matches('`').to_owned();
        let metric = written.get(&name).unwrap_or_else(|| panic!("unknown metric {name}"));
        assert_eq!(*kind, metric.kind, "{name}");
        assert_eq!(in_backticks(labels), metric.labels.keys().cloned().collect(), "{name}");
        let help = metric.help.trim_end_matches('.');
        assert!(meaning.starts_with(&format!("{help}.")), "{name}: {meaning:?} does not begin with {help:?}");
        assert!(told.insert(name.clone()), "{name} has two rows");
    }
    let missing: Vec<_> = written.keys().filter(|name| !told.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/metrics.md has no row for {missing:?}");
}

#[test]
fn documented_label_values_match_the_program() {
    let (written, rows) = (written(), rows());
    for (name, metric) in &written {
        for (label, values) in &metric.labels {
            let of_label = |row: &&Vec<String>| {
                row.len() == 3
                    && row[0] == format!("`{label}`")
                    && (!row[1].contains("confrev_") || in_backticks(&row[1]).contains(name))
            };
            // Versions, verbs, codes and strategies are not known in advance.
            if ["version", "verb", "code", "strategy"].contains(&label.as_str()) {
                continue;
            }
            let told: Vec<_> = rows.iter().filter(of_label).map(|row| in_backticks(&row[2])).collect();
            assert_eq!(told.iter().collect::<Vec<_>>(), [values], "{label} of {name}");
        }
    }
}

/// The number of label values would grow with the users' objects, and metrics would disclose their names.
#[test]
fn no_metric_label_names_an_object() {
    // Only the installation defines strategies.
    let allowed = [
        "version", "path", "outcome", "verb", "code", "cause", "task", "reason", "limit", "gate", "strategy",
    ];
    for (name, metric) in written() {
        for label in metric.labels.keys() {
            assert!(allowed.contains(&label.as_str()), "{name} has the label {label}");
        }
    }
}

/// Source: <https://prometheus.io/docs/practices/naming/>
#[test]
fn metric_names_follow_prometheus_conventions() {
    for (name, metric) in written() {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        let is_time = metric.kind == "histogram" || name.contains("timestamp");
        assert_eq!(is_time, name.ends_with("_seconds"), "{name}: names of times end in `_seconds`");
        assert_eq!(metric.kind == "counter", name.ends_with("_total"), "{name}");
        assert!(!metric.help.is_empty(), "{name}");
    }
}
