//! Small images for the pods of tests: Debian's static busybox, as an archive that `docker save` could have written.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::Result;
use crate::node::requirements::BUSYBOX;

/// The image of the container that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "docker.io/library/pause:confrev";
/// The image of the pods of tests.
pub(crate) const SHELL: &str = "docker.io/library/busybox:confrev";

/// A small image for pods.
#[derive(Debug, Default, Clone, Copy)]
pub struct Image<'a> {
    /// Its full names, such as `docker.io/library/busybox:lab`.
    pub names: &'a [&'a str],
    /// What runs before the command.
    pub entrypoint: &'a [&'a str],
    /// What runs if a pod sets no arguments.
    pub command: &'a [&'a str],
    /// Programs beside those of busybox: their paths in the image, without the first slash, and on this machine.
    pub programs: &'a [(&'a str, &'a Path)],
}

/// Writes an image with busybox, and a link for each of its commands.
pub(crate) fn write(to: &Path, image: Image<'_>) -> Result<()> {
    let problem = |e: std::io::Error| format!("cannot write {}: {e}", to.display());
    let layer = layer(image.programs).map_err(problem)?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": image.entrypoint, "Cmd": image.command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": image.names, "Layers": ["layer.tar"]}]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [
        ("layer.tar", layer.as_slice()),
        ("config.json", config.to_string().as_bytes()),
        ("manifest.json", manifest.to_string().as_bytes()),
    ] {
        archive.append_data(&mut header(content.len(), 0o644), name, content).map_err(problem)?;
    }
    fs::write(to, archive.into_inner().map_err(problem)?).map_err(problem)
}

fn layer(programs: &[(&str, &Path)]) -> std::io::Result<Vec<u8>> {
    let binary = fs::read(BUSYBOX)?;
    let output = Command::new(BUSYBOX).arg("--list").output()?;
    let mut layer = tar::Builder::new(Vec::new());
    for (folder, mode) in [("bin/", 0o755), ("etc/", 0o755), ("tmp/", 0o1777)] {
        let mut header = header(0, mode);
        header.set_entry_type(tar::EntryType::Directory);
        layer.append_data(&mut header, folder, std::io::empty())?;
    }
    layer.append_data(&mut header(binary.len(), 0o755), "bin/busybox", binary.as_slice())?;
    for command in String::from_utf8_lossy(&output.stdout).lines().filter(|name| *name != "busybox") {
        let mut header = header(0, 0o777);
        header.set_entry_type(tar::EntryType::Symlink);
        layer.append_link(&mut header, format!("bin/{command}"), "busybox")?;
    }
    for (path, program) in programs {
        let program = fs::read(program)?;
        layer.append_data(&mut header(program.len(), 0o755), path, program.as_slice())?;
    }
    layer.into_inner()
}

fn header(size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}
