//! The upgrade of confrev's pods from the image and the manifest of the previous commit.

use std::env;
use std::fs;
use std::path::PathBuf;

use confrev_controlplane::{Nodes, wait_for};
use confrev_test_support::root;

use crate::confrev_pods::Writer;
use crate::printing::{canary_of_two, keep_printed, wait_printed};
use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, image, remove, wait_serving};
use crate::world::{World, expect};

/// The name of the image in the manifests, and the one under which the older image stays available beside it.
const IMAGE: &str = "confrev:0.1.0";
const OLDER: &str = "confrev:older";

/// `make test-node` builds the older image, unless there is no previous commit.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn upgrade_refuses_no_write() {
    let Some(older) = env::var_os("CONFREV_OLDER").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        eprintln!("left out: CONFREV_OLDER is not the folder of an older image");
        return;
    };
    let _alone = exclusive();
    let nodes = Nodes::shared();
    nodes.import(&older.join("confrev.tar"));
    nodes.tag(&format!("docker.io/library/{IMAGE}"), &format!("docker.io/library/{OLDER}"));
    nodes.import(&image());
    remove();
    let manifest = fs::read_to_string(older.join("self-signed.yaml")).expect("the older manifest");
    assert!(manifest.contains(IMAGE), "the older manifest has no image {IMAGE}");
    let apply =
        |manifest: String| cluster().kubectl(&["apply", "--filename", "-"]).stdin(manifest).run().ok();
    apply(manifest.replace(IMAGE, OLDER));
    wait_serving(2);
    let world = World::new("upgrade");
    let web = canary_of_two("web");
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
    world.set_config("demo", "green");
    wait_printed(&world, &web, &["blue", "green"]);

    let writer = Writer::start(&world);
    apply(fs::read_to_string(root().join("manifests/self-signed.yaml")).expect("the manifest"));
    wait_serving(2);
    wait_for("the newer image in both replicas", LIMIT, || {
        let pods = confrev_pods();
        let images: Vec<_> =
            pods.iter().filter_map(|pod| pod["spec"]["containers"][0]["image"].as_str()).collect();
        expect(&images, &vec![IMAGE; 2])
    });
    let writes = writer.stop();
    eprintln!("during the upgrade: {writes}");
    assert!(writes.refused.is_empty(), "{writes}");
    keep_printed(&world, &web, &["blue", "green"]);
    world.argo(&["promote", "web"]).ok();
    wait_printed(&world, &web, &["green", "green"]);
}
