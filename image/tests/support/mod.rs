//! Reads images, runs commands, and makes folders.
#![allow(dead_code, reason = "each test crate uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The output of a command that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The names, contents and modes of the files in a tar archive.
pub(crate) fn unpacked(archive: &[u8]) -> BTreeMap<String, (Vec<u8>, u32)> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        let name = entry.path().unwrap().display().to_string();
        files.insert(name, (content, entry.header().mode().unwrap()));
    }
    files
}

/// An image, read as a registry reads it: from the index, by digests. Each digest is compared with its blob.
pub(crate) struct Read {
    pub(crate) config: Value,
    pub(crate) platform: Value,
    pub(crate) files: BTreeMap<String, (Vec<u8>, u32)>,
}

pub(crate) fn read(archive: &[u8]) -> Read {
    let parts = unpacked(archive);
    let part = |name: &str| parts.get(name).unwrap_or_else(|| panic!("no {name}")).0.as_slice();
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        let content = part(&format!("blobs/{}", digest.replace(':', "/")));
        assert_eq!(digest, digest_of(content));
        assert_eq!(descriptor["size"], content.len());
        content
    };
    assert_eq!(parsed(part("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = parsed(part("index.json"));
    let [entry] = &index["manifests"].as_array().unwrap()[..] else { panic!("not one image: {index}") };
    let manifest = parsed(blob(entry));
    let config = parsed(blob(&manifest["config"]));
    let [layer] = &manifest["layers"].as_array().unwrap()[..] else { panic!("not one layer: {manifest}") };
    assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
    let mut files = Vec::new();
    GzDecoder::new(blob(layer)).read_to_end(&mut files).unwrap();
    assert_eq!(config["rootfs"], json!({"type": "layers", "diff_ids": [digest_of(&files)]}));

    // The description for older tools is equal.
    let docker = parsed(part("manifest.json"))[0].clone();
    let path =
        |descriptor: &Value| format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
    assert_eq!(docker["Config"], path(&manifest["config"]));
    assert_eq!(docker["Layers"], json!([path(layer)]));
    Read { config, platform: entry["platform"].clone(), files: unpacked(&files) }
}

pub(crate) fn digest_of(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A folder below the system's temporary folder. It is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("confrev-image-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
