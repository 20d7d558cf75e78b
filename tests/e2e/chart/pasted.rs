//! The commands of the pages about installation, operations and troubleshooting, pasted all at once: without a pause. In
//! `pages.rs`, each command waits until the effect of the previous one is complete.

use confrev_controlplane::Program;
use serde_json::json;

use crate::empty_cluster::{apply, as_its_pod, web};
use crate::pages::{Administrator, SHOP};

/// The commands that install confrev or write its objects again.
const INSTALL: &str = "kubectl apply -f manifests/self-signed.yaml";

/// An administrator who pastes, and the confrev that runs in place of the pods.
struct Paster {
    admin: Administrator,
    program: Option<Program>,
    count: usize,
}

impl Paster {
    /// Pastes all commands under a heading, each of which must succeed.
    #[track_caller]
    fn paste(&mut self, page: &str, heading: &str) -> String {
        self.admin.reader.open(page, heading);
        self.admin.reader.rest().iter().map(|line| self.enter(line)).collect()
    }

    /// Pastes one command. Pods are fakes, so confrev restarts with the pods when its objects are applied. A real pod is ready
    /// once confrev is.
    #[track_caller]
    fn enter(&mut self, line: &str) -> String {
        self.count += 1;
        if line != INSTALL {
            return self.admin.reader.types(line);
        }
        if let Some(program) = &mut self.program
            && program.is_running()
        {
            program.stop();
        }
        self.admin.webhooks_lead_to_the_service_again();
        let said = self.admin.reader.types(line);
        match &mut self.program {
            Some(program) => program.start(),
            None => self.program = Some(as_its_pod(&self.admin.bare).0),
        }
        said
    }

    /// A template change of the Deployment, which only the webhook resolves.
    #[track_caller]
    fn deploys(&self, image: &str, text: &str) {
        apply(&self.admin.bare, SHOP, &web(image, text)).ok();
    }

    /// A Deployment and a Rollout without a label of confrev's, and their ConfigMap.
    fn add_plain_workloads(&self) {
        let mut objects = web("app:1", "A");
        let deployment = &mut objects["items"][1];
        deployment["metadata"]["labels"] = json!({});
        let mut rollout = deployment.clone();
        let labels = json!({"app": "rollout"});
        rollout["apiVersion"] = json!("argoproj.io/v1alpha1");
        rollout["kind"] = json!("Rollout");
        rollout["spec"]["selector"]["matchLabels"] = labels.clone();
        rollout["spec"]["template"]["metadata"]["labels"] = labels;
        objects["items"].as_array_mut().expect("a list").push(rollout);
        apply(&self.admin.bare, SHOP, &objects).ok();
    }
}

#[test]
fn administration_pages_work_when_pasted_at_once() {
    let mut paster = Paster { admin: Administrator::new(), program: None, count: 0 };
    paster.paste("README.md", "Install");
    paster.add_plain_workloads();
    let checked = paster.paste("docs/quick-start.md", "Install");
    assert!(!checked.contains("failed"), "{checked}");
    paster.paste("docs/install.md", "Install");
    paster.admin.wait_names(true);
    paster.paste("README.md", "Use");
    paster.paste("docs/troubleshooting.md", "Taking confrev away");
    paster.admin.wait_names(false);
    paster.paste("docs/troubleshooting.md", "Troubleshooting");
    paster.paste("docs/troubleshooting.md", "A ConfigMap changed and nothing rolls");
    paster.deploys("app:2", "A");
    if paster.admin.reader.has("jq") {
        paster.paste("docs/operations.md", "Backup");
        paster.admin.bare.cluster.kubectl(&["delete", "namespace", SHOP, "--timeout=60s"]).run().ok();
        paster.paste("docs/operations.md", "Restore");
        paster.admin.wait_reads("web", &["A"]);
    }
    let checked = paster.paste("docs/operations.md", "Upgrade");
    assert!(!checked.contains("failed"), "{checked}");
    paster.program.as_mut().expect("confrev runs").stop();
    paster.paste("docs/operations.md", "Disaster");
    paster.deploys("app:3", "B");
    paster.admin.wait_reads("web", &["B"]);
    paster.admin.wait_names(true);
    assert!(paster.count >= 20, "{}", paster.count);
}
