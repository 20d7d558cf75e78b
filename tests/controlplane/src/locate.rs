//! Finds the supervisor's binary for a test program, which depends only on this crate's library.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;

const NAME: &str = "controlplane";

/// The binary. cargo builds it, which is quick if it is up to date. Without cargo, it is the one in the folder where
/// this program was built.
pub(crate) fn supervisor() -> Result<PathBuf> {
    if env::var_os("CARGO_MANIFEST_DIR").is_some() {
        return build();
    }
    let neighbour = target_folder().map(|(profile, _)| profile.join(NAME)).filter(|binary| binary.is_file());
    neighbour.map_or_else(build, Ok)
}

fn build() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "build",
        "--quiet",
        "--message-format=json-render-diagnostics",
        "--bin",
        NAME,
        "--manifest-path",
    ]);
    cargo.arg(&manifest).stdin(Stdio::null()).stderr(Stdio::inherit());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    if let Some((_, target)) = target_folder() {
        cargo.arg("--target-dir").arg(target);
    }
    // Variables that cargo sets for this program's package would make it rebuild the supervisor.
    for (name, _) in env::vars_os() {
        let about_us = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if name.to_str().is_some_and(|name| about_us.iter().any(|prefix| name.starts_with(prefix))) {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().map_err(|e| format!("cannot run cargo to build the supervisor: {e}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = messages.filter_map(|m| m["executable"].as_str().map(PathBuf::from)).next_back();
    binary
        .filter(|_| output.status.success())
        .ok_or_else(|| "cargo could not build the supervisor".to_owned())
}

/// The folder of this program's profile, and the target folder that contains it: `target/debug` and `target` for
/// `target/debug/deps/test-0123`, `target/debug/examples/demo` and `target/debug/bench`.
fn target_folder() -> Option<(PathBuf, PathBuf)> {
    let program = env::current_exe().ok()?;
    let folder = program.parent()?;
    let profile = match folder.file_name()?.to_str()? {
        "deps" | "examples" => folder.parent()?,
        _ => folder,
    };
    let target = profile.parent()?;
    // Only a folder that cargo has marked as its own counts.
    target.join("CACHEDIR.TAG").is_file().then(|| (profile.to_owned(), target.to_owned()))
}
