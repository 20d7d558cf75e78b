//! The examples, run with the commands of their page. Between the commands, the tests check the content that each pod
//! reads.

use confrev_controlplane::wait_for;

use crate::page::Page;
use crate::shared::running;
use crate::world::{LIMIT, expect, text};

#[test]
fn example_canary_rolls_one_pod_and_undoes() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "A canary");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("web", &["blue"; 4]);
    let impact = page.types("kubectl confrev impact");
    assert!(impact.contains("Rollout/web   yes"), "{impact}");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("web", &["blue", "blue", "blue", "green"]);
    let tree = page.types("kubectl confrev tree");
    assert!(tree.contains("canary   1 pod") && tree.contains("stable   3 pods"), "{tree}");
    page.types("kubectl argo rollouts promote web");
    page.types("kubectl confrev wait");
    page.reads("web", &["green"; 4]);
    page.types("kubectl confrev undo");
    page.reads("web", &["blue"; 4]);
    assert_eq!(page.replica_sets("web"), 2);
}

#[test]
fn example_blue_green_previews_the_new_content() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "Blue-green with a preview");
    let behind = |page: &Page, service: &str| {
        let service =
            page.world.cluster.get("service", page.world.name(), service).expect("the object exists");
        let hash = text(&service["spec"]["selector"]["rollouts-pod-template-hash"]);
        page.colours(&format!("app=shop,rollouts-pod-template-hash={hash}"))
    };
    let reads = |page: &Page, users: &str, testers: &str| {
        wait_for("both Services to select the right pods", LIMIT, || {
            expect(&[behind(page, "shop"), behind(page, "shop-preview")], &[[users; 2], [testers; 2]])
        });
    };
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    reads(&page, "blue", "green");
    let tree = page.types("kubectl confrev tree");
    assert!(tree.contains("preview   2 pods") && tree.contains("active   2 pods"), "{tree}");
    page.types("kubectl argo rollouts promote shop");
    reads(&page, "green", "green");
}

#[test]
fn example_partition_keeps_config_of_replaced_pod() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "A StatefulSet");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("store", &["blue"; 3]);
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("store", &["blue", "blue", "green"]);
    page.types("kubectl delete pod store-0");
    page.pod_reads("store-0", "blue");
    page.pod_reads("store-2", "green");
    page.types("kubectl patch statefulset store");
    page.types("kubectl confrev wait");
    page.reads("store", &["green"; 3]);
}

#[test]
fn example_job_keeps_its_original_config() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "A CronJob");
    let read = |page: &Page, job: &str| {
        let job = page.world.cluster.get("job", page.world.name(), job)?;
        let pod = serde_json::json!({"metadata": {"namespace": page.world.name()}, "spec": job["spec"]["template"]["spec"]});
        Some(page.colour(&pod))
    };
    let taken_up = |page: &Page, snapshots: usize| {
        wait_for("the CronJob to roll to the content", LIMIT, || {
            let snapshots_now = page.world.snapshots().len();
            let cron =
                page.world.cluster.get("cronjob", page.world.name(), "report").ok_or("it does not exist")?;
            let volumes = &cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"];
            let name = text(&volumes[0]["configMap"]["name"]);
            let newest = page.world.cluster.get("configmap", page.world.name(), &name).ok_or(name)?;
            expect(
                &(snapshots_now, text(&newest["data"]["color"])),
                &(snapshots, ["blue", "green"][snapshots - 1].to_owned()),
            )
        });
    };
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    taken_up(&page, 1);
    page.types("kubectl create job report-1");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    taken_up(&page, 2);
    page.types("kubectl create job report-2");
    assert_eq!([read(&page, "report-1"), read(&page, "report-2")].map(Option::unwrap), ["blue", "green"]);
    page.types("kubectl confrev undo");
    let cron = page.world.cluster.get("cronjob", page.world.name(), "report").expect("the object exists");
    let pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"].clone();
    let pod = serde_json::json!({"metadata": {"namespace": page.world.name()}, "spec": pod});
    assert_eq!(page.colour(&pod), "blue", "the content of the first Job");
}

#[test]
fn example_secret_rolls_without_showing_values() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "Secrets");
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("vault", &["first"; 2]);
    page.types("kubectl apply");
    page.types("kubectl confrev wait");
    page.reads("vault", &["second"; 2]);
    let diff = page.reader.tries("kubectl confrev diff");
    assert_eq!(diff.status.code(), Some(1), "{diff}");
    let diff = diff.stdout;
    assert!(diff.ends_with("\nchanged\n") && !diff.contains("password") && !diff.contains("first"), "{diff}");
    page.types("kubectl confrev undo");
    page.reads("vault", &["first"; 2]);
}

#[test]
fn example_chart_upgrades_once_and_rolls_back() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "A Helm chart");
    page.types("helm upgrade --install");
    page.types("kubectl confrev wait");
    page.reads("cart", &["blue"; 2]);
    page.types("helm upgrade");
    page.types("kubectl confrev wait");
    page.reads("cart", &["green"; 2]);
    assert_eq!(page.replica_sets("cart"), 2);
    page.types("helm rollback");
    page.reads("cart", &["blue"; 2]);
    assert_eq!(page.replica_sets("cart"), 2);
}

#[test]
fn example_overlay_makes_one_revision() {
    let _confrev = running();
    let mut page = Page::open("examples/README.md", "A kustomize overlay");
    page.types("kubectl apply -k");
    page.types("kubectl confrev wait");
    page.reads("news", &["blue"]);
    let rendered = page.types("kubectl confrev render -k");
    assert!(rendered.contains("name: news-"), "{rendered}");
    page.types("kubectl apply -k");
    page.types("kubectl confrev wait");
    page.reads("news", &["green"; 2]);
    assert_eq!(page.replica_sets("news"), 2);
}
