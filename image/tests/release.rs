//! The files of a release: each is verified as a user would verify it.
//!
//! The test of the real files is ignored, since building them takes minutes: `make test-release` runs it after `make release`.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use confrev_controlplane::ControlPlane;
use confrev_image::{Build, statement};
use serde_json::{Value, json};

use support::{Folder, digest_of, read, root, run, unpacked};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A new private key, and its public key.
fn key(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (private, public) = (folder.join(name), folder.join(format!("{name}.pub")));
    let mut generate = Command::new("openssl");
    generate.args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]);
    run(generate.arg(&private));
    run(Command::new("openssl").args(["pkey", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public));
    (private, public)
}

/// Whether `release/verify.sh` accepts the folder.
fn is_verified(folder: &Path, public: &Path) -> bool {
    let verify = Command::new(root().join("release/verify.sh")).arg(folder).arg(public).output().unwrap();
    verify.status.success()
}

fn json_of(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn decoded(text: &str, folder: &Path) -> Vec<u8> {
    let file = folder.join("encoded");
    fs::write(&file, text).unwrap();
    let decoded = Command::new("base64").arg("--decode").arg(&file).output().unwrap();
    assert!(decoded.status.success(), "not base64: {text}");
    decoded.stdout
}

/// Checks that the statement lists exactly the files of the release that it describes, and this commit.
fn check_statement(statement: &Value, folder: &Path) {
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let listed = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<_> = listed.map(|name| name.into_string().unwrap()).collect();
    let describes = |name: &String| {
        name.starts_with("SHA256SUMS")
            || name.ends_with(".provenance.json")
            || name.ends_with(".intoto.jsonl")
    };
    files.retain(|name| !describes(name));
    files.sort_unstable();
    let subjects: Vec<_> = statement["subject"].as_array().unwrap().iter().collect();
    let names: Vec<_> = subjects.iter().map(|subject| subject["name"].as_str().unwrap()).collect();
    assert_eq!(names, files);
    for subject in subjects {
        let content = fs::read(folder.join(subject["name"].as_str().unwrap())).unwrap();
        let digest = subject["digest"]["sha256"].as_str().unwrap();
        assert_eq!(format!("sha256:{digest}"), digest_of(&content), "{subject}");
    }
    let inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"].as_array().unwrap();
    let lock = inputs.iter().find(|input| input["name"] == "Cargo.lock").expect("Cargo.lock");
    let digest = lock["digest"]["sha256"].as_str().unwrap();
    assert_eq!(format!("sha256:{digest}"), digest_of(&fs::read(root().join("Cargo.lock")).unwrap()));
    assert!(inputs[0]["digest"]["gitCommit"].as_str().is_some_and(|commit| commit.len() == 40), "{inputs:?}");
    assert!(statement["predicate"]["runDetails"]["builder"]["id"].as_str().unwrap().starts_with("https://"));
}

/// Checks the signature of the envelope, as in-toto's tools compute it.
fn check_envelope(envelope: &Value, statement: &Path, public: &Path, scratch: &Path) {
    let [signature] = &envelope["signatures"].as_array().unwrap()[..] else { panic!("{envelope}") };
    let payload = decoded(envelope["payload"].as_str().unwrap(), scratch);
    assert_eq!(payload, fs::read(statement).unwrap());
    let kind = envelope["payloadType"].as_str().unwrap();
    let mut signed = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    signed.extend(payload);
    let (data, raw) = (scratch.join("signed"), scratch.join("signature"));
    fs::write(&data, signed).unwrap();
    fs::write(&raw, decoded(signature["sig"].as_str().unwrap(), scratch)).unwrap();
    let mut verify = Command::new("openssl");
    verify.args(["dgst", "-sha256", "-verify"]).arg(public).arg("-signature").arg(&raw).arg(&data);
    assert_eq!(run(&mut verify).trim(), "Verified OK");
}

#[test]
fn statement_lists_files_commit_and_inputs() {
    let build = Build {
        version: "1.2.3",
        commit: "c0ffee",
        epoch: 7,
        compiler: "1.95.0",
        repository: "https://example.com/confrev",
        builder: "https://example.com/builder",
    };
    let files = [("b".to_owned(), b"two".to_vec()), ("c".to_owned(), Vec::new())];
    let made = statement(&build, &files, &[("Cargo.lock", b"lock".to_vec())]);
    let digest = |content: &[u8]| digest_of(content).replace("sha256:", "");
    assert_eq!(
        made["subject"],
        json!([
            {"name": "b", "digest": {"sha256": digest(b"two")}},
            {"name": "c", "digest": {"sha256": digest(b"")}},
        ])
    );
    let definition = &made["predicate"]["buildDefinition"];
    assert_eq!(definition["internalParameters"]["SOURCE_DATE_EPOCH"], 7);
    assert_eq!(
        definition["resolvedDependencies"],
        json!([
            {"uri": "git+https://example.com/confrev@refs/tags/v1.2.3", "digest": {"gitCommit": "c0ffee"}},
            {"uri": "pkg:generic/rust@1.95.0"},
            {"name": "Cargo.lock", "digest": {"sha256": digest(b"lock")}},
        ])
    );
    assert_eq!(made["predicate"]["runDetails"]["builder"]["id"], "https://example.com/builder");
}

#[test]
fn signed_files_are_verified_and_changes_detected() {
    let scratch = Folder::new("signed");
    let folder = scratch.0.join("files");
    fs::create_dir_all(&folder).unwrap();
    for name in ["confrev-1.tgz", "confrev.yaml"] {
        fs::write(folder.join(name), name).unwrap();
    }
    let (private, public) = key(&scratch.0, "key");
    let (_, other) = key(&scratch.0, "other");
    let finish = |private: &Path| {
        let mut finish = Command::new(root().join("release/finish.sh"));
        run(finish.arg(&folder).env("CARGO", env!("CARGO")).env("KEY", private));
    };
    finish(&private);
    let statement = folder.join(format!("confrev-v{VERSION}.provenance.json"));
    check_statement(&json_of(&statement), &folder);
    let envelope = json_of(&folder.join(format!("confrev-v{VERSION}.intoto.jsonl")));
    check_envelope(&envelope, &statement, &public, &scratch.0);
    assert!(is_verified(&folder, &public));
    assert!(!is_verified(&folder, &other), "the key is not checked");

    fs::write(folder.join("confrev.yaml"), "changed").unwrap();
    assert!(!is_verified(&folder, &public), "a change of a file is not detected");
    // An attacker who also writes the checksum again has no key.
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let [old, new] =
        ["confrev.yaml", "changed"].map(|text| digest_of(text.as_bytes()).replace("sha256:", ""));
    fs::write(folder.join("SHA256SUMS"), sums.replace(&old, &new)).unwrap();
    assert!(!is_verified(&folder, &public), "a change of the checksums is not detected");

    // A later release of the same folder describes the changed file. Without a key, nothing is signed.
    finish(&private);
    assert!(is_verified(&folder, &public));
    finish(Path::new(""));
    check_statement(&json_of(&statement), &folder);
    assert!(!folder.join("SHA256SUMS.sig").exists());
}

/// The path of the program in an archive for krew, unpacked into `folder`.
fn plugin(archive: &Path, folder: &Path) -> PathBuf {
    run(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(folder));
    assert_eq!(fs::metadata(folder.join("LICENSE")).unwrap().permissions().mode() & 0o777, 0o644);
    folder.join("confrev")
}

/// The machine of a program in the ELF format, under its name in Go.
fn machine(program: &[u8]) -> &'static str {
    match program[18..20] {
        [0x3e, 0] => "amd64",
        [0xb7, 0] => "arm64",
        ref other => panic!("unknown machine {other:?}"),
    }
}

/// Checks the digests in the image for all architectures, and that the manifests name this image.
fn check_joined_image(path: &Path, folder: &Path) {
    let parts = unpacked(&fs::read(path).unwrap());
    for (part, (content, _)) in parts.iter().filter(|(part, _)| part.starts_with("blobs/")) {
        assert_eq!(part.replace("blobs/sha256/", "sha256:"), digest_of(content));
    }
    let index: Value = serde_json::from_slice(&parts["index.json"].0).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    for manifest in ["self-signed", "cert-manager"] {
        let manifest = folder.join(format!("confrev-v{VERSION}-{manifest}.yaml"));
        let text = fs::read_to_string(manifest).unwrap();
        assert!(text.contains(&format!("@{digest}")), "the manifest names another image");
    }
}

/// Checks the plugin for krew of one platform. The program runs if it is for this machine.
fn check_plugin(path: &Path, platform: &str, scratch: &Path) {
    let unpacked = scratch.join(platform);
    fs::create_dir_all(&unpacked).unwrap();
    let program = plugin(path, &unpacked);
    let architecture = machine(&fs::read(&program).unwrap());
    assert!(platform.contains(architecture), "{platform}: {architecture}");
    if architecture == machine(&fs::read("/proc/self/exe").unwrap()) {
        assert_eq!(run(Command::new(program).arg("--version")).trim(), format!("confrev {VERSION}"));
    }
}

/// Checks that krew's manifest has the digest of each archive that it names.
fn check_krew_manifest(path: &Path, folder: &Path) {
    let text = fs::read_to_string(path).unwrap();
    let archives: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("uri: ")).collect();
    assert!(!archives.is_empty(), "{text}");
    for archive in archives {
        let archive = folder.join(archive.trim_matches('"').rsplit('/').next().unwrap());
        let digest = digest_of(&fs::read(&archive).unwrap()).replace("sha256:", "");
        assert!(text.contains(&digest), "{}", archive.display());
    }
}

/// A file that no arm verifies fails the test.
#[test]
#[ignore = "needs the files of a release"]
fn every_file_of_release_is_verified() {
    let folder = std::env::var_os("CONFREV_DIST").expect("CONFREV_DIST is set, as by `make test-release`");
    let (folder, scratch) = (PathBuf::from(folder), Folder::new("release"));
    let cluster = ControlPlane::shared();
    let helm = |arguments: &[&str], chart: &Path| {
        run(Command::new(cluster.bin("helm")).args(arguments).arg(chart).args(["--namespace", "confrev"]))
    };
    let public = std::env::var_os("CONFREV_RELEASE_PUBLIC_KEY").filter(|key| !key.is_empty());
    let public = public.map(PathBuf::from).filter(|path| path.is_file());
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    let mut kinds = Vec::new();
    for name in names {
        let name = name.into_string().unwrap();
        let path = folder.join(&name);
        let rest = name.strip_prefix(&format!("confrev-v{VERSION}")).unwrap_or(&name);
        match rest {
            "-linux-amd64.image.tar" | "-linux-arm64.image.tar" => {
                let image = read(&fs::read(&path).unwrap());
                assert!(rest.contains(image.platform["architecture"].as_str().unwrap()), "{name}");
                assert!(rest.contains(machine(&image.files["confrev"].0)), "{name}");
            }
            ".image.tar" => check_joined_image(&path, &folder),
            "-linux-amd64.tar.gz" | "-linux-arm64.tar.gz" => check_plugin(&path, rest, &scratch.0),
            "-linux-amd64.cdx.json" | "-linux-arm64.cdx.json" => {
                let bill = json_of(&path);
                assert_eq!(bill["metadata"]["component"]["purl"], format!("pkg:cargo/confrev@{VERSION}"));
                assert!(bill["components"].as_array().unwrap().len() > 100, "{name}");
            }
            "-self-signed.yaml" | "-cert-manager.yaml" | "-carry.yaml" => {
                let text = fs::read_to_string(&path).unwrap();
                assert!(text.contains("kind: MutatingWebhookConfiguration"), "{name}");
            }
            ".provenance.json" => check_statement(&json_of(&path), &folder),
            ".intoto.jsonl" => {
                let statement = folder.join(format!("confrev-v{VERSION}.provenance.json"));
                let public = public.as_ref().expect("RELEASE_PUBLIC_KEY names the key of the signatures");
                check_envelope(&json_of(&path), &statement, public, &scratch.0);
            }
            "confrev.yaml" => check_krew_manifest(&path, &folder),
            "SHA256SUMS" => {
                run(Command::new("sha256sum")
                    .args(["--check", "--strict", "SHA256SUMS"])
                    .current_dir(&folder));
            }
            "SHA256SUMS.sig" => {
                assert!(is_verified(&folder, public.as_ref().expect("RELEASE_PUBLIC_KEY is set")));
            }
            _ if name == format!("confrev-{VERSION}.tgz") => {
                helm(&["lint"], &path);
                let [archive, chart] = [path.as_path(), &root().join("charts/confrev")]
                    .map(|chart| helm(&["template", "confrev"], chart));
                assert_eq!(archive, chart);
            }
            _ => panic!("no check for {name}"),
        }
        kinds.push(rest.to_owned());
    }
    let required = [
        ".image.tar",
        "-linux-amd64.image.tar",
        "-linux-amd64.tar.gz",
        "-linux-amd64.cdx.json",
        "confrev.yaml",
        "-self-signed.yaml",
        "-cert-manager.yaml",
        "-carry.yaml",
        ".provenance.json",
        "SHA256SUMS",
    ];
    for kind in required {
        assert!(kinds.iter().any(|found| found == kind), "no {kind} in {kinds:?}");
    }
    assert!(kinds.contains(&format!("confrev-{VERSION}.tgz")), "no chart in {kinds:?}");
}
