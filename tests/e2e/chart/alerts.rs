//! Alerts and the dashboard: their expressions use metrics that confrev writes, and each alert fires only when it should.
//! Without promtool (Debian's package `prometheus`), the expressions are only compared with confrev's metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use confrev::telemetry::Metrics;
use serde_json::{Value, json};

use crate::helm::{find, objects, render, root, run};

fn alerts() -> Value {
    let text = fs::read_to_string(root().join("charts/confrev/files/alerts.yaml")).unwrap();
    objects(&text).remove(0)
}

fn rules() -> Vec<Value> {
    alerts()["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn dashboard() -> Value {
    let text = fs::read_to_string(root().join("charts/confrev/files/dashboard.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}")).to_owned()
}

/// The queries of the dashboard, with the window that Grafana inserts.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| word(&target["expr"]).replace("$__rate_interval", "5m")).collect()
}

fn expressions() -> Vec<String> {
    rules().iter().map(|rule| word(&rule["expr"])).chain(queries()).collect()
}

/// The samples that confrev writes: for each name, the values of its labels.
fn samples() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let metrics = Metrics::new();
    metrics.api_request("get", 403, Duration::ZERO);
    let mut samples = BTreeMap::<String, BTreeMap<String, BTreeSet<String>>>::new();
    for line in metrics.encode().lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = samples.entry(name.to_owned()).or_default();
        for pair in line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0).split("\",")
        {
            if let Some((label, value)) = pair.split_once("=\"") {
                labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }
    samples
}

/// The metrics that an expression names, each with the matchers in its braces.
fn selectors(expression: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = expression.match_indices("confrev_").map(|(at, _)| at);
    let named = starts.map(|at| {
        let rest = &expression[at..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        let braces = rest.strip_prefix('{').map_or("", |rest| rest.split_once('}').unwrap().0);
        let matchers = braces.split(',').filter(|part| !part.is_empty()).map(|part| {
            let (label, value) = part.split_once('=').unwrap_or_else(|| panic!("{part} of {expression}"));
            (
                label.trim_end_matches('!').to_owned(),
                value.trim_start_matches('~').trim_matches('"').to_owned(),
            )
        });
        (name.to_owned(), matchers.collect())
    });
    named.collect()
}

/// This includes labels and their values.
#[test]
fn expressions_use_only_metrics_that_confrev_writes() {
    let samples = samples();
    for expression in expressions() {
        let selectors = selectors(&expression);
        assert!(!selectors.is_empty(), "{expression}");
        for (name, matchers) in selectors {
            let labels = samples.get(&name).unwrap_or_else(|| panic!("{expression}: there is no {name}"));
            for (label, values) in matchers {
                let known =
                    labels.get(&label).unwrap_or_else(|| panic!("{expression}: {name} has no {label}"));
                // The API server's codes are not known in advance.
                for value in values.split('|').filter(|_| label != "code") {
                    assert!(known.contains(value), "{expression}: {label} of {name} is never {value}");
                }
            }
        }
    }
}

#[test]
fn annotations_and_legends_use_labels_of_expressions() {
    let samples = samples();
    for rule in rules() {
        let (expression, shown) = (word(&rule["expr"]), rule["annotations"].to_string());
        let labels: BTreeSet<_> =
            selectors(&expression).iter().flat_map(|(name, _)| samples[name].keys()).collect();
        for label in shown.split("$labels.").skip(1).map(|rest| rest.split([' ', '}']).next().unwrap()) {
            let kept = expression.contains(&format!("by ({label})"))
                || expression.contains(&format!("by (le, {label})"));
            assert!(kept && labels.contains(&label.to_owned()), "{} shows {label}", rule["alert"]);
        }
    }
    let dashboard = dashboard();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (expression, legend) = (word(&target["expr"]), word(&target["legendFormat"]));
            let shown = legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap());
            // Prometheus adds the label `instance`.
            for label in shown.filter(|label| *label != "instance") {
                let by = expression.split(" by (").skip(1).map(|rest| rest.split(')').next().unwrap());
                let kept = by.flat_map(|by| by.split(", ")).any(|kept| kept == label);
                assert!(kept, "{}: {legend} of {expression}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let queries = queries().join("\n");
    let shown: BTreeSet<_> = selectors(&queries).into_iter().map(|(name, _)| name).collect();
    let family = |name: &str| {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        stem.unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<_> = shown.iter().map(|name| family(name)).collect();
    let missing: Vec<_> =
        samples().into_keys().map(|name| family(&name)).filter(|name| !shown.contains(name)).collect();
    assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
}

/// Each has an id, a place, a description, and the dashboard's data source.
#[test]
fn dashboard_panels_are_complete_and_do_not_overlap() {
    let dashboard = dashboard();
    assert_eq!(dashboard["templating"]["list"][0]["name"], "datasource");
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = word(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is not unique");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|part| panel["gridPos"][part].as_u64().unwrap());
        assert!(x + w <= 24, "{title} does not fit");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title} overlaps another panel");
        }
        if panel["type"] != "row" {
            assert!(!word(&panel["description"]).is_empty(), "{title}");
            let source = json!({"type": "prometheus", "uid": "${datasource}"});
            let targets = panel["targets"].as_array().unwrap();
            assert!(
                !targets.is_empty() && targets.iter().all(|target| target["datasource"] == source),
                "{title}"
            );
        }
    }
}

#[test]
fn every_alert_is_described_graded_and_documented() {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let told: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("Confrev"))
        .map(str::to_owned)
        .collect();
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = word(&rule["alert"]);
        for field in ["summary", "description"] {
            assert!(word(&rule["annotations"][field]).ends_with('.'), "{name}: {field}");
        }
        let severity = word(&rule["labels"]["severity"]);
        assert!(["critical", "warning", "info"].contains(&severity.as_str()), "{name}: {severity}");
        assert!(
            page.contains(&format!("| `{name}` | {severity} |")),
            "{name} is {severity}, but not in the docs"
        );
        assert!(names.insert(name));
    }
    assert_eq!(told, names);
}

#[test]
fn chart_renders_alerts_and_dashboard_unchanged() {
    let rendered =
        render("confrev", &[("prometheusRule.enabled", json!(true)), ("dashboard.enabled", json!(true))]);
    assert_eq!(find(&rendered, "PrometheusRule/confrev").unwrap()["spec"], alerts());
    let text = word(&find(&rendered, "ConfigMap/confrev-dashboard").unwrap()["data"]["confrev.json"]);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), dashboard());
    let plain = render("confrev", &[]);
    assert!(find(&plain, "PrometheusRule/confrev").or(find(&plain, "ConfigMap/confrev-dashboard")).is_none());
}

/// Runs promtool. Returns `false`, and prints a message, if promtool is not installed.
fn promtool(arguments: &[&str]) -> bool {
    if Command::new("promtool").arg("--version").output().is_err() {
        let text = "promtool is ABSENT (Debian's package prometheus): no expression is evaluated.";
        let _ = writeln!(std::io::stderr().lock(), "{text}");
        return false;
    }
    run(Command::new("promtool").args(arguments).current_dir(root())).ok();
    true
}

#[test]
fn promtool_understands_every_expression() {
    promtool(&["check", "rules", "charts/confrev/files/alerts.yaml"]);
    let recorded = queries().into_iter().enumerate();
    let rules: Vec<_> =
        recorded.map(|(number, query)| json!({"record": format!("query:{number}"), "expr": query})).collect();
    let path = std::env::temp_dir().join(format!("confrev-queries-{}.yaml", std::process::id()));
    fs::write(&path, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).unwrap();
    promtool(&["check", "rules", path.to_str().unwrap()]);
    fs::remove_file(path).unwrap();
}

#[test]
fn each_alert_fires_only_when_it_should() {
    let file = "tests/e2e/chart/alerts.yaml";
    let tests = objects(&fs::read_to_string(Path::new(root()).join(file)).unwrap()).remove(0);
    // Each alert has a case in which it fires, and a case in which it does not.
    let mut cases = BTreeMap::<String, [bool; 2]>::new();
    for test in tests["tests"].as_array().unwrap() {
        for case in test["alert_rule_test"].as_array().unwrap() {
            let fires = case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            cases.entry(word(&case["alertname"])).or_default()[usize::from(fires)] = true;
        }
    }
    let wanted: BTreeMap<_, _> = rules().iter().map(|rule| (word(&rule["alert"]), [true; 2])).collect();
    assert_eq!(cases, wanted);
    promtool(&["test", "rules", file]);
}
