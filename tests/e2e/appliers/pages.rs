//! The commands of the site's pages and their output. The examples have a separate file, and so has the installation, in
//! `tests/e2e/chart`.

use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, list};
use crate::page::Page;
use crate::page_commands::{under, yaml_under};
use crate::shared::running;
use crate::world::World;

fn demo(color: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {"color": color}})
}

impl Page {
    /// Types the next commands, whose output the page does not show.
    #[track_caller]
    fn types_each(&mut self, beginnings: &[&str]) {
        for beginning in beginnings {
            self.types(beginning);
        }
    }

    fn apply(&self, file: &str) {
        self.world
            .kubectl(&["apply", "--filename", &self.reader.folder().join(file).display().to_string()])
            .ok();
    }
}

#[test]
fn commands_of_the_page_print_its_output() {
    let _confrev = running();
    let mut page = Page::of(World::new("commands"));
    let web = Workload::new(Kind::Rollout, "web", &["demo"]).replicas(4).pausing();
    let mut manifest = web.manifest();
    // An undo takes effect at once, without the steps.
    manifest["spec"]["rollbackWindow"] = json!({"revisions": 9});
    page.reader.file("all.yaml", &list(&[demo("blue"), manifest]).to_string());
    page.reader.file("demo.yaml", &demo("green").to_string());
    page.apply("all.yaml");
    page.reads("web", &["blue"; 4]);
    page.world.wait_at_rest();

    page.reader.open("docs/commands.md", "impact");
    page.reader.says("kubectl confrev impact -f demo.yaml");
    page.types("kubectl confrev impact demo");
    page.apply("demo.yaml");
    page.reads("web", &["blue", "blue", "blue", "green"]);
    page.world.wait_at_rest();
    page.reader.open("docs/commands.md", "status");
    page.reader.says("kubectl confrev status");
    page.reader.open("docs/commands.md", "tree");
    page.reader.says("kubectl confrev tree");
    page.reader.open("docs/commands.md", "history");
    page.reader.says("kubectl confrev history");
    page.reader.open("docs/commands.md", "show");
    page.reader.says("kubectl confrev show rollout/web@1");
    let shown = page.types("kubectl confrev show rollout/web -o json");
    assert!(shown.contains("\"state\": \"present\""), "{shown}");
    page.reader.open("docs/commands.md", "diff");
    page.reader.says_with("kubectl confrev diff demo", 1);
    for (line, code) in [
        ("kubectl confrev diff demo '~1'", 1),
        ("kubectl confrev diff demo ", 1),
        ("kubectl confrev diff rollout/web", 0),
    ] {
        let said = page.reader.tries(line);
        assert_eq!(said.status.code(), Some(code), "{said}");
    }
    page.reader.open("docs/commands.md", "dashboard");
    page.types("kubectl confrev dashboard --output report");
    page.reader.open("docs/commands.md", "prune");
    page.reader.says("kubectl confrev prune");

    page.world.promote(&web);
    page.reads("web", &["green"; 4]);
    page.reader.open("docs/commands.md", "wait");
    page.reader.says("kubectl confrev wait");
    page.world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1"]).ok();
    page.reader.open("docs/commands.md", "waves");
    page.types_each(&[
        "kubectl confrev waves demo",
        "kubectl confrev waves abort demo",
        "kubectl confrev waves retry demo",
        "kubectl confrev waves promote demo --all",
    ]);
    page.world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves-"]).ok();
    page.reader.open("docs/commands.md", "undo");
    page.reader.says("kubectl confrev undo");
    page.reads("web", &["blue"; 4]);
    page.reader.open("docs/commands.md", "unpin");
    page.reader.says("kubectl confrev unpin rollout/web");
    page.reads("web", &["blue", "blue", "blue", "green"]);
    page.types("kubectl confrev unpin rollout/web --source demo");
    page.reader.open("docs/commands.md", "roll");
    page.types_each(&[
        "kubectl confrev roll rollout/web",
        "kubectl confrev roll rollout/web --source demo --dry-run",
    ]);
    page.reader.open("docs/commands.md", "pin");
    page.types("kubectl confrev pin rollout/web demo '~1'");
    page.reads("web", &["blue"; 4]);
    page.types("kubectl confrev pin rollout/web demo ");

    page.reader.open("docs/commands.md", "pause");
    page.reader.says("kubectl confrev pause");
    page.reader.open("docs/commands.md", "resume");
    page.reader.says("kubectl confrev resume");
    page.reader.open("docs/commands.md", "restore");
    page.types_each(&[
        "kubectl confrev restore demo '~1' --dry-run",
        "kubectl confrev restore demo '~1' --yes",
    ]);
    let live = page.world.cluster.get("configmap", page.world.name(), "demo").expect("the object exists");
    assert_eq!(live["data"]["color"], "blue", "restored");
    page.reads("web", &["blue"; 4]);
    page.world.wait_at_rest();
    page.world.kubectl(&["delete", "configmap", "demo"]).ok();
    page.types("kubectl confrev restore demo --yes");
    let live =
        page.world.cluster.get("configmap", page.world.name(), "demo").expect("the object exists again");
    assert_eq!(live["data"]["color"], "green", "the newest snapshot");
}

#[test]
fn commands_about_revocation_delete_the_snapshot() {
    let _confrev = running();
    let mut page = Page::of(World::new("revoke"));
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(1);
    page.reader.file("blue.yaml", &list(&[demo("blue"), web.manifest()]).to_string());
    page.reader.file("green.yaml", &list(&[demo("green"), web.manifest()]).to_string());
    page.apply("blue.yaml");
    page.reads("web", &["blue"]);
    page.apply("green.yaml");
    page.reads("web", &["green"]);
    page.world.wait_at_rest();
    page.reader.open("docs/commands.md", "revoke");
    let listed = page.types("kubectl confrev revoke demo --dry-run");
    assert!(listed.contains("demo-3a18d34e26"), "{listed}");
    let said = page.types("kubectl confrev revoke demo --yes");
    assert!(said.ends_with("no snapshot has the content\n"), "{said}");
    assert_eq!(page.replica_sets("web"), 1);
}

#[test]
fn commands_about_holds_keep_the_snapshot() {
    let _confrev = running();
    let mut page = Page::of(World::new("holds"));
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(1);
    page.reader.file("all.yaml", &list(&[demo("blue"), web.manifest()]).to_string());
    page.reader.file("green.yaml", &list(&[demo("green"), web.manifest()]).to_string());
    page.apply("all.yaml");
    page.reads("web", &["blue"]);
    page.apply("green.yaml");
    page.reads("web", &["green"]);
    page.world.wait_at_rest();
    page.reader.open("docs/concepts.md", "Holds");
    for command in ["kubectl confrev undo deployment/web --hold", "kubectl annotate deployment web"] {
        page.types(command);
        page.apply("green.yaml");
        page.world.wait_at_rest();
        page.reads("web", &["blue"]);
    }
}

/// `render`, `digest`, `completion`, and the commands of the pages on concepts, other kinds and GitOps.
#[test]
fn commands_that_need_little_of_cluster_work() {
    let _confrev = running();
    let mut page = Page::of(World::new("commands"));
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    page.reader.file("all.yaml", &list(&[demo("blue"), web.manifest()]).to_string());
    page.reader.file("demo.yaml", &demo("blue").to_string());
    page.reader.open("docs/commands.md", "Rights");
    page.types("kubectl create rolebinding");
    page.reader.open("docs/commands.md", "render");
    let rendered = page.types("kubectl confrev render");
    assert!(rendered.contains("name: demo-3a18d34e26"), "{rendered}");
    page.reader.open("docs/commands.md", "digest");
    page.reader.says("kubectl confrev digest");
    let json = page.types("kubectl confrev digest -f demo.yaml -o json");
    assert!(json.contains("\"snapshot\": \"demo-3a18d34e26\""), "{json}");
    page.reader.open("docs/commands.md", "completion");
    page.types("ln -s ");
    let completes = page.reader.folder().join("home/.local/bin/kubectl_complete-confrev");
    assert!(completes.exists(), "{} does not exist", completes.display());
    let script = page.types("kubectl confrev completion bash");
    assert!(script.contains("complete -F"), "{script}");

    page.apply("all.yaml");
    page.reads("web", &["blue"]);
    page.reader.open("docs/concepts.md", "Which config a pod runs");
    let pods = page.types("kubectl get pods -L confrev.dev/revision");
    assert!(pods.lines().any(|line| line.starts_with("web-") && line.ends_with("1cef43aad8")), "{pods}");
    page.reader.open("docs/kinds/others.md", "Other kinds");
    let status = page.types("kubectl confrev status --kind apps.kruise.io/");
    assert!(status.contains("Deployment/web"), "{status}");

    page.world.wait_at_rest();
    page.reader.file("web.yaml", &web.manifest().to_string());
    page.reader.open("docs/gitops.md", "With Argo CD, Flux, Helm and kustomize");
    assert_eq!(page.types("kubectl diff"), "", "drift");
    assert_eq!(page.replica_sets("web"), 1);
}

#[test]
fn page_of_commands_lists_exactly_the_commands() {
    let text = crate::page_commands::read(std::path::Path::new("docs/commands.md"));
    let parts: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let help =
        std::process::Command::new(env!("CARGO_BIN_EXE_confrev")).arg("--help").output().expect("it runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let (_, listed) = help.split_once("Commands:\n").expect("it lists commands");
    let listed = listed.lines().take_while(|line| !line.is_empty());
    let mut listed: Vec<_> =
        listed.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    listed.retain(|command| *command != "help" && !command.is_empty());
    let (mut sorted, mut parts) = (listed.clone(), parts);
    sorted.sort_unstable();
    parts.sort_unstable();
    assert_eq!(parts, sorted);
}

/// The page on schemas: a valid source, and content that is refused as the page shows.
#[test]
fn page_on_schemas_prints_its_output() {
    let _confrev = running();
    let mut page = Page::of(World::new("schemas"));
    let heading = "Give a source a schema";
    page.reader.file("shop.yaml", &yaml_under("docs/schemas.md", heading));
    page.reader.open("docs/schemas.md", "Give a source a schema");
    page.reader.says("kubectl apply -f shop.yaml");
    let shown = under("docs/schemas.md", heading).pop().unwrap().said.join("\n");
    let said = page.reader.tries("kubectl patch configmap shop");
    assert_eq!((said.status.code(), said.stderr.trim()), (Some(1), shown.trim()));
    let wrong = yaml_under("docs/schemas.md", heading).replace("port: 8080", "port: http");
    page.reader.file("shop.yaml", &wrong);
    page.reader.open("docs/commands.md", "lint");
    page.reader.says_with("kubectl confrev lint -f shop.yaml", 3);
}
