//! The plugin for krew: the manifest matches the archives, and passes the rules of krew's validation.

use std::{fs, path::Path, process::Command};

use clap::CommandFactory as _;
use confrev::cli::Cli;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const URL: &str = "https://example.com/confrev";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Packs a program for these architectures. Returns the folder with the archives, and the manifest.
fn pack(name: &str, architectures: &[&str]) -> (std::path::PathBuf, Value) {
    let folder = std::env::temp_dir().join(format!("confrev-krew-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for architecture in architectures {
        let binary = folder.join("program");
        fs::write(&binary, format!("#!/bin/sh\necho {architecture}\n")).unwrap();
        let mut command = Command::new(root().join("krew/pack.sh"));
        command.arg(&binary).args([architecture]).arg(folder.join("out")).arg(URL);
        let output = command.env("SOURCE_DATE_EPOCH", "0").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = fs::read_to_string(folder.join("out/confrev.yaml")).unwrap();
    (folder.join("out"), serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Checks the manifest like krew. Source: krew, `internal/index/validation`.
fn validate(manifest: &Value) {
    let text = |pointer: &str| {
        let value = manifest.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("no {pointer}: {manifest}")).to_owned()
    };
    assert_eq!(text("/apiVersion"), "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(text("/kind"), "Plugin");
    assert_eq!(text("/metadata/name"), "confrev", "it must equal the name of the file");
    assert!(!manifest.to_string().contains('@'), "a placeholder is left: {manifest}");
    let short = text("/spec/shortDescription");
    assert!(!short.contains(['\r', '\n']) && (10..=60).contains(&short.len()), "{short}");
    for platform in manifest["spec"]["platforms"].as_array().unwrap() {
        let field = |name: &str| platform[name].as_str().unwrap().to_owned();
        assert!(field("uri").ends_with(".tar.gz") && field("uri").starts_with(URL));
        assert!(field("sha256").len() == 64 && field("sha256").chars().all(|c| c.is_ascii_hexdigit()));
        let files = platform["files"].as_array().unwrap();
        assert!(files.iter().any(|file| file["from"] == field("bin") && file["to"] == "."));
        assert!(files.iter().all(|file| !file["from"].to_string().contains("..")));
        assert_eq!(platform["selector"]["matchLabels"]["os"], "linux");
    }
}

/// It has the program's version and description.
#[test]
fn krew_manifest_is_valid_and_matches_archives() {
    let (folder, manifest) = pack("both", &["amd64", "arm64"]);
    validate(&manifest);
    assert_eq!(manifest["spec"]["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
    let description = manifest["spec"]["description"].as_str().unwrap();
    assert!(description.starts_with(env!("CARGO_PKG_DESCRIPTION")), "it differs from Cargo.toml");
    let cli = Cli::command();
    for named in description.split('(').skip(1).filter_map(|rest| rest.split_once(')')) {
        for command in named.0.split([',', ' ', '\n']).filter(|word| !word.is_empty()) {
            assert!(cli.find_subcommand(command).is_some(), "unknown command {command}");
        }
    }
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 2);
    for platform in platforms {
        let uri = platform["uri"].as_str().unwrap();
        let archive = folder.join(uri.rsplit('/').next().unwrap());
        let digest = Sha256::digest(fs::read(&archive).unwrap());
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        assert_eq!(platform["sha256"], digest);
        let listed = Command::new("tar").arg("--list").arg("--file").arg(&archive).output().unwrap();
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "LICENSE\nconfrev\n");
        assert!(uri.contains(platform["selector"]["matchLabels"]["arch"].as_str().unwrap()));
    }
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

/// Packing again gives the same manifest and digests.
#[test]
fn krew_manifest_lists_only_packed_platforms() {
    let (folder, manifest) = pack("one", &["amd64"]);
    validate(&manifest);
    assert_eq!(manifest["spec"]["platforms"].as_array().unwrap().len(), 1);
    let (other, again) = pack("again", &["amd64"]);
    assert_eq!(manifest, again, "digests too");
    for folder in [folder, other] {
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }
}
