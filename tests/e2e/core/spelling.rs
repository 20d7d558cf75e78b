//! Warnings of the policy `confrev-spelling`, about labels and annotations that no webhook sees.

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World};

/// A warning, and a part of it.
#[test]
fn keys_without_effect_are_warned_about() {
    let _confrev = running();
    let world = World::new("spelling");
    world.set_config("demo", "A");
    let bare = Workload::new(Kind::Deployment, "bare", &["demo"]).enabled(None).replicas(0);
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    for workload in [&bare, &web] {
        world.apply(&workload.manifest()).ok();
    }
    let namespace = format!("namespace/{}", world.name());
    // A moment after its installation, the API server does not enforce the policy yet.
    wait_for("the policy to take effect", LIMIT, || {
        let said = world.kubectl(&["label", &namespace, "confrev.dev/enabled=yes", "--dry-run=server"]);
        if said.stderr.contains("confrev-spelling") { Ok(()) } else { Err(said.stderr) }
    });
    let [namespace, bare, web] = [&*namespace, "deployment/bare", "deployment/web"];
    for (verb, object, key, part) in [
        (
            "label",
            namespace,
            "enabled=yes",
            "enabled=yes of a namespace has no effect: use true, next or false",
        ),
        (
            "label",
            namespace,
            "enable=true",
            "label confrev.dev/enable has no effect: confrev has no such label",
        ),
        ("annotate", namespace, "secretsmode=live", "annotation confrev.dev/secretsmode has no effect"),
        ("label", bare, "enable=true", "label confrev.dev/enable has no effect"),
        ("annotate", bare, "enabled=true", "annotation confrev.dev/enabled has no effect: it is a label"),
        ("annotate", bare, "exclud=demo", "annotation confrev.dev/exclud has no effect"),
        ("label", bare, "track=false", "label confrev.dev/track has no effect: it is an annotation"),
        (
            "annotate",
            web,
            "exclud=demo",
            "use one of confrev.dev/exclude, confrev.dev/hold, confrev.dev/min-interval",
        ),
        ("annotate", web, "max-in-flight=1", "it is an annotation of a ConfigMap or Secret"),
        (
            "annotate",
            "configmap/demo",
            "max-inflight=1",
            "use one of confrev.dev/analysis, confrev.dev/bake, confrev.dev/keep, confrev.dev/max-in-flight",
        ),
        (
            "annotate",
            "configmap/demo",
            "track=false",
            "confrev.dev/track has no effect: it is an annotation of a workload",
        ),
        ("annotate", "configmap/demo", "mount=/etc/x", "it is an annotation of a workload"),
        ("annotate", "configmap/demo", "secrets-mode=live", "it is an annotation of a Namespace"),
        ("annotate", namespace, "track=false", "it is an annotation of a workload"),
        ("annotate", namespace, "missing=dney", "confrev.dev/missing: \"dney\" is not allowed"),
        ("annotate", namespace, "min-interval=soon", "confrev.dev/min-interval: \"soon\" is not allowed"),
        ("annotate", namespace, "max-in-flight=0", "confrev.dev/max-in-flight: \"0\" is not allowed"),
        ("annotate", namespace, "window=always", "confrev.dev/window: \"always\" is not allowed"),
        ("annotate", namespace, "window=Mon-Fri 9:00-17:00", "use DAYS HH:MM-HH:MM ZONE"),
        ("annotate", namespace, "window=09:00-24:30", "no workload of the namespace rolls automatically"),
        ("annotate", namespace, "window=Mon 09:00-17:00; Day 09:00-17:00", "is not allowed"),
        ("annotate", namespace, "window=09:00-17:00 UTC 1", "is not allowed"),
        ("annotate", namespace, "window=", "is not allowed"),
        ("annotate", namespace, "order=first", "confrev.dev/order: \"first\" is not allowed"),
        ("annotate", namespace, "order=1.5", "use a whole number"),
        ("annotate", namespace, "waves=1", "it is an annotation of a ConfigMap or Secret"),
        ("annotate", bare, "secrets-mode=live", "it is an annotation of a Namespace"),
        ("label", "configmap/demo", "keep=2", "label confrev.dev/keep has no effect: it is an annotation"),
    ] {
        let key = format!("confrev.dev/{key}");
        let said = world.kubectl(&[verb, object, &key, "--overwrite", "--dry-run=server"]);
        assert!(said.stderr.contains(part), "{verb} {object} {key}: {said}");
        assert_eq!(said.stderr.matches("Warning:").count(), 1, "{verb} {object} {key}: {said}");
        said.ok();
    }
}

/// Neither right keys, nor a second apply of a wrong one, nor a write on which admission decides and warns itself.
#[test]
fn right_and_known_keys_cause_no_warning() {
    let _confrev = running();
    let world = World::new("spelling-right");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    world.apply(&web.manifest()).ok();
    let namespace = format!("namespace/{}", world.name());
    for (verb, object, key) in [
        ("label", &*namespace, "enabled=true"),
        ("annotate", &*namespace, "secrets-mode=live"),
        ("annotate", "deployment/web", "track=false"),
        ("annotate", &*namespace, "order=1"),
        ("annotate", &*namespace, "order=-2147483648"),
        ("annotate", &*namespace, "order=+10"),
        ("annotate", &*namespace, "secrets=true"),
        ("annotate", &*namespace, "window=00:00-24:00"),
        ("annotate", &*namespace, "window=Mon-Fri 09:00-17:00 Europe/Berlin; sat,Sun 22:00-04:00"),
        (
            "annotate",
            &*namespace,
            "window= Fri-Mon,Wed 23:59-00:00 America/Argentina/Buenos_Aires ;12:00-13:00 Etc/GMT+5",
        ),
        ("annotate", "configmap/demo", "max-in-flight=1"),
        ("annotate", "configmap/demo", "window=00:00-24:00"),
        ("label", "configmap/demo", "enabled=false"),
    ] {
        let key = format!("confrev.dev/{key}");
        let said = world.kubectl(&[verb, object, &key, "--overwrite", "--dry-run=server"]);
        assert!(!said.stderr.contains("Warning:"), "{verb} {object} {key}: {said}");
        said.ok();
    }
    world.kubectl(&["annotate", "deployment/web", "confrev.dev/exclud=demo"]).ok();
    let said = world.kubectl(&["annotate", "deployment/web", "other=1"]);
    assert!(!said.stderr.contains("Warning:"), "{said}");
    let mut both = web.manifest();
    both["metadata"]["annotations"]["confrev.dev/exlude"] = json!("demo");
    both["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
    let said = world.apply(&both);
    assert_eq!(said.stderr.matches("Warning:").count(), 1, "{said}");
    assert!(said.stderr.contains("did you mean confrev.dev/exclude?"), "{said}");
}
