//! The output of the commands during a canary, compared with golden files. Parts that differ from run to run are masked.
//! `CONFREV_GOLDENS=write` rewrites the files; review their changes like any others.

use std::fs;
use std::path::PathBuf;

use confrev_controlplane::wait_for;
use serde_json::json;

use super::{Commands as _, confrev as run};
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

/// The replacement for the random part of a pod's name.
const POD: &str = "pod01";

/// One golden file: command lines with their output.
struct Golden<'w> {
    world: &'w World,
    /// The names of files in command lines, and their paths.
    files: Vec<(&'static str, String)>,
    text: String,
}

impl<'w> Golden<'w> {
    fn new(world: &'w World) -> Self {
        Self { world, files: Vec::new(), text: String::new() }
    }

    fn file(&mut self, name: &'static str, content: &serde_json::Value) {
        self.files.push((name, self.world.file(name, &content.to_string())));
    }

    /// Runs a command and records its output, with the exit code unless it is 0.
    fn says(&mut self, line: &str) -> &mut Self {
        let arguments: Vec<_> = line
            .split_whitespace()
            .map(|word| self.files.iter().find(|(name, _)| *name == word).map_or(word, |(_, path)| path))
            .collect();
        // `digest` has no option for a namespace.
        let said = if arguments[0] == "digest" { run(&arguments) } else { self.world.confrev(&arguments) };
        let code = if said.code == 0 { String::new() } else { format!("(exit code {})\n", said.code) };
        let mut all = format!("$ kubectl confrev {line}\n{}{}{code}\n", said.stdout, said.stderr);
        for (name, path) in &self.files {
            all = all.replace(path, name);
        }
        self.text += &mask(self.world, &all);
        self
    }

    /// Compares with the file, or writes it.
    #[track_caller]
    fn held_as(&mut self, name: &str) {
        let file =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/core/commands/goldens").join(name);
        let text = std::mem::take(&mut self.text);
        if std::env::var_os("CONFREV_GOLDENS").is_some_and(|value| value == "write") {
            fs::write(&file, &text).expect("the file can be written");
        }
        let held = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(text, held, "the output differs from {}", file.display());
    }
}

/// Replaces names, times and versions by fixed words, and wider gaps by three spaces.
fn mask(world: &World, said: &str) -> String {
    let mut said = said.replace(world.name(), "shop").replace(world.cluster.api_url(), "https://cluster");
    for kind in ["replicaset", "pod"] {
        for (i, object) in by_age(world, kind).iter().enumerate() {
            let name = name_of(object);
            let Some((_, own)) = name.rsplit_once('-') else { continue };
            let known = if kind == "pod" { POD.to_owned() } else { format!("set{}", i + 1) };
            said = said.replace(&format!("-{own}"), &format!("-{known}"));
        }
    }
    said.split_inclusive('\n').map(mask_line).collect()
}

fn by_age(world: &World, kind: &str) -> Vec<serde_json::Value> {
    let mut all = world.cluster.list(kind, world.name(), "");
    // Several may be created in one second, so sort by the number that the workload gives to each ReplicaSet.
    all.sort_by_key(|object| {
        let annotations = &object["metadata"]["annotations"];
        ["rollout.argoproj.io/revision", "deployment.kubernetes.io/revision"]
            .map(|key| text(&annotations[key]))
    });
    all
}

fn mask_line(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let core = word.trim_matches(['"', ',', '\n']);
        let masked = if is_age(core) {
            "AGE"
        } else if core.parse::<jiff::Timestamp>().is_ok() {
            "TIME"
        } else if core.starts_with("v1.") {
            "VERSION"
        } else {
            core
        };
        word.replace(core, masked)
    });
    let mut masked = words.collect::<Vec<_>>().join(" ");
    while masked.contains("    ") && !masked.starts_with(' ') {
        masked = masked.replace("    ", "   ");
    }
    masked
}

fn is_age(word: &str) -> bool {
    word.ends_with(['s', 'm', 'h'])
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || "smh".contains(c))
}

/// A canary of four pods, paused with B in one pod and A in three.
fn canary() -> (World, Workload) {
    let world = World::new("commands-goldens");
    let web = Workload::new(Kind::Rollout, "web", &["demo"]).replicas(4).pausing();
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"; 4]);
    world.set_config("demo", "B");
    world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
    wait_for("the canary to pause", LIMIT, || {
        (world.live(&web)["status"]["controllerPause"] == true).then_some(())
    });
    // Owners and Events appear after the pods.
    world.wait_at_rest();
    (world, web)
}

#[test]
fn output_for_a_canary_matches_golden_files() {
    let _confrev = running();
    let (world, web) = canary();
    let mut golden = Golden::new(&world);
    for form in ["", " -o wide", " -o name", " -o yaml", " -o json"] {
        golden.says(format!("status{form}").trim());
    }
    golden.says("status rollout/web").held_as("status.txt");
    for line in ["tree rollout/web", "tree web --all", "tree web -o name", "tree web -o yaml"] {
        golden.says(line);
    }
    golden.held_as("tree.txt");
    for form in ["", " -o wide", " -o name", " -o yaml"] {
        golden.says(&format!("history demo{form}"));
    }
    golden.held_as("history.txt");
    let pods = world.cluster.list("pod", world.name(), "");
    let old = pods.iter().find(|pod| world.pod_reads(pod, "demo") == "A").expect("a pod reads A");
    let pod = format!("show pod/{}", name_of(old));
    golden
        .says(&pod)
        .says(&format!("{pod} -o json"))
        .says("show rollout/web")
        .says("show rollout/web@1 -o yaml");
    golden
        .says("show rollout/web@2 -o name")
        .says("show rollout/web@7")
        .says("show rollout/other")
        .says("show web");
    golden.held_as("show.txt");
    for line in ["diff demo", "diff demo ~1 ~0", "diff rollout/web"] {
        golden.says(line);
    }
    golden.held_as("diff.txt");
    golden.file("c.yaml", &list(&[config_map("demo", "C"), config_map("other", "C")]));
    golden.says("impact -f c.yaml").says("impact demo").says("impact demo -o json").held_as("impact.txt");
    golden.says("wait demo --timeout=0s").says("prune").says("prune -o json").held_as("wait-and-prune.txt");

    golden.says("undo web --dry-run").says("undo web");
    world.wait_reads(&web, "demo", &["A"; 4]);
    world.wait_at_rest();
    golden.says("status").says("wait rollout/web --timeout=5s").says("diff rollout/web").says("unpin web");
    world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
    golden.says("pin web demo ~1 --dry-run").says("pin web demo ~1");
    world.wait_reads(&web, "demo", &["A"; 4]);
    golden.says("unpin web --source demo");
    world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
    golden.says("pause web").says("resume web --dry-run").says("resume web");
    golden.says("restore demo ~1 --dry-run").says("restore demo ~1").says("restore demo ~1 --yes");
    golden.says("restore demo ~0 --yes");
    golden.held_as("moves.txt");
}

#[test]
fn output_of_render_digest_check_matches_golden_files() {
    let confrev = running();
    let world = World::new("commands-goldens");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).manifest();
    let wrong = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web",
        "labels": {"confrev.dev/enabled": "true"}, "annotations": {"confrev.dev/track": "maybe"}},
        "spec": {"template": {"spec": {"containers": []}}}});
    let mut golden = Golden::new(&world);
    golden.file("all.yaml", &list(&[config_map("demo", "A"), web]));
    golden.file("wrong.yaml", &wrong);
    golden.says("render -f all.yaml --snapshots").says("render -f all.yaml -o name");
    golden.says("render -f wrong.yaml").says("digest -f all.yaml");
    let release = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sh.helm.release.v1.web.v1"},
        "type": "helm.sh/release.v1"});
    golden.file("others.yaml", &list(&[release, config_map("kube-root-ca.crt", "A")]));
    golden.says("digest -f others.yaml").held_as("render-and-digest.txt");

    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    golden.says("check").says("version").says("version -o json").says("version --client");
    let leads = |line: &str| line.starts_with("ok") && line.split_whitespace().nth(1) == Some("leader");
    let leader = golden.text.lines().find(|line| leads(line)).expect("one leads").to_owned();
    golden.text = golden.text.replace(&leader, "ok   leader   LEADER");
    golden.held_as("check.txt");
}

/// Holds, the check of a schema without a cluster, and the revocation of a content.
#[test]
fn output_of_holds_lint_revoke_matches_golden_files() {
    let _confrev = running();
    let world = World::new("commands-goldens");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(1);
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);
    world.set_config("demo", "B");
    world.wait_reads(&web, "demo", &["B"]);
    world.wait_at_rest();
    let mut golden = Golden::new(&world);
    golden.says("undo web --hold --dry-run").says("undo web --hold");
    world.wait_reads(&web, "demo", &["A"]);
    world.wait_at_rest();
    golden
        .says("status")
        .says("status web -o json")
        .says("wait deployment/web --timeout=5s")
        .says("unpin web");
    world.wait_reads(&web, "demo", &["B"]);
    golden
        .says("pin web demo ~1 --hold --dry-run")
        .says("pin web demo ~1 --hold")
        .says("unpin web --dry-run");
    golden.says("unpin web").held_as("holds.txt");
    world.wait_reads(&web, "demo", &["B"]);
    world.wait_at_rest();

    let mut source = config_map("demo", "C");
    source["data"] = json!({"app.json": json!({"port": "http"}).to_string()});
    source["metadata"]["annotations"] = json!({"confrev.dev/schema": "schemas/app"});
    let mut schemas = config_map("schemas", "");
    schemas["metadata"]["annotations"] = json!({"confrev.dev/schema-for": "own"});
    schemas["data"] =
        json!({"app": json!({"type": "object", "properties": {"port": {"type": "integer"}}}).to_string()});
    golden.file("config.yaml", &list(&[schemas.clone(), source]));
    golden.file("schemas.yaml", &list(&[schemas, web.manifest()]));
    for line in ["lint -f config.yaml", "lint -f config.yaml -o sarif", "lint -f config.yaml -o junit"] {
        golden.says(line);
    }
    golden.says("lint -f schemas.yaml").held_as("lint.txt");

    golden.says("revoke demo ~1 --dry-run").says("revoke demo ~1");
    let before: Vec<_> = by_age(&world, "replicaset").iter().map(name_of).collect();
    golden.says("revoke demo ~1 --yes");
    // The deleted ReplicaSet has its name still: only present ones are masked.
    for name in before {
        golden.text = golden.text.replace(&name, "web-deleted");
    }
    golden.says("history demo").held_as("revoke.txt");
}

/// A finished Job, and a workload with `missing: deny` whose source loses a key.
#[test]
fn output_for_jobs_and_refusals_matches_golden_files() {
    let _confrev = running();
    let world = World::new("commands-goldens");
    let key = json!({"name": "TEXT", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "text"}}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "once", "labels": {"confrev.dev/enabled": "true"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "app", "image": "app:1", "env": [key]}]}}}});
    let web = Workload::new(Kind::Deployment, "web", &["other"]).annotation("missing", "deny").replicas(0);
    let mut deployment = web.manifest();
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] = json!([key]);
    world.apply(&list(&[config_map("demo", "A"), config_map("other", "A"), job, deployment])).ok();
    wait_for("the Job to end", LIMIT, || {
        let job = world.cluster.get("job", world.name(), "once").ok_or("the Job does not exist")?;
        expect(&job["status"]["succeeded"], &json!(1))
    });
    world.wait_at_rest();
    let mut golden = Golden::new(&world);
    golden.says("status");

    let without = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {"color": "A"}});
    golden.file("without.yaml", &without);
    golden.file("with.yaml", &config_map("demo", "B"));
    golden.says("impact -f without.yaml").says("impact -f without.yaml -o json").says("impact -f with.yaml");
    // The roll is refused, as `impact` predicted.
    let before = world.resolved(&web, "demo");
    world.with_file(&["replace"], &without).ok();
    world.wait_at_rest();
    assert_eq!(world.resolved(&web, "demo"), before, "refused");
    golden.says("impact demo");
    world.with_file(&["replace"], &config_map("demo", "B")).ok();
    world.wait_resolved(&web, "demo", "B");
    world.wait_at_rest();
    golden
        .says("status")
        .says("status job/once -o json")
        .says("tree job/once")
        .says("wait job/once")
        .says("wait demo --timeout=5s");
    golden.held_as("jobs-and-refusals.txt");
}
