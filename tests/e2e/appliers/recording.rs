//! The recording of the canary story in the docs. `make recording` makes it in a terminal, on a real control plane. The
//! tests compare it with the page of examples.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use confrev_controlplane::wait_for;

use crate::asciicast::{Cast, WIDTH};
use crate::helm::root;
use crate::page::Page;
use crate::shared::running;
use crate::world::{LIMIT, World, name_of};

const TITLE: &str = "A canary whose config goes with it: told with kubectl confrev";
/// The commands of the story that the page does not have.
const MORE: [&str; 3] = [
    "kubectl delete pod --wait=false ",
    "kubectl get pods --sort-by=.metadata.creationTimestamp --label-columns=confrev.dev/revision",
    "kubectl confrev status",
];

fn file(name: &str) -> PathBuf {
    root().join("docs/images").join(name)
}

/// Types a line into a terminal, and records the output.
fn types(cast: &mut Cast, page: &Page, line: &str) {
    cast.show(1.2, &format!("$ {line}\r\n"));
    let start = Instant::now();
    let mut script = page.reader.command("script");
    // A terminal of that width; `script` itself prints nothing.
    let sized = format!("stty cols {WIDTH} rows 60; exec {line}");
    let output =
        script.args(["--quiet", "--return", "--command", &sized, "/dev/null"]).output().expect("script runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{line}: {text}");
    cast.show(start.elapsed().as_secs_f64(), &text);
}

#[test]
#[ignore = "`make recording` rewrites the files"]
fn records_the_canary_story() {
    let _confrev = running();
    let page = Page::of(World::new("shop"));
    let mut cast = Cast::default();
    types(&mut cast, &page, "kubectl apply -f examples/canary/app.yaml");
    types(&mut cast, &page, "kubectl confrev wait rollout/web");
    types(&mut cast, &page, "kubectl confrev impact -f examples/canary/green.yaml");
    types(&mut cast, &page, "kubectl apply -f examples/canary/green.yaml");
    page.reads("web", &["blue", "blue", "blue", "green"]);
    page.world.wait_at_rest();
    types(&mut cast, &page, "kubectl confrev status");
    types(&mut cast, &page, "kubectl confrev tree rollout/web");

    let pods = page.world.cluster.ready_pods(page.world.name(), "app=web");
    let lost = pods.iter().find(|pod| page.colour(pod) == "blue").map(name_of).expect("a stable pod exists");
    types(&mut cast, &page, &format!("kubectl delete pod --wait=false {lost}"));
    wait_for("a replacement of the lost pod", LIMIT, || {
        let gone = page.world.cluster.get("pod", page.world.name(), &lost).is_none();
        (gone && page.colours("app=web").len() == 4).then_some(())
    });
    page.reads("web", &["blue", "blue", "blue", "green"]);
    types(&mut cast, &page, MORE[1]);

    types(&mut cast, &page, "kubectl argo rollouts promote web");
    types(&mut cast, &page, "kubectl confrev wait configmap/web");
    types(&mut cast, &page, "kubectl confrev undo rollout/web");
    page.reads("web", &["blue"; 4]);
    page.world.wait_at_rest();
    types(&mut cast, &page, "kubectl confrev status");
    fs::write(file("canary.cast"), cast.write(TITLE)).expect("the recording can be written");
    fs::write(file("canary.svg"), cast.svg(TITLE)).expect("the picture can be written");
}

#[test]
fn picture_and_recording_match_the_page() {
    let text = fs::read_to_string(file("canary.cast")).unwrap();
    let cast = Cast::read(&text);
    assert_eq!(fs::read_to_string(file("canary.svg")).unwrap(), cast.svg(TITLE), "make recording");
    let page = fs::read_to_string(root().join("examples/README.md")).unwrap();
    let lines = cast.lines();
    let typed: Vec<_> = lines.iter().filter_map(|(_, line)| line.strip_prefix("$ ")).collect();
    assert!(typed.len() > 8, "{typed:?}");
    for line in &typed {
        let known =
            page.lines().any(|command| command == *line) || MORE.iter().any(|more| line.starts_with(more));
        assert!(known, "{line}");
    }
    let told = |part: &str| lines.iter().any(|(_, line)| line.contains(part));
    for part in ["canary", "stable", "yes", "rolls from", "pinned: web"] {
        assert!(told(part), "{part:?} is not in the recording");
    }
    for (_, line) in &lines {
        let visible = line.replace("\u{1b}[0m", "").replace("\u{1b}[32m", "");
        assert!(visible.chars().count() <= WIDTH, "the line is too long: {line}");
    }
}
