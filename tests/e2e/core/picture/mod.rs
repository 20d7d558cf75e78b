//! The picture of the dashboard in the docs: its queries, answered by a real Prometheus that has scraped confrev at work.
//! `make picture` redraws it.

mod panels;
mod prometheus;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use serde_json::Value;

use self::panels::{Panel, Picture};
use self::prometheus::Prometheus;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World};

/// How long Prometheus scrapes confrev.
const WATCHED: Duration = Duration::from_secs(100);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn picture() -> PathBuf {
    root().join("docs/images/dashboard.svg")
}

/// The panels of the dashboard.
fn panels() -> Vec<Panel> {
    let text =
        fs::read_to_string(root().join("charts/confrev/files/dashboard.json")).expect("the dashboard exists");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    dashboard["panels"].as_array().expect("it has panels").iter().map(Panel::of).collect()
}

/// The work of a few teams on a cluster, second by second.
fn work(world: &World) {
    let loads: Vec<_> = (0..8)
        .map(|i| {
            let kind = if i % 4 == 3 { Kind::Rollout } else { Kind::Deployment };
            Workload::new(kind, &format!("web-{i}"), &[&format!("demo-{}", i % 3)]).replicas(1)
        })
        .collect();
    for i in 0..3 {
        world.set_config(&format!("demo-{i}"), "0");
    }
    world.kubectl(&["annotate", "configmap/demo-0", "confrev.dev/waves=1", "confrev.dev/bake=8s"]).ok();
    world.kubectl(&["annotate", "configmap/demo-1", "confrev.dev/strategy=immediate"]).ok();
    for load in &loads {
        world.apply(&load.manifest()).ok();
    }
    world.apply(&Workload::new(Kind::Deployment, "early", &["later"]).manifest()).ok();
    let start = Instant::now();
    for turn in 1.. {
        let passed = start.elapsed();
        if passed > WATCHED {
            break;
        }
        // Changes come in two periods.
        if passed.as_secs() % 50 < 30 {
            world.set_config(&format!("demo-{}", turn % 3), &turn.to_string());
        }
        match turn {
            60 => world.undo(&loads[0]),
            26 => drop(world.apply(&loads[1].clone().annotation("track", "maybe").manifest())),
            34 => world.set_config("later", "A"),
            _ if turn % 7 == 0 => drop(world.set_image(&loads[2], &format!("app:{turn}")).ok()),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(700));
    }
}

#[test]
#[ignore = "`make picture` rewrites the file"]
fn writes_the_picture_of_the_dashboard() {
    let confrev = running();
    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    let world = World::new("picture");
    let prometheus = Prometheus::start(world.cluster, &confrev.admin_url());
    let from = prometheus.now();
    work(&world);
    let picture = Picture { from, to: prometheus.now() };
    let drawn = panels().iter().map(|panel| picture.draw(panel, &prometheus)).collect::<Vec<_>>();
    fs::write(self::picture(), picture.write(&panels(), &drawn)).expect("the picture can be written");
}

#[test]
fn dashboard_picture_shows_each_panel_with_data() {
    let svg = fs::read_to_string(picture()).unwrap();
    for panel in panels() {
        assert!(
            svg.contains(&format!(">{}</text>", panel.title)),
            "{} is not shown: run make picture",
            panel.title
        );
    }
    assert!(svg.matches("<polyline").count() >= 20, "the panels have lines");
}
