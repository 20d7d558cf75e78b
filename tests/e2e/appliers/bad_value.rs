//! The tutorial about a bad value: it reaches one of forty workloads, and comes back by itself.

use std::{collections::BTreeSet, time::Duration};

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::snapshot_of_demo;
use crate::page::Page;
use crate::page_commands::yaml_under;
use crate::shared::running;
use crate::world::{World, expect, name_of, snapshot_of};

const PAGE: &str = "docs/bad-value.md";
const COUNT: usize = 40;
/// Enough for the four waves of forty workloads on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);

/// The name of the snapshot with this port.
fn snapshot(port: &str) -> String {
    snapshot_of_demo(&json!({"port": port}))
}

fn deployments(page: &Page) -> Vec<Value> {
    page.world.cluster.list("deployments", page.world.name(), "app=web")
}

/// The workloads whose templates have this port.
fn on(page: &Page, port: &str) -> BTreeSet<String> {
    let name = snapshot(port);
    let all = deployments(page);
    let on = all.iter().filter(|one| snapshot_of(&one["spec"]["template"], "demo").as_ref() == Some(&name));
    on.map(name_of).collect()
}

/// The uids of the ReplicaSets with this port.
fn sets(page: &Page, port: &str) -> BTreeSet<String> {
    let name = snapshot(port);
    let all = page.world.cluster.list("replicasets", page.world.name(), "");
    let with = all.iter().filter(|one| snapshot_of(&one["spec"]["template"], "demo").as_ref() == Some(&name));
    with.map(|one| one["metadata"]["uid"].to_string()).collect()
}

#[test]
fn bad_value_reaches_one_of_forty() {
    let _confrev = running();
    let mut page = Page::of(World::new("tutorial"));
    page.reader.file("demo.yaml", &yaml_under(PAGE, "The ConfigMap"));
    // Pods of the control plane run no program. A stage of kwok lets the pods fail whose program would end.
    let labels = "        app: NAME\n    spec:";
    let web = yaml_under(PAGE, "The workloads");
    assert!(web.contains(labels), "the template has labels");
    let fails = format!("        app: NAME\n        test/fails-with: {}\n    spec:", snapshot("80a"));
    page.reader.file("web.yaml", &format!("{}\n", web.replace(labels, &fails)));

    page.reader.open("docs/bad-value.md", "The ConfigMap");
    page.reader.says("kubectl apply -f demo.yaml");
    page.reader.open("docs/bad-value.md", "The workloads");
    page.types("for n in");
    page.reader.says("kubectl annotate deployment web-1");
    page.reader.says("kubectl confrev wait");
    let before = sets(&page, "8080");
    assert_eq!((on(&page, "8080").len(), before.len()), (COUNT, COUNT));

    page.reader.open("docs/bad-value.md", "The bad value");
    page.reader.says("kubectl patch configmap demo");
    let first = BTreeSet::from(["web-1".to_owned()]);
    wait_for("the first workload to move", LIMIT, || expect(&on(&page, "80a"), &first));
    page.reader.says("kubectl confrev waves demo");

    page.reader.open("docs/bad-value.md", "The way back");
    wait_for("the first workload to come back", LIMIT, || expect(&on(&page, "8080").len(), &COUNT));
    page.world.wait_at_rest();
    assert_eq!(sets(&page, "8080"), before, "each workload is on the ReplicaSet that it had");
    assert_eq!(sets(&page, "80a").len(), 1, "one workload had the bad value");
    page.reader.says("kubectl confrev waves demo");
    page.reader.says("kubectl get events");
    let listed = page.types("kubectl get replicasets");
    assert_eq!(listed.lines().count(), 3, "{listed}");

    page.reader.open("docs/bad-value.md", "The correction");
    page.reader.says("kubectl patch configmap demo");
    page.reader.says("kubectl confrev wait");
    assert_eq!(on(&page, "8081").len(), COUNT);
    page.reader.open("docs/bad-value.md", "Clean up");
    page.types("kubectl delete deployments");
    page.types("kubectl delete configmap demo");
}
