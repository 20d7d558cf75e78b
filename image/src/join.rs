//! Joins images of several architectures into one.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::{Value, json};

use crate::Result;
use crate::layout::{Blob, Written, archive, entry_annotations};

/// The media type of a list of images.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// One image for several architectures, from the archive of each. A client selects the image of its own architecture.
pub fn join(archives: &[Vec<u8>], version: &str, epoch: i64) -> Result<Written> {
    let mut blobs = BTreeMap::new();
    let mut manifests = Vec::new();
    for image in archives {
        let mut parts = parts(image)?;
        let index = parts.remove("index.json").ok_or("an image without index.json")?;
        let mut index: Value = serde_json::from_slice(&index).map_err(|e| format!("index.json: {e}"))?;
        let mut manifest = index["manifests"][0].take();
        if let Some(manifest) = manifest.as_object_mut() {
            manifest.remove("annotations");
        }
        manifests.push(manifest);
        blobs.extend(parts.into_iter().filter(|(name, _)| name.starts_with("blobs/")));
    }
    let list = Blob::json(&json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}));
    let mut entry = list.descriptor("index.v1+json");
    entry["annotations"] = entry_annotations(version);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let digest = list.digest.clone();
    blobs.insert(list.path(), list.content);
    let mut files = vec![
        ("oci-layout".to_owned(), json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes()),
        ("index.json".to_owned(), index.to_string().into_bytes()),
    ];
    files.extend(blobs);
    let files: Vec<_> = files.iter().map(|(name, data)| (name.clone(), data.as_slice(), 0o644)).collect();
    Ok(Written { archive: archive(&files, epoch)?, digest })
}

/// The files in an archive.
fn parts(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let problem = |e| format!("cannot read an image: {e}");
    let mut parts = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().map_err(problem)? {
        let mut entry = entry.map_err(problem)?;
        let name = entry.path().map_err(problem)?.display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(problem)?;
        parts.insert(name, content);
    }
    Ok(parts)
}
