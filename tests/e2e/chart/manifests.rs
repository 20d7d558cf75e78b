//! `manifests/`, which are rendered from the chart, and the chart's defaults and notes.

use std::fs;
use std::process::Command;

use crate::empty_cluster::Bare;
use crate::helm::{binary, chart, helm, render, root, run};

const FILES: [&str; 2] = ["self-signed.yaml", "cert-manager.yaml"];

#[test]
fn manifests_match_the_rendered_chart() {
    let folder = std::env::temp_dir().join(format!("confrev-manifests-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut make = Command::new("make");
    make.arg("--no-print-directory").arg("manifests").current_dir(root());
    make.arg(format!("HELM={}", binary("helm").display())).arg(format!("MANIFESTS={}", folder.display()));
    run(&mut make).ok();
    for file in FILES.into_iter().chain(["carry.yaml"]) {
        let rendered = fs::read_to_string(folder.join(file)).unwrap();
        let checked_in = fs::read_to_string(root().join("manifests").join(file)).unwrap();
        let differs =
            rendered.lines().zip(checked_in.lines()).find(|(rendered, present)| rendered != present);
        assert!(
            rendered == checked_in,
            "manifests/{file} is not up to date, run `make manifests`: {differs:#?}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// The image of the manifests can be pinned, without a change of the chart.
#[test]
fn manifests_can_pin_the_digest_of_the_image() {
    let folder = std::env::temp_dir().join(format!("confrev-pinned-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let digest = format!("sha256:{}", "0a".repeat(32));
    let mut make = Command::new("make");
    make.arg("--no-print-directory").arg("manifests").current_dir(root());
    make.arg(format!("HELM={}", binary("helm").display())).arg(format!("MANIFESTS={}", folder.display()));
    make.arg("IMAGE_REPOSITORY=registry.example.com/confrev").arg(format!("IMAGE_DIGEST={digest}"));
    run(&mut make).ok();
    for file in FILES {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let wanted = format!("image: registry.example.com/confrev:0.1.0@{digest}\n");
        assert!(text.contains(&wanted), "{file} lacks {wanted:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn helm_lint_finds_nothing() {
    let chart = chart();
    let output = helm(&["lint", "--strict", "--quiet", &chart], None).ok();
    assert_eq!(output.trim(), "", "helm lint reports problems");
}

/// Every field with the namespace follows the setting. A guard with the wrong account would block confrev itself.
#[test]
fn manifests_follow_the_namespace_everywhere() {
    for mode in ["self-signed", "cert-manager"] {
        let settings = [("certificates.mode", mode.into())];
        let here = serde_json::to_string(&render("confrev", &settings)).unwrap();
        let there = serde_json::to_string(&render("elsewhere", &settings)).unwrap();
        let expected = here
            .replace("\"namespace\":\"confrev\"", "\"namespace\":\"elsewhere\"")
            .replace("serviceaccount:confrev:", "serviceaccount:elsewhere:")
            .replace(r#"serviceAccount(\"confrev\""#, r#"serviceAccount(\"elsewhere\""#)
            .replace(r#".namespace(\"confrev\")"#, r#".namespace(\"elsewhere\")"#)
            .replace("--namespace=confrev", "--namespace=elsewhere")
            .replace("\"kube-node-lease\",\"confrev\"", "\"kube-node-lease\",\"elsewhere\"")
            .replace(r#"\"kube-node-lease\" , \"confrev\""#, r#"\"kube-node-lease\" , \"elsewhere\""#)
            .replace(r#"request.namespace == \"confrev\""#, r#"request.namespace == \"elsewhere\""#)
            .replace("\"confrev/confrev-tls\"", "\"elsewhere/confrev-tls\"")
            .replace("confrev.confrev.svc", "confrev.elsewhere.svc");
        assert_eq!(there, expected, "{mode}");
    }
}

#[test]
fn notes_list_the_next_steps() {
    let chart = chart();
    let bare = Bare::new();
    let notes = |more: &[&str]| {
        let start = ["install", "any", &chart, "--dry-run=client", "--namespace", "there"];
        // Helm still needs a cluster, for its version.
        let output = helm(&[&start[..], more].concat(), Some(bare.cluster.kubeconfig())).ok();
        output.split_once("NOTES:").expect("the output has notes").1.to_owned()
    };
    let plain = notes(&[]);
    for text in [
        "kubectl --namespace there rollout status deployment/confrev",
        "confrev.dev/enabled=true",
        "kubectl label namespace there pod-security.kubernetes.io/enforce=restricted",
        "helm uninstall any --namespace there",
        // By what the cluster serves.
        if plain.contains("keep their snapshots") { "new references are refused" } else { "cannot change" },
    ] {
        assert!(plain.contains(text), "no {text:?} in {plain}");
    }
    let secret = notes(&["--set", "certificates.mode=secret,certificates.secret.name=pair,outage=admit"]);
    for text in ["the Secret there/pair", "confrev.there.svc", "admitted unresolved"] {
        assert!(secret.contains(text), "no {text:?} in {secret}");
    }
}
