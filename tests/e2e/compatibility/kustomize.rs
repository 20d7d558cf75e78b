//! kustomize's own examples: built and applied, with changed content, and undone.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use confrev_controlplane::{ControlPlane, Output};
use serde_json::{Value, json};

use crate::in_force::Stand;
use crate::results::{Results, Verdict, compare};

/// An example with a workload that reads a ConfigMap or a Secret.
struct Example {
    /// The folder of its kustomization.
    folder: &'static str,
    workload: &'static str,
    pods: &'static str,
    /// The field of a kustomization that generates the source, the source's name, and its key.
    source: [&'static str; 3],
    /// A shell's command in its container that prints the key's value.
    reads: &'static str,
    /// What an undo brings back.
    undo: Undo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// The previous content: kustomize names the source after its content.
    Content,
    /// The previous content with confrev, which has a snapshot of it. Without confrev, only the template.
    ContentWithConfrev,
    /// Only the template. The workload does not ask confrev for snapshots of its Secrets.
    Template,
}

/// The examples that fit. The others have no kustomization that builds (mySql, springboot), no workload (multibases,
/// transformerconfigs), a disk of a cloud (ldap's production) or a container whose command does not exist (all of wordpress).
const EXAMPLES: [Example; 4] = [
    Example {
        folder: "helloWorld",
        workload: "the-deployment",
        pods: "app=hello",
        source: ["configMapGenerator", "the-map", "altGreeting"],
        reads: "echo $ALT_GREETING",
        undo: Undo::ContentWithConfrev,
    },
    Example {
        folder: "ldap/base",
        workload: "ldap",
        pods: "app=ldap",
        source: ["configMapGenerator", "ldap-configmap", "env.startup.txt"],
        reads: "cat /container/environment/01-custom/env.startup.txt",
        undo: Undo::Content,
    },
    Example {
        folder: "ldap/overlays/staging",
        workload: "staging-ldap",
        pods: "app=ldap",
        source: ["configMapGenerator", "ldap-configmap", "env.startup.txt"],
        reads: "cat /container/environment/01-custom/env.startup.txt",
        undo: Undo::Content,
    },
    Example {
        folder: "wordpress/mysql",
        workload: "mysql",
        pods: "app=mysql",
        source: ["secretGenerator", "mysql-pass", "password"],
        reads: "echo $MYSQL_ROOT_PASSWORD",
        undo: Undo::Template,
    },
];

#[test]
#[ignore = "it needs real nodes: make compatibility"]
fn kustomize_examples_work_with_confrev() {
    let stand = Stand::take();
    let examples = stand.suites.join("kustomize");
    let [without, with] = stand.twice(|_, with| {
        let copy = ControlPlane::shared().state_dir().join(if with { "examples-with" } else { "examples" });
        copy_examples(&examples, &copy).expect("the examples can be copied");
        run(&copy, with)
    });
    compare("kustomize v2.0.3", &without, &with, &[], EXAMPLES.len());
}

fn run(examples: &Path, with: bool) -> Results {
    let verdicts = thread::scope(|scope| {
        let runs = EXAMPLES.map(|example| {
            scope.spawn(move || {
                let verdict =
                    try_out(examples, &example, with).map_or_else(Verdict::Failed, |()| Verdict::Passed);
                (("examples".to_owned(), example.folder.to_owned()), verdict)
            })
        });
        runs.map(|run| run.join().expect("an example is tried out"))
    });
    Results(verdicts.into())
}

/// Applies the example with two contents, one after another, and returns to the first revision. Each time, all pods must read
/// the content that they should.
fn try_out(examples: &Path, example: &Example, with: bool) -> Result<(), String> {
    let cluster = ControlPlane::shared();
    let namespace = cluster.namespace("kustomize");
    let overlay = examples.join("overlays").join(example.folder);
    fs::create_dir_all(&overlay).map_err(|e| e.to_string())?;
    let kubectl = |arguments: &[&str]| {
        let arguments = [&["--namespace", namespace.name()], arguments].concat();
        succeeded(cluster.kubectl(&arguments).run())
    };
    let workload = format!("deployment/{}", example.workload);
    let reads = |content: &str| {
        kubectl(&["rollout", "status", &workload, "--timeout=180s"])?;
        let pods = cluster.ready_pods(namespace.name(), example.pods);
        if pods.is_empty() {
            return Err(format!("{workload} has no pods"));
        }
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let read = kubectl(&["exec", name, "--", "sh", "-c", example.reads])?;
            if read.trim() != content {
                return Err(format!("{name} reads {read:?} instead of {content:?}"));
            }
        }
        Ok(())
    };
    for content in ["first", "second"] {
        let text = kustomization(example, content).to_string();
        fs::write(overlay.join("kustomization.yaml"), text).map_err(|e| e.to_string())?;
        kubectl(&["apply", "--kustomize", &overlay.display().to_string()])?;
        // Without confrev, new content under the same name rolls nothing.
        kubectl(&["rollout", "restart", &workload])?;
        reads(content)?;
    }
    kubectl(&["rollout", "undo", &workload, "--to-revision=1"])?;
    let restored = example.undo == Undo::Content || with && example.undo == Undo::ContentWithConfrev;
    reads(if restored { "first" } else { "second" })
}

/// An overlay that sets the content of the source. Where the example generates the source, kustomize names it after its content.
fn kustomization(example: &Example, content: &str) -> Value {
    let [generator, name, key] = example.source;
    let up = "../".repeat(example.folder.split('/').count() + 1);
    json!({
        "resources": [format!("{up}{}", example.folder)],
        generator: [{"name": name, "behavior": "merge", "literals": [format!("{key}={content}")]}],
    })
}

/// The examples are older than the version `apps/v1` of Deployments, and than kustomize's check of the names of fields.
fn copy_examples(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_examples(&entry.path(), &target)?;
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            fs::write(target, text.replace("apps/v1beta2", "apps/v1").replace("nameprefix:", "namePrefix:"))?;
        }
    }
    Ok(())
}

fn succeeded(output: Output) -> Result<String, String> {
    if output.status.success() { Ok(output.stdout) } else { Err(output.to_string()) }
}
