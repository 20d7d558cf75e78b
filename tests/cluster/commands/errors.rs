//! Wrong arguments, missing objects, no permission and no cluster: one clear line, and the right exit code.

use super::confrev;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::World;

#[test]
fn what_cannot_be_done_is_one_clear_line_and_the_right_exit_code() {
    let _confrev = running();
    let world = World::new("commands-errors");
    world.set_config("demo", "A");
    for kind in Kind::ALL {
        world.apply(&Workload::new(kind, "twice", &["demo"]).manifest()).ok();
    }
    for (arguments, code, parts) in [
        (&["tree", "nothing"][..], 1, &["no opted-in workload \"nothing\"", "confrev.dev/enabled"][..]),
        (&["tree", "pod/x"], 2, &["\"pod\" is no kind"]),
        (&["tree", "twice"], 2, &["Rollout/twice", "Deployment/twice", "say which"]),
        (&["history", "nothing"], 1, &["ConfigMap \"nothing\" does not exist"]),
        (&["history", "pod/x"], 2, &["configmap/NAME or secret/NAME"]),
        (&["diff", "demo", "ffff"], 1, &["no snapshot \"ffff\""]),
        (&["diff", "demo", "~7"], 1, &["no \"~7\""]),
        (&["diff", "demo"], 1, &["no snapshot of another content"]),
        (&["diff", "deployment/twice", "~1"], 2, &["revisions are those of a source"]),
        (&["pin", "deployment/twice", "other", "~1"], 1, &["does not use ConfigMap \"other\"", "demo"]),
        (&["undo", "deployment/twice"], 1, &["no revision with other config"]),
        (&["wait", "nothing"], 1, &["no opted-in workload", "nothing"]),
        (&["render", "-f", "/nonexistent"], 1, &["/nonexistent"]),
        (&["status", "--as", "nobody"], 1, &["nobody", "cannot list"]),
        (&["history", "demo", "--as", "nobody"], 1, &["nobody", "cannot get"]),
        (&["undo", "deployment/twice", "--as", "nobody"], 1, &["nobody", "cannot list"]),
        (&["status", "--kubeconfig", "/nonexistent"], 1, &["no cluster to talk to", "/nonexistent"]),
        (&["status", "--context", "nowhere"], 1, &["no cluster to talk to", "nowhere"]),
    ] {
        let line = world.confrev(arguments).failed(code);
        for part in parts {
            assert!(line.contains(part), "{arguments:?}: {part:?} is not in {line}");
        }
    }
}

#[test]
fn wrong_arguments_are_told_with_the_way_to_the_help() {
    for arguments in [&["status", "--nothing"][..], &["nothing"], &["wait", "demo", "--timeout", "soon"], &[]]
    {
        let said = confrev(arguments);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("--help") || said.stderr.contains("Usage"), "{said:?}");
    }
}

#[test]
fn an_api_server_that_is_away_is_told_with_its_address() {
    let world = World::new("commands-away");
    let kubeconfig = world.file(
        "away.yaml",
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
         contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n",
    );
    let line = world.confrev(&["status", "--kubeconfig", &kubeconfig]).failed(1);
    assert!(line.contains("http://127.0.0.1:1") && line.contains("does not answer"), "{line}");
}
