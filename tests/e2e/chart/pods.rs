//! confrev's pods meet the strictest Pod Security level, and some further restrictions.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, apply};
use crate::helm::{find, render, root};

#[test]
fn pods_meet_the_restricted_pod_security_level() {
    let bare = Bare::new();
    bare.install(&[("podLabels", json!({"team": "a"}))]);
    wait_for("both pods", LIMIT, || {
        let pods = bare.cluster.ready_pods("confrev", "app.kubernetes.io/name=confrev,team=a").len();
        (pods == 2).then_some(())
    });
    // The namespace does enforce the level: it refuses a privileged pod.
    let privileged = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "p", "image": "p", "securityContext": {"privileged": true}}]}});
    assert!(apply(&bare, "confrev", &privileged).refused().contains("restricted"));
    bare.uninstall().ok();
}

/// Required fields, by JSON pointer: the namespace refuses the pod without any one of them.
const NEEDED: [&str; 4] = [
    "/spec/securityContext/runAsNonRoot",
    "/spec/securityContext/seccompProfile",
    "/spec/containers/0/securityContext/allowPrivilegeEscalation",
    "/spec/containers/0/securityContext/capabilities",
];

/// The pods also have settings that the level does not require.
#[test]
fn restricted_level_needs_each_security_setting_of_pods() {
    let bare = Bare::new();
    bare.install(&[("replicas", json!(0))]);
    let attempt = |pod: &Value| {
        let path = "/api/v1/namespaces/confrev/pods?dryRun=All";
        let (code, answer) = bare.cluster.api().post(path, pod);
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    for mode in ["self-signed", "cert-manager", "secret"] {
        let settings = [("certificates.mode", json!(mode)), ("certificates.secret.name", json!("pair"))];
        let rendered = render("confrev", &settings);
        let mut pod = find(&rendered, "Deployment/confrev").unwrap()["spec"]["template"].clone();
        pod["metadata"]["name"] = json!("trial");
        // The mode is octal in YAML 1.1, which kubectl and helm read, but this test's parser does not.
        if let Some(mode) = pod.pointer_mut("/spec/volumes/0/secret/defaultMode") {
            *mode = json!(0o440);
        }
        assert_eq!(attempt(&pod).0, 201, "{mode}: {:?}", attempt(&pod));
        for pointer in NEEDED {
            let mut lax = pod.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let removed = lax.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field);
            assert!(removed.is_some(), "{mode}: {pointer} does not exist");
            let (code, message) = attempt(&lax);
            assert!(code == 403 && message.contains("violates PodSecurity"), "{pointer}: {code} {message}");
        }
        let container = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(pod["spec"]["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 65532);
        for shared in ["hostNetwork", "hostPID", "hostIPC"] {
            assert_eq!(pod["spec"][shared], Value::Null);
        }
        // The only mount is the certificate, read-only.
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
        assert!(mounts.iter().all(|mount| mount["mountPath"] == "/tls" && mount["readOnly"] == true));
    }
    bare.uninstall().ok();
}

/// confrev is installed with one command. Its pods run in the namespace of the manifest.
#[test]
fn manifest_namespace_enforces_the_restricted_level() {
    let bare = Bare::new();
    let manifests = root().join("manifests/self-signed.yaml").display().to_string();
    bare.cluster.kubectl(&["apply", "-f", &manifests]).run().ok();
    let namespace = bare.cluster.get("namespace", "", "confrev").expect("it is made");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    wait_for("both pods", LIMIT, || {
        let pods = bare.cluster.ready_pods("confrev", "app.kubernetes.io/name=confrev").len();
        if pods == 2 { Ok(()) } else { Err(pods) }
    });
    bare.cluster.kubectl(&["delete", "--wait", "-f", &manifests]).run().ok();
}
