//! The upgrade from the previous commit, both as pods.

use std::env;
use std::fs;
use std::path::PathBuf;

use confrev_controlplane::{Nodes, own_chart};

use crate::printing::{canary, delete_pod, delete_source, keep_printed, pod_that_printed, wait_printed};
use crate::shared::{VALUES, cluster, confrev_pods, exclusive, image, remove, wait_serving};
use crate::world::{World, expect};
use crate::writer::Writer;

/// The repository of confrev's image, as containerd names it.
const REPOSITORY: &str = "docker.io/library/confrev";

/// The image and the chart of the previous commit, if `make test-node` could build them.
fn older() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("CONFREV_OLDER")?);
    folder.join("confrev.tar").exists().then_some(folder)
}

/// Installs the chart of the previous commit with its own image, under a tag of its own: both commits may have the same version.
fn install_older(older: &std::path::Path) {
    let chart = older.join("chart");
    let text = fs::read_to_string(chart.join("Chart.yaml")).expect("the older chart can be read");
    let version = text.lines().find_map(|line| line.strip_prefix("appVersion:")).expect("a version");
    let version = version.trim().trim_matches('"');
    let nodes = Nodes::shared();
    nodes.import(&older.join("confrev.tar"));
    nodes.tag(&format!("{REPOSITORY}:{version}"), &format!("{REPOSITORY}:older"));
    nodes.import(&image());
    cluster().upgrade_chart(&chart, &[VALUES.as_slice(), &["image.tag=\"older\""]].concat());
    wait_serving(2);
}

/// The images of confrev's pods.
fn images() -> Vec<String> {
    let pods = confrev_pods();
    pods.iter().map(|pod| crate::world::text(&pod["spec"]["containers"][0]["image"])).collect()
}

/// No write is refused, no workload rolls, and every pod keeps its content. The newer confrev continues with the state that the
/// older one left.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn upgrade_from_previous_commit_refuses_no_write() {
    let _alone = exclusive();
    let Some(older) = older() else {
        eprintln!("SKIPPED: there is no previous commit to upgrade from");
        return;
    };
    remove();
    install_older(&older);
    assert_eq!(images(), ["confrev:older"; 2]);
    let world = World::new("upgrade");
    let web = canary("web");
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue"; 4]);
    world.set_config("demo", "green");
    let both = ["blue", "blue", "blue", "green"];
    wait_printed(&world, &web, &both);
    let pods = || -> Vec<String> { web.pods(&world).iter().map(crate::world::name_of).collect() };
    let before = pods();

    let writer = Writer::start(&world);
    cluster().upgrade_chart(&own_chart(), &VALUES);
    wait_serving(2);
    let writes = writer.stop();
    eprintln!("during the upgrade: {writes}");
    assert!(writes.refused.is_empty(), "{writes}");
    assert!(!images().contains(&"confrev:older".to_owned()), "{:?}", images());
    expect(&pods(), &before).unwrap();

    delete_source(&world, "configmap");
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    wait_printed(&world, &web, &both);
    world.set_config("demo", "red");
    wait_printed(&world, &web, &["blue", "blue", "blue", "red"]);
    keep_printed(&world, &web, &["blue", "blue", "blue", "red"]);
}
