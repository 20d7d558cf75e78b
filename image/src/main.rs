//! `confrev-image`: writes the image of a binary, and the bill of materials of that binary.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use confrev_image::{Image, Result, bill_of_materials};

/// Writes confrev.tar, an OCI image, and confrev.cdx.json, its bill of materials.
#[derive(Debug, Parser)]
struct Options {
    /// The folder of Cargo.toml and Cargo.lock.
    #[arg(long, default_value = ".")]
    source: PathBuf,
    /// The statically linked program.
    #[arg(long)]
    binary: PathBuf,
    /// The target that it was compiled for.
    #[arg(long, default_value = "x86_64-unknown-linux-musl")]
    target: String,
    /// The folder to write to.
    #[arg(long)]
    output: PathBuf,
    /// The time in the image, in seconds since 1970.
    #[arg(long, env = "SOURCE_DATE_EPOCH", default_value_t = 0)]
    epoch: i64,
}

fn main() -> ExitCode {
    match write(&Options::parse()) {
        Ok(digest) => {
            println!("{digest}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("confrev-image: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the image's digest.
fn write(options: &Options) -> Result<String> {
    let architecture = match options.target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => return Err(format!("--target {}: x86_64 or aarch64", options.target)),
    };
    let binary = read(&options.binary)?;
    let lock = String::from_utf8_lossy(&read(&options.source.join("Cargo.lock"))?).into_owned();
    let bill = bill_of_materials(&metadata(options)?, &lock, &release(options)?, &options.target)?;
    let version = bill["metadata"]["component"]["version"].as_str().unwrap_or_default();
    let image = Image { binary: &binary, architecture, version, epoch: options.epoch }.write()?;
    std::fs::create_dir_all(&options.output)
        .map_err(|e| format!("cannot create {}: {e}", options.output.display()))?;
    save(&options.output.join("confrev.tar"), &image.archive)?;
    save(&options.output.join("confrev.cdx.json"), format!("{bill:#}\n").as_bytes())?;
    Ok(image.digest)
}

fn metadata(options: &Options) -> Result<serde_json::Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", &options.target]);
    let output = cargo.current_dir(&options.source).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// The release of the compiler that this folder selects.
fn release(options: &Options) -> Result<String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = rustc.arg("-vV").current_dir(&options.source).output();
    let output = output.map_err(|e| format!("cannot run rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let release = text.lines().find_map(|line| line.strip_prefix("release: "));
    release.map(str::to_owned).ok_or_else(|| "rustc -vV names no release".to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn save(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
