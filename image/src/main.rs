//! `confrev-image`: writes the image of a binary with its bill of materials, and what describes the files of a release.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Parser};
use confrev_image::{Build, Image, Result, bill_of_materials, join, statement};

/// Writes confrev's image, and what describes the files of a release.
#[derive(Debug, Parser)]
enum Options {
    /// Write confrev.tar, an OCI image, and confrev.cdx.json, its bill of materials. Prints the image's digest.
    Write(Write),
    /// Join images of several architectures into one. Prints its digest.
    Join(Join),
    /// Write the provenance statement of the files in a folder.
    Provenance(Provenance),
}

#[derive(Debug, Args)]
struct Write {
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

#[derive(Debug, Args)]
struct Join {
    /// The images, as `write` wrote them.
    images: Vec<PathBuf>,
    /// The program's version.
    #[arg(long)]
    version: String,
    /// The file to write.
    #[arg(long)]
    output: PathBuf,
    /// The time in the archive, in seconds since 1970.
    #[arg(long, env = "SOURCE_DATE_EPOCH", default_value_t = 0)]
    epoch: i64,
}

#[derive(Debug, Args)]
struct Provenance {
    /// The folder of Cargo.toml, Cargo.lock and rust-toolchain.toml.
    #[arg(long, default_value = ".")]
    source: PathBuf,
    /// The folder with the files of the release.
    #[arg(long)]
    folder: PathBuf,
    /// The file to write.
    #[arg(long)]
    output: PathBuf,
    /// Who built the files, as a URI.
    #[arg(long, env = "RELEASE_BUILDER", default_value = "https://confrev.dev/builder/local")]
    builder: String,
    /// The address of the repository.
    #[arg(long, env = "RELEASE_SOURCE", default_value = "https://example.com/confrev")]
    repository: String,
}

fn main() -> ExitCode {
    let result = match Options::parse() {
        Options::Write(options) => write(&options).map(|digest| println!("{digest}")),
        Options::Join(options) => join_images(&options).map(|digest| println!("{digest}")),
        Options::Provenance(options) => provenance(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("confrev-image: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the image's digest.
fn write(options: &Write) -> Result<String> {
    let architecture = match options.target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => return Err(format!("--target {}: x86_64 or aarch64", options.target)),
    };
    let binary = read(&options.binary)?;
    let lock = String::from_utf8_lossy(&read(&options.source.join("Cargo.lock"))?).into_owned();
    let bill = bill_of_materials(&metadata(options)?, &lock, &release(&options.source)?, &options.target)?;
    let version = bill["metadata"]["component"]["version"].as_str().unwrap_or_default();
    let image = Image { binary: &binary, architecture, version, epoch: options.epoch }.write()?;
    std::fs::create_dir_all(&options.output)
        .map_err(|e| format!("cannot create {}: {e}", options.output.display()))?;
    save(&options.output.join("confrev.tar"), &image.archive)?;
    save(&options.output.join("confrev.cdx.json"), format!("{bill:#}\n").as_bytes())?;
    Ok(image.digest)
}

/// Returns the digest of the joined image.
fn join_images(options: &Join) -> Result<String> {
    let images: Vec<_> = options.images.iter().map(|image| read(image)).collect::<Result<_>>()?;
    let joined = join(&images, &options.version, options.epoch)?;
    save(&options.output, &joined.archive)?;
    Ok(joined.digest)
}

fn provenance(options: &Provenance) -> Result<()> {
    let entries = std::fs::read_dir(&options.folder)
        .map_err(|e| format!("cannot list {}: {e}", options.folder.display()))?;
    let mut subjects = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("cannot list {}: {e}", options.folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        subjects.push((name, read(&path)?));
    }
    subjects.sort_unstable();
    let inputs = ["Cargo.lock", "rust-toolchain.toml"]
        .map(|name| read(&options.source.join(name)).map(|content| (name, content)));
    let inputs = inputs.into_iter().collect::<Result<Vec<_>>>()?;
    let git = |arguments: &[&str]| {
        output(Command::new("git").args(arguments).current_dir(&options.source))
            .map(|text| text.trim().to_owned())
    };
    let build = Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: &git(&["rev-parse", "HEAD"])?,
        epoch: git(&["log", "-1", "--format=%ct"])?.parse().map_err(|e| format!("git log: {e}"))?,
        compiler: &release(&options.source)?,
        repository: &options.repository,
        builder: &options.builder,
    };
    let statement = statement(&build, &subjects, &inputs);
    save(&options.output, format!("{statement:#}\n").as_bytes())
}

fn metadata(options: &Write) -> Result<serde_json::Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", &options.target]);
    let text = output(cargo.current_dir(&options.source))?;
    serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))
}

/// The release of the compiler that this folder selects.
fn release(source: &Path) -> Result<String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let text = output(rustc.arg("-vV").current_dir(source))?;
    let release = text.lines().find_map(|line| line.strip_prefix("release: "));
    release.map(str::to_owned).ok_or_else(|| "rustc -vV names no release".to_owned())
}

/// The output of a command that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn save(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
