//! The supported versions of Kubernetes, which must be the same in the chart, the docs and the tests.

use std::fs;

use confrev_controlplane::ControlPlane;
use confrev_controlplane::binaries::{kubernetes, versions};

use crate::helm::{chart, helm, root};

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The first version that the chart's `kubeVersion` accepts, such as `1.30`.
fn first() -> String {
    let chart = read("charts/confrev/Chart.yaml");
    let bound = chart.lines().find_map(|line| line.strip_prefix("kubeVersion: \">=")).expect("a lower bound");
    // The suffix `-0` accepts the suffixes of providers too.
    bound.strip_suffix(".0-0\"").expect("X.Y.0-0 alone").to_owned()
}

/// The line about Kubernetes in the docs' support window.
fn window() -> String {
    let page = read("docs/install.md");
    let (_, section) = page.split_once("## Support window\n").expect("the section exists");
    section.lines().find(|line| line.starts_with("| Kubernetes |")).expect("a line").to_owned()
}

#[test]
fn chart_docs_and_manifests_share_the_minimum_version() {
    let first = first();
    let window = window();
    assert!(window.starts_with(&format!("| Kubernetes | {first} and later:")), "{first}: {window}");
    for file in ["self-signed", "cert-manager"] {
        let path = format!("manifests/{file}.yaml");
        let said = format!("Needs Kubernetes {first} or later");
        assert!(read(&path).contains(&said), "{path} does not say {said:?}");
    }
}

/// The minimum version is accepted with any suffix.
#[test]
fn helm_refuses_versions_before_the_minimum() {
    let first = first();
    let (major, minor) = first.split_once('.').expect("X.Y");
    let before = format!("{major}.{}.99", minor.parse::<u32>().expect("a number") - 1);
    let template = |version: &str| helm(&["template", "any-name", &chart(), "--kube-version", version], None);
    let refused = template(&before).refused();
    assert!(refused.contains("kubeVersion") && refused.contains(&before), "{refused}");
    for version in [format!("{first}.0"), format!("{first}.0-eks-1a2b3c"), format!("{first}.4-gke.1200")] {
        template(&version).ok();
    }
}

#[test]
fn tested_versions_match_docs_and_chart() {
    let tested: Vec<_> = versions().collect();
    let minor = |version: &str| version.split_once('.').and_then(|(_, minor)| minor.parse::<u32>().ok());
    assert!(tested.iter().all(|version| minor(version) >= minor(&first())), "{tested:?}");
    // Those between are for comparisons of measurements.
    let [newest, .., oldest] = &tested[..] else { panic!("two versions are tested: {tested:?}") };
    let said = format!("Tested on {newest} (`make test`) and {oldest} (`make test-oldest`");
    let window = window();
    assert!(window.contains(&said), "{window} does not say {said:?}");
    let makefile = read("Makefile");
    assert!(makefile.contains(&format!("\nOLDEST = {oldest}\n")), "make test-oldest uses another version");
}

/// Otherwise the tests would pass for a version that did not run.
#[test]
fn control_plane_has_the_requested_version() {
    // Skipped for a control plane that was started or built elsewhere.
    if ["CONFREV_TEST_CLUSTER", "KUBEBUILDER_ASSETS"].iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let version = ControlPlane::shared().api().get("/version").1;
    let found = version["gitVersion"].as_str().unwrap_or_default();
    assert!(found.starts_with(&format!("v{}.", kubernetes())), "{found}");
}
