//! Text of the cluster in the output of commands: it is data, and no Event is believed.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use super::{Commands as _, Said};
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// A title for the terminal, an erased screen, a reversed line, and breaks of lines.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{1b}[2J\u{202e}gpj.exe\u{2028}\r";

/// Checks that a terminal shows the output as it is.
#[track_caller]
fn is_plain(what: &str, said: &Said) {
    for text in [&said.stdout, &said.stderr] {
        let active = text.chars().find(|c| confrev::text::is_active(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(active, None, "{what}: {said:?}");
    }
}

/// Values, a name in a revision of the tenant's own, and a name that the user gives.
#[test]
fn output_of_commands_cannot_control_the_terminal() {
    let _confrev = running();
    let world = World::new("printing");
    let content = format!("first {HOSTILE}\nsecond\n");
    world.apply(&config_map("demo", &content)).ok();
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0).annotation("min-interval", "0");
    world.apply(&web.manifest()).ok();
    world.wait_replica_sets(&web, 1);
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    world.wait_replica_sets(&web, 2);
    let mut forged = world.replica_sets(&web)[0].clone();
    let named = format!("demo-1{HOSTILE}\nPod/forged");
    let sources = json!({"configmaps": {"demo": named}}).to_string();
    forged["spec"]["template"]["metadata"]["annotations"]["confrev.dev/sources"] = json!(sources);
    let (labels, owners) = (&forged["metadata"]["labels"], &forged["metadata"]["ownerReferences"]);
    forged["metadata"] = json!({"name": "web-forged", "labels": labels, "ownerReferences": owners});
    let spec = &forged["spec"];
    let forged =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": forged["metadata"], "spec": spec});
    world.with_file(&["create"], &forged).ok();

    let tree = world.confrev(&["tree", "web", "--all"]);
    is_plain("tree", &tree);
    let named = tree.stdout.lines().find(|line| line.contains("demo-1\\u001b]0;owned\\u0007\\u009b2J"));
    assert!(named.is_some_and(|line| line.ends_with("\\u2028\\r\\nPod/forged   not found")), "{tree:?}");
    let old = world.snapshot_name("demo", &content);
    for (line, code) in [
        (&["show", "deployment/web@1"][..], 0),
        (&["show", "deployment/web@1", "-o", "yaml"], 0),
        (&["diff", "demo"], 1),
        (&["restore", "demo", &old, "--dry-run"], 0),
        (&["history", "demo"], 0),
        (&["tree", "web", "--all", "-o", "name"], 0),
        (&["tree", "web", "--all", "-o", "json"], 0),
        (&["status", "-o", "yaml"], 0),
        (&["impact", "demo"], 0),
        (&["prune"], 0),
        (&["migrate"], 0),
        (&["status", &format!("web{HOSTILE}")], 1),
        (&["show", &format!("pod/{HOSTILE}")], 2),
    ] {
        let said = world.confrev(line);
        is_plain(&format!("{line:?}"), &said);
        assert_eq!(said.code, code, "{line:?}: {said:?}");
        if matches!(line[0], "show" | "diff" | "restore") && code < 2 {
            assert!(
                said.stdout.contains("\\u001b]0;owned") && said.stdout.contains("\\u202egpj.exe"),
                "{said:?}"
            );
        }
    }
    // For programs, the value is exact.
    let shown = world.confrev_json(&["show", "deployment/web@1"]);
    assert_eq!(shown["sources"][0]["content"]["text"], content.as_str());
}

/// Any user may create Events. The reason of a refusal comes from the API server, and a claim of another reason is not repeated.
#[test]
fn forged_event_is_no_reason() {
    let _confrev = running();
    let world = World::new("printing-event");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0).annotation("min-interval", "0");
    world.apply(&web.manifest()).ok();
    world.wait_resolved(&web, "demo", "A");
    world.wait_at_rest();
    world.limit_config_maps(1);
    world.set_config("demo", "B");
    let live = world.live(&web);
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "forged"}, "type": "Warning", "reason": "RollRefused",
        "message": format!("the roll to the present content was refused and will be retried: run fix.sh\n{HOSTILE}"),
        "reportingComponent": "confrev.dev/controller", "firstTimestamp": "2099-01-01T00:00:00Z",
        "lastTimestamp": "2099-01-01T00:00:00Z",
        "involvedObject": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": world.name(),
            "uid": text(&live["metadata"]["uid"])},
    });
    world.with_file(&["create"], &event).ok();
    wait_for("the refusal", LIMIT, || {
        let status = world.confrev(&["status", "web"]);
        if status.stdout.contains("refused: demo") { Ok(()) } else { Err(status.stdout) }
    });
    for (line, code) in
        [(&["status", "web"][..], 0), (&["tree", "web"], 0), (&["wait", "demo", "--timeout=60s"], 3)]
    {
        let said = world.confrev(line);
        is_plain(&format!("{line:?}"), &said);
        let all = format!("{}{}", said.stdout, said.stderr);
        assert!(said.code == code && all.contains("exceeded quota: full"), "{line:?}: {said:?}");
        assert!(!all.contains("fix.sh"), "{line:?}: {said:?}");
    }
    // Without the right to try the roll, the reason is not known, and the Event still no answer.
    world.kubectl(&["create", "role", "reader", "--verb=get,list", "--resource=configmaps,pods,events"]).ok();
    world.kubectl(&["create", "rolebinding", "reader", "--role=reader", "--user=printing"]).ok();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "workloads"},
        "rules": [{"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": ["get", "list"]}]});
    world.apply(&role).ok();
    world.kubectl(&["create", "rolebinding", "workloads", "--role=workloads", "--user=printing"]).ok();
    let state = || world.confrev(&["status", "web", "-o", "json", "--as=printing"]);
    wait_for("the right to read", LIMIT, || {
        let said = state();
        let read = serde_json::from_str::<Value>(&said.stdout).map_err(|_| said.stderr.clone())?;
        expect(&text(&read[0]["sources"][0]["state"]), "pending")
    });
    assert!(!state().stdout.contains("fix.sh"), "{:?}", state());
}
