//! The image: a layer, a configuration, a manifest, an index, and a tar archive of all of them.
//! Source: OCI image specification 1.1, <https://github.com/opencontainers/image-spec>.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::Result;

/// Numeric: the kubelet can verify that the user is not root (`runAsNonRoot`) without a passwd file.
const USER: &str = "65532:65532";
/// The path of the binary.
const ENTRY_POINT: &str = "/confrev";

/// The input of an image.
#[derive(Debug)]
pub struct Image<'a> {
    /// The statically linked program.
    pub binary: &'a [u8],
    /// The architecture's name in Go, such as `amd64`.
    pub architecture: &'a str,
    /// The program's version, which is also the image's tag.
    pub version: &'a str,
    /// The only time in the image, in seconds since 1970.
    pub epoch: i64,
}

/// An image as a file.
#[derive(Debug)]
pub struct Written {
    /// A tar archive in the OCI layout. `docker load` and `podman load` accept it too.
    pub archive: Vec<u8>,
    /// The digest of the image in a registry.
    pub digest: String,
}

/// A blob and its descriptor.
pub(crate) struct Blob {
    pub(crate) content: Vec<u8>,
    pub(crate) digest: String,
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        let digest = digest(&content);
        Self { content, digest }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    pub(crate) fn descriptor(&self, media_type: &str) -> Value {
        json!({
            "mediaType": format!("application/vnd.oci.image.{media_type}"),
            "digest": self.digest,
            "size": self.content.len(),
        })
    }

    pub(crate) fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

impl Image<'_> {
    /// Assembles the image.
    pub fn write(&self) -> Result<Written> {
        let created =
            Timestamp::from_second(self.epoch).map_err(|e| format!("the time {}: {e}", self.epoch))?;
        let files =
            archive(&[(ENTRY_POINT.trim_start_matches('/').to_owned(), self.binary, 0o755)], self.epoch)?;
        let layer = Blob::new(compressed(&files)?);
        let labels = json!({
            "org.opencontainers.image.title": "confrev",
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        });
        let config = Blob::json(&json!({
            "created": created.to_string(),
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "User": USER,
                "Entrypoint": [ENTRY_POINT],
                "Cmd": ["serve"],
                "ExposedPorts": {"8443/tcp": {}, "8080/tcp": {}},
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(&files)]},
            "history": [{"created": created.to_string(), "created_by": "make image"}],
        }));
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("config.v1+json"),
            "layers": [layer.descriptor("layer.v1.tar+gzip")],
            "annotations": labels,
        }));

        let tag = format!("confrev:{}", self.version);
        let mut entry = manifest.descriptor("manifest.v1+json");
        entry["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        entry["annotations"] = entry_annotations(self.version);
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        // The format that `docker load` read before it supported the OCI layout. Some tools still need it.
        let docker = json!([{"Config": config.path(), "RepoTags": [tag], "Layers": [layer.path()]}]);
        let parts = [
            ("oci-layout".to_owned(), json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes()),
            ("index.json".to_owned(), index.to_string().into_bytes()),
            ("manifest.json".to_owned(), docker.to_string().into_bytes()),
            (manifest.path(), manifest.content),
            (config.path(), config.content),
            (layer.path(), layer.content),
        ];
        let parts: Vec<_> = parts.iter().map(|(name, data)| (name.clone(), data.as_slice(), 0o644)).collect();
        Ok(Written { archive: archive(&parts, self.epoch)?, digest: manifest.digest })
    }
}

/// The annotations of an image in `index.json`: the names under which tools load it.
pub(crate) fn entry_annotations(version: &str) -> Value {
    json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("docker.io/library/confrev:{version}"),
    })
}

/// A tar archive of these files, all owned by root and with the same modification time.
pub(crate) fn archive(files: &[(String, &[u8], u32)], epoch: i64) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch.try_into().map_err(|_| "a time before 1970".to_owned())?);
        builder
            .append_data(&mut header, name, *content)
            .map_err(|e| format!("cannot archive {name}: {e}"))?;
    }
    builder.into_inner().map_err(|e| format!("cannot archive: {e}"))
}

/// Compresses without a file name or a time in the header.
fn compressed(data: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(data).and_then(|()| encoder.finish()).map_err(|e| format!("cannot compress: {e}"))
}

fn digest(content: &[u8]) -> String {
    let hash = Sha256::digest(content);
    hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}
