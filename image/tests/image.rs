//! The image: its contents, its reproducibility, and that it serves an API server.
//!
//! Tests of the real image are ignored, since building it takes minutes: `make test-image` runs them.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use confrev_controlplane::{ControlPlane, Program};
use confrev_image::{Image, bill_of_materials, join};
use serde_json::{Value, json};

use support::{Folder, digest_of, read, root, run, unpacked};

/// The limit of the compressed image's size, in bytes.
const LIMIT: usize = 7_000_000;
/// The limit of the program's size, in bytes: see docs/evidence/performance.md.
const PROGRAM_LIMIT: usize = 14_000_000;

fn small() -> Image<'static> {
    Image { binary: b"program", architecture: "arm64", version: "1.2.3", epoch: 1_700_000_000 }
}

#[test]
fn image_has_one_file_executable_by_anyone() {
    let image = read(&small().write().unwrap().archive);
    let program = (b"program".to_vec(), 0o755);
    assert_eq!(image.files, BTreeMap::from([("confrev".to_owned(), program)]));
    assert_eq!(image.platform, json!({"architecture": "arm64", "os": "linux"}));
    assert_eq!(image.config["architecture"], "arm64");
    assert_eq!(image.config["created"], "2023-11-14T22:13:20Z");
}

#[test]
fn image_depends_on_its_input_only() {
    let [one, two] = [(); 2].map(|()| small().write().unwrap());
    assert_eq!((&one.digest, &one.archive), (&two.digest, &two.archive));
    for other in [
        Image { binary: b"Program", ..small() },
        Image { architecture: "amd64", ..small() },
        Image { version: "1.2.4", ..small() },
        Image { epoch: 0, ..small() },
    ] {
        assert_ne!(other.write().unwrap().digest, one.digest, "{other:?}");
    }
}

#[test]
fn joined_image_has_image_of_each_architecture() {
    let images = ["amd64", "arm64"].map(|architecture| Image { architecture, ..small() }.write().unwrap());
    let archives = images.each_ref().map(|image| image.archive.clone());
    let joined = join(&archives, "1.2.3", 1_700_000_000).unwrap();
    let parts = unpacked(&joined.archive);
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap();
        let content = &parts[&format!("blobs/{}", digest.replace(':', "/"))].0;
        assert_eq!(digest, digest_of(content));
        serde_json::from_slice::<Value>(content).unwrap()
    };
    let index: Value = serde_json::from_slice(&parts["index.json"].0).unwrap();
    let [entry] = &index["manifests"].as_array().unwrap()[..] else { panic!("not one entry: {index}") };
    assert_eq!(entry["digest"], joined.digest);
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
    let list = blob(&entry["digest"]);
    assert_eq!(list["mediaType"], "application/vnd.oci.image.index.v1+json");
    let listed: Vec<_> = list["manifests"].as_array().unwrap().iter().collect();
    for (image, listed) in images.iter().zip(&listed) {
        assert_eq!(listed["digest"], image.digest);
        let config = blob(&blob(&listed["digest"])["config"]["digest"]);
        assert_eq!(config["architecture"], listed["platform"]["architecture"]);
    }
    assert_eq!(listed.len(), 2);
    assert_eq!(join(&archives, "1.2.3", 1_700_000_000).unwrap().archive, joined.archive);
    assert!(join(&[b"no archive".to_vec()], "1.2.3", 0).is_err());
}

/// The Dockerfile's last stage has the same configuration, and its first stage copies all files that cargo needs.
#[test]
fn the_dockerfile_makes_the_same_image() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let config = read(&small().write().unwrap().archive).config["config"].clone();
    let line =
        |word: &str| dockerfile.lines().rfind(|line| line.starts_with(word)).unwrap()[word.len()..].trim();
    assert_eq!(line("USER"), config["User"]);
    assert_eq!(line("ENTRYPOINT"), config["Entrypoint"].to_string());
    assert_eq!(line("CMD"), config["Cmd"].to_string());
    let ports: BTreeSet<_> = line("EXPOSE").split(' ').map(|port| format!("{port}/tcp")).collect();
    assert_eq!(ports, config["ExposedPorts"].as_object().unwrap().keys().cloned().collect());
    assert_eq!(line("FROM"), "scratch");
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap();
    let version = toolchain.split('"').nth(1).unwrap();
    let base = format!("ARG RUST_IMAGE=rust:{version}-alpine\nFROM ${{RUST_IMAGE}} AS build\n");
    assert!(dockerfile.contains(&base), "the toolchain is {version}");
    // The build pulls no other image, such as another frontend for the Dockerfile.
    assert_eq!(dockerfile.lines().filter(|line| line.starts_with("FROM")).count(), 2);
    assert!(!dockerfile.contains("syntax="), "the file asks for a frontend by a tag");

    let context = Folder::new("context");
    for line in dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--"))
    {
        let mut words: Vec<_> = line.split(' ').collect();
        let to = context.0.join(words.pop().unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        run(Command::new("cp").arg("-r").args(&words).arg(&to).current_dir(root()));
    }
    let cargo = env!("CARGO");
    run(Command::new(cargo).args(["metadata", "--locked", "--format-version=1"]).current_dir(&context.0));
}

/// Each crate has a checksum and a licence.
#[test]
fn bill_of_materials_lists_all_linked_components() {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let cargo = |arguments: &[&str]| run(Command::new(env!("CARGO")).args(arguments).current_dir(root()));
    let metadata = cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", TARGET]);
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let bill = bill_of_materials(&serde_json::from_str(&metadata).unwrap(), &lock, "1.95.0", TARGET).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
    let components = bill["components"].as_array().unwrap();
    let is_crate = |component: &&Value| component["purl"].as_str().unwrap().starts_with("pkg:cargo/");
    for component in components.iter().filter(is_crate) {
        // The workspace's own crates come from no registry, so they have no checksum.
        let is_own = component["name"].as_str().is_some_and(|name| name.starts_with("confrev"));
        assert!(
            is_own || component["hashes"][0]["content"].as_str().is_some_and(|hash| hash.len() == 64),
            "{component}"
        );
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    // Components that are not in Cargo.lock.
    let named = |name: &str| components.iter().find(|component| component["name"] == name).expect(name);
    assert_eq!(named("rust-std")["version"], "1.95.0");
    assert_eq!(named("musl")["licenses"][0]["expression"], "MIT");
    assert_eq!(named("ring")["components"][0]["name"], "ring: C and assembly");
    // No other crate compiles C.
    let native: Vec<_> = components.iter().filter(|component| component["components"].is_array()).collect();
    assert_eq!(native.len(), 1, "{native:?}");
    // cargo's own list of linked crates.
    let tree = ["tree", "--locked", "-p", "confrev", "--edges=normal,no-proc-macro", "--target", TARGET];
    let tree = cargo(&[&tree[..], &["--prefix=none", "--format={p}"]].concat());
    let linked = |line: &str| {
        let mut words = line.split(' ');
        Some(format!("pkg:cargo/{}@{}", words.next()?, words.next()?.strip_prefix('v')?))
    };
    let mut linked: BTreeSet<_> = tree.lines().filter_map(linked).collect();
    linked.remove(bill["metadata"]["component"]["purl"].as_str().unwrap());
    let listed: BTreeSet<_> = components.iter().map(|c| c["purl"].as_str().unwrap().to_owned()).collect();
    let missing: Vec<_> = linked.difference(&listed).collect();
    assert!(missing.is_empty(), "linked but not listed: {missing:?}");
    assert!(listed.iter().all(|purl| !purl.contains("/proptest@") && !purl.contains("/syn@")), "{listed:?}");
}

/// The folder of `make image`, and the archive in it.
fn real() -> (PathBuf, Vec<u8>) {
    let folder = std::env::var_os("CONFREV_IMAGE").expect("CONFREV_IMAGE is set, as by `make test-image`");
    let folder = PathBuf::from(folder);
    let archive = fs::read(folder.join("confrev.tar")).unwrap();
    (folder, archive)
}

/// The path of the program, extracted from the image into `folder`.
fn program(folder: &Folder) -> PathBuf {
    let image = read(&real().1);
    let (content, mode) = &image.files["confrev"];
    let path = folder.0.join("confrev");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
    path
}

/// Its program needs no other file, and prints its version.
#[test]
#[ignore = "needs the image"]
fn real_image_is_small_and_static() {
    let (folder, archive) = real();
    assert!(archive.len() < LIMIT, "{} bytes", archive.len());
    let image = read(&archive);
    assert_eq!(image.config["config"]["User"], "65532:65532");
    let binary = &image.files["confrev"].0;
    assert!(binary.len() <= PROGRAM_LIMIT, "{} bytes", binary.len());
    // A dynamically linked program contains the name of its loader.
    let interpreters = [&b"/lib64/ld-"[..], b"/lib/ld-"];
    let names = |wanted: &[u8]| binary.windows(wanted.len()).any(|window| window == wanted);
    assert!(!interpreters.iter().any(|interpreter| names(interpreter)), "the binary is dynamically linked");
    // The binary contains no path of the build machine.
    assert!(!names(root().display().to_string().as_bytes()), "the binary contains the source folder's path");

    let unpacked = Folder::new("program");
    let version = run(Command::new(program(&unpacked)).arg("--version").env_clear());
    assert_eq!(version.trim(), format!("confrev {}", env!("CARGO_PKG_VERSION")));
    let bill: Value = serde_json::from_slice(&fs::read(folder.join("confrev.cdx.json")).unwrap()).unwrap();
    assert_eq!(
        bill["metadata"]["component"]["purl"],
        format!("pkg:cargo/confrev@{}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
#[ignore = "needs the image"]
fn image_program_serves_an_api_server() {
    let unpacked = Folder::new("serving");
    let cluster = ControlPlane::shared();
    Program::install(cluster);
    let mut confrev = Program::new(cluster, &program(&unpacked));
    confrev.start();
    let namespace = cluster.namespace("image");
    cluster.create(
        "configmap",
        namespace.name(),
        &json!({"metadata": {"name": "demo"}, "data": {"text": "A"}}),
    );
    let labels = json!({"app": "web"});
    let web = json!({
        "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "containers": [{"name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "demo"}}]}],
        }}},
    });
    let web = cluster.create("deployment", namespace.name(), &web);
    let reads = &web["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
    assert!(reads.as_str().unwrap().starts_with("demo-"), "{reads}");
    confrev.stop();
}

/// Takes minutes: it compiles everything again, in a folder with another name and path.
#[test]
#[ignore = "needs the image"]
fn image_has_the_same_digest_in_another_folder() {
    let elsewhere = Folder::new("a-folder-of-another-name");
    let files = run(Command::new("git").args(["ls-files"]).current_dir(root()));
    for file in files.lines() {
        let to = elsewhere.0.join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(root().join(file), to).unwrap();
    }
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "image"])
        .current_dir(&elsewhere.0)
        .env_remove("IMAGE")
        .env_remove("MAKEFLAGS");
    run(&mut make);
    let again = fs::read(elsewhere.0.join("target/image/confrev.tar")).unwrap();
    assert_eq!(digest_of(&again), digest_of(&real().1));
}
