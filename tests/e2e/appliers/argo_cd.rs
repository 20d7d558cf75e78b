//! Argo CD's own code compares and syncs: an Application with automated sync, self-heal and prune.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::drift::differences;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::tools::complete;
use crate::world::{LIMIT, World, each_kind};

/// How Applications compare and apply: the options of the page's sections.
const SERVER_SIDE_DIFF: &[&str] = &["--server-side-diff"];
const SERVER_SIDE_BOTH: &[&str] = &["--server-side-diff", "--server-side-apply"];
const DEFAULT: &[&str] = &[];
const DEFAULT_SERVER_SIDE_APPLY: &[&str] = &["--server-side-apply"];

/// An Application whose manifests are in no repository but are given to each sync.
struct Application<'a> {
    world: &'a World,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What a sync found and did.
#[derive(Debug)]
struct Sync {
    out_of_sync: Vec<Value>,
    synced: Vec<Value>,
}

impl<'a> Application<'a> {
    fn new(world: &'a World, options: &[&str]) -> Self {
        let mut command = Command::new(world.cluster.bin("argo-cd-sync"));
        command.arg("--kubeconfig").arg(world.cluster.kubeconfig());
        command.args(["--namespace", world.name(), "--prune"]).args(options);
        // It calls kubectl's code, which keeps a cache in the home folder.
        command.env("HOME", world.cluster.state_dir());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let requests = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut application = Self { world, process, requests, answers };
        application.answer();
        application
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("an answer of Argo CD's code: {e}: {line:?}"))
    }

    /// Compares, and syncs if anything differs.
    fn sync(&mut self, objects: &[Value]) -> Sync {
        let file = self.world.cluster.state_dir().join(format!("application-{}.yaml", self.world.name()));
        let documents: Vec<_> = objects.iter().map(Value::to_string).collect();
        std::fs::write(&file, documents.join("\n---\n")).unwrap();
        writeln!(self.requests, "{}", file.display()).unwrap();
        let answer = self.answer();
        assert_eq!(answer["error"], Value::Null, "{answer}");
        let list = |key: &str| answer[key].as_array().unwrap().clone();
        Sync { out_of_sync: list("outOfSync"), synced: list("synced") }
    }

    /// Syncs until Argo CD sees no difference, as its informers need a moment to see what was written.
    fn comes_in_sync(&mut self, objects: &[Value]) {
        wait_for("the Application to be in sync", LIMIT, || {
            let sync = self.sync(objects);
            if sync.out_of_sync.is_empty() { Ok(()) } else { Err(format!("{:?}", sync.different())) }
        });
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sync {
    /// Each differing object, with the pointers at which it differs.
    fn different(&self) -> Vec<(String, Vec<String>)> {
        let pointers = |one: &Value| differences(&one["live"], &one["predicted"]);
        self.out_of_sync.iter().map(|one| (one["kind"].as_str().unwrap().to_owned(), pointers(one))).collect()
    }

    /// The kinds of differing objects.
    fn kinds(&self) -> Vec<&str> {
        self.out_of_sync.iter().map(|one| one["kind"].as_str().unwrap()).collect()
    }
}

fn objects(text: &str, web: &Workload) -> [Value; 2] {
    [config_map("demo", text), complete(web)]
}

/// The kind as objects state it.
fn kind_of(web: &Workload) -> String {
    web.manifest()["kind"].as_str().unwrap().to_owned()
}

fn web(kind: Kind) -> Workload {
    Workload::new(kind, "web", &["demo"]).replicas(0)
}

/// With the server-side diff an Application is in sync, and a change is one roll, with both ways to apply.
#[test]
fn argo_cd_server_side_diff_shows_no_drift() {
    let _confrev = running();
    each_kind(|kind| {
        for options in [SERVER_SIDE_DIFF, SERVER_SIDE_BOTH] {
            let world = World::new("argo-cd-diff");
            let web = web(kind);
            let mut application = Application::new(&world, options);
            let first = application.sync(&objects("A", &web));
            assert_eq!(first.synced.len(), 2, "{first:?}");
            world.wait_resolved(&web, "demo", "A");
            world.wait_replica_sets(&web, 1);
            application.comes_in_sync(&objects("A", &web));
            for (text, revisions) in [("B", 2), ("C", 3)] {
                let change = application.sync(&objects(text, &web));
                assert!(change.kinds().contains(&"ConfigMap"), "{options:?}: {:?}", change.different());
                world.wait_resolved(&web, "demo", text);
                world.wait_replica_sets(&web, revisions);
                application.comes_in_sync(&objects(text, &web));
                world.wait_at_rest();
                assert_eq!(world.replica_sets(&web).len(), revisions, "{options:?}: one roll per change");
            }
        }
    });
}

/// Without the server-side diff, only the names differ; syncs of self-heal make no revision, and ignored names are in sync.
#[test]
fn argo_cd_default_diff_shows_only_reference_names() {
    let _confrev = running();
    each_kind(|kind| {
        for options in [DEFAULT, DEFAULT_SERVER_SIDE_APPLY] {
            let world = World::new("argo-cd-default");
            let web = web(kind);
            let mut application = Application::new(&world, options);
            application.sync(&objects("A", &web));
            world.wait_resolved(&web, "demo", "A");
            world.wait_replica_sets(&web, 1);
            let mut seen = Vec::new();
            for _ in 0..3 {
                world.wait_at_rest();
                seen = application.sync(&objects("A", &web)).different();
            }
            assert_eq!(seen.len(), 1, "{options:?}: {seen:?}");
            let (found, pointers) = &seen[0];
            assert_eq!(*found, kind_of(&web), "{seen:?}");
            let is_name = |at: &String| at.ends_with("/configMapRef/name") || at.ends_with("/configMap/name");
            assert!(!pointers.is_empty() && pointers.iter().all(is_name), "{options:?}: {seen:?}");
            world.wait_at_rest();
            assert_eq!(world.replica_sets(&web).len(), 1, "{options:?}: syncs make no revision");
            drop(application);
            let ignored = json!([{
                "group": "*",
                "kind": kind_of(&web),
                "jqPathExpressions": [
                    ".spec.template.spec.volumes[]?.configMap.name",
                    ".spec.template.spec.containers[]?.envFrom[]?.configMapRef.name",
                ],
            }]);
            let ignored = format!("--ignore-differences={ignored}");
            let mut application = Application::new(&world, &[options, &[ignored.as_str()]].concat());
            application.comes_in_sync(&objects("A", &web));
            application.sync(&objects("B", &web));
            world.wait_resolved(&web, "demo", "B");
            application.comes_in_sync(&objects("B", &web));
            world.wait_at_rest();
            assert_eq!(world.replica_sets(&web).len(), 2, "{options:?}: one roll");
        }
    });
}

/// An undo without a hold is drift, which self-heal ends. A hold is none: it outlives a sync every second for a minute,
/// while its source changes and is pruned.
#[test]
fn hold_outlives_a_minute_of_argo_cd() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("argo-cd-hold");
        let web = web(kind);
        let mut application = Application::new(&world, SERVER_SIDE_DIFF);
        for (text, revisions) in [("A", 1), ("B", 2)] {
            application.sync(&objects(text, &web));
            world.wait_resolved(&web, "demo", text);
            world.wait_replica_sets(&web, revisions);
            application.comes_in_sync(&objects(text, &web));
        }
        world.wait_at_rest();
        world.undo(&web);
        world.wait_resolved(&web, "demo", "A");
        world.wait_at_rest();
        let healed = wait_for("Argo CD to see the undo", LIMIT, || {
            let sync = application.sync(&objects("B", &web));
            if sync.kinds() == [kind_of(&web)] { Ok(sync) } else { Err(format!("{:?}", sync.different())) }
        });
        assert_eq!(healed.synced.len(), 2, "{healed:?}");
        world.wait_resolved(&web, "demo", "B");
        application.comes_in_sync(&objects("B", &web));

        let snapshot = world.snapshot_name("demo", "A");
        world.kubectl(&["annotate", &web.reference(), &format!("confrev.dev/hold={snapshot}")]).ok();
        world.wait_resolved(&web, "demo", "A");
        world.wait_at_rest();
        let started = Instant::now();
        for second in 1..=60 {
            let text = format!("{}", second / 10);
            // From the fortieth second on, Git has no ConfigMap, and Argo CD prunes it.
            let manifests = if second < 40 { objects(&text, &web).to_vec() } else { vec![complete(&web)] };
            let sync = application.sync(&manifests);
            assert!(
                !sync.kinds().contains(&kind_of(&web).as_str()),
                "second {second}: {:?}",
                sync.different()
            );
            world.resolves_to(&web, "demo", "A").unwrap();
            // The pace of the applies: one in a second.
            thread::sleep(Duration::from_secs(second).saturating_sub(started.elapsed()));
        }
        assert!(world.cluster.get("configmap", world.name(), "demo").is_none(), "the source is pruned");
        assert!(world.cluster.get("configmap", world.name(), &snapshot).is_some(), "the snapshot is not");
        world.wait_at_rest();
        world.resolves_to(&web, "demo", "A").unwrap();
        assert_eq!(world.replica_sets(&web).len(), 2, "no new revision");
    });
}
