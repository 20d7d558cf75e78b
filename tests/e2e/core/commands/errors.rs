//! Wrong arguments, missing objects, no permission and no cluster: one clear line, and the right exit code.

use super::{Commands as _, confrev};
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::World;

/// A command that needs a cluster, with wrong arguments, with a missing object, and with arguments that work. The test
/// also runs the last without rights and without a cluster.
struct Row {
    command: &'static str,
    /// Arguments, and a part of the error line.
    wrong: (&'static [&'static str], &'static str),
    /// Arguments, and a part of the error line. `None` for a command that lists objects: nothing can be missing.
    missing: Option<(&'static [&'static str], &'static str)>,
    works: &'static [&'static str],
}

const ROWS: [Row; 21] = [
    Row {
        command: "status",
        wrong: (&["--outptu", "json"], "'--output'"),
        missing: Some((&["nothing"], "no opted-in workload \"nothing\"")),
        works: &[],
    },
    Row {
        command: "tree",
        wrong: (&["pod/x"], "unknown kind of workload \"pod\""),
        missing: Some((&["nothing"], "is it labelled confrev.dev/enabled=true?")),
        works: &["deployment/web"],
    },
    Row {
        command: "history",
        wrong: (&["pod/x"], "configmap/NAME or secret/NAME"),
        missing: Some((&["nothing"], "ConfigMap \"nothing\" does not exist")),
        works: &["demo"],
    },
    Row {
        command: "show",
        wrong: (&[], "<KIND/NAME"),
        missing: Some((&["deployment/nothing"], "Deployment/nothing does not exist")),
        works: &["deployment/web"],
    },
    Row {
        command: "diff",
        wrong: (&["deployment/web", "~1"], "snapshots can be given only for a source"),
        missing: Some((&["demo", "ffff"], "no snapshot \"ffff\": see its history")),
        works: &["demo", "~0"],
    },
    Row {
        command: "wait",
        wrong: (&["demo", "--timeout", "soon"], "such as \"30s\""),
        missing: Some((&["nothing"], "no opted-in workload")),
        works: &["demo"],
    },
    Row {
        command: "waves",
        wrong: (&["hasten", "demo"], "\"hasten\""),
        missing: Some((&["nothing"], "\"nothing\"")),
        works: &["demo"],
    },
    Row {
        command: "impact",
        wrong: (&[], "<SOURCE|--filename"),
        missing: Some((&["-f", "/nonexistent"], "/nonexistent: no such file")),
        works: &["demo"],
    },
    Row {
        command: "undo",
        wrong: (&[], "<WORKLOAD>"),
        missing: Some((&["deployment/web"], "no revision with other config")),
        works: &["deployment/web"],
    },
    Row {
        command: "pin",
        wrong: (&["deployment/web"], "<SOURCE> <SNAPSHOT>"),
        missing: Some((&["deployment/web", "other", "~1"], "does not use ConfigMap \"other\"; it uses demo")),
        works: &["deployment/web", "demo", "~0"],
    },
    Row {
        command: "unpin",
        wrong: (&["deployment/web", "--source", "pod/x"], "configmap/NAME or secret/NAME"),
        missing: Some((&["deployment/web", "--source", "other"], "does not use ConfigMap \"other\"")),
        works: &["deployment/web"],
    },
    Row {
        command: "roll",
        wrong: (&["deployment/web", "--source", "pod/x"], "configmap/NAME or secret/NAME"),
        missing: Some((&["deployment/web", "--source", "other"], "does not use ConfigMap \"other\"")),
        works: &["deployment/web"],
    },
    Row {
        command: "pause",
        wrong: (&["deployment/web", "more"], "'more'"),
        missing: Some((&["deployment/nothing"], "\"deployment/nothing\"")),
        works: &["deployment/web"],
    },
    Row {
        command: "resume",
        wrong: (&["deployment/web", "more"], "'more'"),
        missing: Some((&["deployment/nothing"], "\"deployment/nothing\"")),
        works: &["deployment/web"],
    },
    Row {
        command: "restore",
        wrong: (&["demo", "~0", "more"], "'more'"),
        missing: Some((&["demo", "~7"], "has 1 snapshots, and no \"~7\"")),
        works: &["demo", "~0"],
    },
    Row {
        command: "revoke",
        wrong: (&["demo", "~0", "more"], "'more'"),
        missing: Some((&["demo", "~7"], "has 1 snapshots, and no \"~7\"")),
        works: &["demo", "--dry-run"],
    },
    Row {
        command: "dashboard",
        wrong: (&["--port", "70000"], "'--port"),
        missing: None,
        // The command would serve forever. Here, it ends before it writes anything.
        works: &["--output", "never-written"],
    },
    Row {
        command: "migrate",
        wrong: (&["--from", "helm"], "'--from"),
        missing: None,
        works: &["--from", "wave"],
    },
    Row { command: "prune", wrong: (&["-A", "-n", "a"], "cannot be used with"), missing: None, works: &[] },
    // `check` reports a missing object as a finding, not as an error.
    Row { command: "check", wrong: (&["demo"], "'demo'"), missing: None, works: &[] },
    // So does `version`.
    Row { command: "version", wrong: (&["demo"], "'demo'"), missing: None, works: &[] },
];

/// A kubeconfig of an API server that does not answer.
const AWAY: &str = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
    clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
    contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n";

#[test]
fn each_error_is_one_line_with_exit_code() {
    let _confrev = running();
    let world = World::new("commands-errors");
    world.set_config("demo", "A");
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).manifest()).ok();
    let away = world.file("away.yaml", AWAY);
    for row in &ROWS {
        let says = |arguments: &[&str], more: &[&str], code: i32, part: &str| {
            let all = [&[row.command], arguments, more].concat();
            let said = if all.contains(&"-A") { confrev(&all) } else { world.confrev(&all) };
            let line = said.failed(code);
            assert!(line.contains(part), "{all:?}: {part:?} is not in {line:?}");
            line
        };
        let (arguments, part) = row.wrong;
        says(arguments, &[], 2, part);
        // As with kubectl, 1 is a difference.
        let error = if row.command == "diff" { 2 } else { 1 };
        if let Some((arguments, part)) = row.missing {
            says(arguments, &[], error, part);
        }
        if row.command == "check" {
            // `check` continues, and reports each object that it may not read.
            let said = world.confrev(&["check", "--as", "nobody"]);
            assert!(
                said.code == 1
                    && said.stderr.contains("8 of 9 checks")
                    && said.stdout.matches("\"nobody\" cannot").count() >= 5,
                "{said:?}"
            );
        } else if row.command == "version" {
            let said = world.confrev(&["version", "--as", "nobody"]).ok();
            assert!(
                said.contains("installation   unknown: ") && said.contains("\"nobody\" cannot"),
                "{said}"
            );
        } else {
            says(row.works, &["--as", "nobody"], error, "\"nobody\" cannot");
        }
        let unreached = says(row.works, &["--kubeconfig", &away], error, "does not answer");
        assert!(unreached.contains("http://127.0.0.1:1"), "{unreached}");
        says(row.works, &["--kubeconfig", "/nonexistent"], error, "no usable cluster configuration");
        says(row.works, &["--context", "nowhere"], error, "nowhere");
    }
}

#[test]
fn each_cluster_command_has_an_error_row() {
    let help = confrev(&["--help"]).ok();
    let (_, commands) = help.split_once("Commands:\n").expect("commands");
    let (commands, _) = commands.split_once("\n\n").expect("options");
    let names = commands.lines().filter_map(|line| line.split_whitespace().next());
    let without = ["render", "lint", "digest", "serve", "completion", "help"];
    let asking: Vec<_> = names.filter(|name| !without.contains(name)).collect();
    assert_eq!(asking, ROWS.map(|row| row.command));
}

#[test]
fn arguments_not_matching_the_cluster_give_one_error() {
    let _confrev = running();
    let world = World::new("commands-errors");
    world.set_config("demo", "A");
    for kind in Kind::ALL {
        world.apply(&Workload::new(kind, "twice", &["demo"]).manifest()).ok();
    }
    let mut by_reference = Workload::new(Kind::Rollout, "shop", &[]).manifest();
    by_reference["spec"].as_object_mut().unwrap().remove("template");
    by_reference["spec"]["workloadRef"] =
        serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "twice"});
    world.apply(&by_reference).ok();
    let not_labelled = world.kubectl(&["label", "rollout/shop", "confrev.dev/enabled-"]);
    let elsewhere = "Rollout/shop takes its template from Deployment/twice: give Deployment/twice instead";
    for (arguments, code, part) in [
        (&["tree", "twice"][..], 2, "\"twice\" is ambiguous: give one of Rollout/twice, Deployment/twice"),
        (&["diff", "demo"], 2, "no snapshot with different content"),
        (&["diff", "demo", "~7"], 2, "no \"~7\""),
        (&["restore", "demo", "~7", "--yes"], 1, "no \"~7\""),
        (&["undo", "rollout/shop"], 1, elsewhere),
        (&["pin", "shop", "demo", "~0"], 1, elsewhere),
        (&["render", "-f", "/nonexistent"], 1, "/nonexistent"),
        (&["status", "--server", "nowhere:1"], 1, "invalid API server address"),
        (&["status", "--token", "wrong"], 1, "rejected the credentials"),
    ] {
        let line = world.confrev(arguments).failed(code);
        assert!(line.contains(part), "{arguments:?}: {part:?} is not in {line}");
    }
    not_labelled.ok();
    for command in ["undo", "tree"] {
        let line = world.confrev(&[command, "rollout/shop"]).failed(1);
        assert!(line.contains(elsewhere), "{line}");
    }
    assert!(confrev(&["digest", "-f", "/nonexistent"]).failed(1).contains("/nonexistent"));
    for namespace in ["Bad_NS", "a b", "", "a.b", "-"] {
        let line = confrev(&["status", &format!("--namespace={namespace}")]).failed(2);
        assert!(line.contains("invalid namespace"), "{line}");
    }
}

/// Flags before the command, and a type and a name in two words.
#[test]
fn lines_in_the_form_of_kubectl_work() {
    let _confrev = running();
    let world = World::new("commands-lines");
    world.set_config("demo", "A");
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).manifest()).ok();
    for line in [
        &["-n", world.name(), "tree", "deploy", "web"][..],
        &["--namespace", world.name(), "undo", "--dry-run", "deploy", "web"],
        &["--namespace", world.name(), "history", "configmap", "demo"],
    ] {
        let said = confrev(line);
        if line.contains(&"undo") {
            assert!(said.failed(1).contains("Deployment/web has no revision"), "{line:?}");
        } else {
            assert!(said.ok().contains("demo-"), "{line:?}");
        }
    }
}

#[test]
fn wrong_arguments_point_to_the_help() {
    for arguments in
        [&["status", "--nothing"][..], &["nothing"], &["serve"], &["render"], &["completion", "x"]]
    {
        confrev(arguments).failed(2);
    }
    let said = confrev(&[]);
    assert!(said.code == 2 && said.stderr.contains("Usage: "), "{said:?}");
    let said = confrev(&["diff", "--help"]);
    assert!(said.code == 0 && said.stdout.contains("Usage: confrev diff"), "{said:?}");
}
