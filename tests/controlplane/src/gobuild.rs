//! Builds the artifacts of a Go module.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::process::die_with_parent;
use crate::recipe::{Artifact, GoModule, Origin, Patch};

/// The module's files, laid out in a folder to run `go` in. It is needed only while artifacts are missing.
pub(crate) struct Workshop<'a> {
    module: &'a GoModule,
    folder: PathBuf,
}

impl<'a> Workshop<'a> {
    /// Lays out `module` in a folder below `scratch`.
    pub(crate) fn lay_out(module: &'a GoModule, scratch: &Path) -> Result<Self> {
        let folder = scratch.join(module.name);
        fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        write(&folder.join("go.mod"), module.go_mod)?;
        write(&folder.join("go.sum"), module.go_sum)?;
        let workshop = Self { module, folder };
        if let Some(patch) = &module.patch {
            workshop.apply(patch)?;
        }
        Ok(workshop)
    }

    /// Whether it was laid out for that module.
    pub(crate) fn is_of(&self, module: &GoModule) -> bool {
        std::ptr::eq(self.module, module)
    }

    /// Makes artifacts in a folder, and returns their files. Several ones have packages, which are built at once: links of some use one
    /// processor, while others are compiled. `kubectl` renders kustomizations.
    pub(crate) fn make(
        &self,
        artifacts: &[&Artifact],
        folder: &Path,
        kubectl: Option<&Path>,
    ) -> Result<Vec<PathBuf>> {
        if let [artifact] = artifacts {
            let to = folder.join(artifact.name);
            self.make_one(artifact, &to, kubectl)?;
            return Ok(vec![to]);
        }
        let packages: Vec<_> = artifacts.iter().filter_map(|artifact| artifact.package()).collect();
        let to = folder.join("packages");
        fs::create_dir_all(&to).map_err(|e| format!("cannot create {}: {e}", to.display()))?;
        self.compile(&["build"], &packages, "", false, &to)?;
        Ok(packages.iter().map(|package| to.join(program_of(package))).collect())
    }

    fn make_one(&self, artifact: &Artifact, to: &Path, kubectl: Option<&Path>) -> Result<()> {
        match &artifact.origin {
            Origin::Package(package) => self.build(package, "", false, to),
            Origin::Tagged { package, tags, c } => self.build(package, tags, *c, to),
            Origin::Main(text) => {
                write(&self.folder.join("main.go"), text)?;
                self.build(".", "", false, to)
            }
            Origin::Tests { package, tags } => {
                self.compile(&["test", "-c", "-vet=off"], &[package], tags, false, to)
            }
            Origin::Folder { module, folder } => copy_sources(&self.sources(module)?.join(folder), to),
            Origin::Kustomization { module, folder } => self.render(module, folder, to, kubectl),
            Origin::Manifests { module, folders } => self.join(module, folders, to),
        }
    }

    fn build(&self, package: &str, tags: &str, c: bool, to: &Path) -> Result<()> {
        self.compile(&["build"], &[package], tags, c, to)
    }

    fn compile(&self, verb: &[&str], packages: &[&str], tags: &str, c: bool, to: &Path) -> Result<()> {
        let flags =
            ["-s -w"].iter().chain(self.module.linker_values).copied().collect::<Vec<_>>().join(" -X ");
        let mut go = go_in(&self.folder);
        go.env("CGO_ENABLED", if c { "1" } else { "0" });
        go.args(verb);
        // Without debug information, which `-s -w` drops anyway, and with no collection of garbage below a GiB, this takes a third less
        // time.
        go.args(["-trimpath", "-gcflags=all=-dwarf=false", "-tags", tags, "-ldflags", &flags, "-o"]);
        go.arg(to).args(packages).env("GOGC", "off").env("GOMEMLIMIT", "1GiB");
        run_go(&mut go, self.module).map(drop)
    }

    fn render(&self, module: &str, folder: &str, to: &Path, kubectl: Option<&Path>) -> Result<()> {
        let kubectl = kubectl.ok_or("kubectl is built before the manifests that it renders")?;
        let source = self.sources(module)?.join(folder);
        let mut command = Command::new(kubectl);
        command.args(["kustomize", "--load-restrictor", "LoadRestrictionsNone"]).arg(&source);
        let output = command.output().map_err(|e| format!("cannot run {}: {e}", kubectl.display()))?;
        if !output.status.success() {
            return Err(format!("kubectl kustomize failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        write(to, &String::from_utf8_lossy(&output.stdout))
    }

    fn join(&self, module: &str, folders: &[&str], to: &Path) -> Result<()> {
        let source = self.sources(module)?;
        let mut joined = String::new();
        for folder in folders {
            let folder = source.join(folder);
            let listing =
                fs::read_dir(&folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
            let mut files: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.sort();
            for file in files.iter().filter(|file| is_manifest(file)) {
                joined += "---\n";
                joined += &read(file)?;
                joined.push('\n');
            }
        }
        write(to, &joined)
    }

    /// The folder with the source files of a required module, patched if it has a patch.
    fn sources(&self, module: &str) -> Result<PathBuf> {
        match &self.module.patch {
            Some(patch) if patch.module == module => Ok(self.patched()),
            _ => self.download(module),
        }
    }

    fn patched(&self) -> PathBuf {
        self.folder.join("patched")
    }

    /// The folder of a required module in the module cache, downloaded if necessary.
    fn download(&self, module: &str) -> Result<PathBuf> {
        let mut go = go_in(&self.folder);
        go.args(["mod", "download", "-json", module]);
        let output = run_go(&mut go, self.module)?;
        let answer: Value =
            serde_json::from_slice(&output).map_err(|e| format!("go mod download -json {module}: {e}"))?;
        let folder = answer["Dir"].as_str().ok_or_else(|| format!("go mod download {module}: {answer}"))?;
        Ok(PathBuf::from(folder))
    }

    /// Replaces a required module by a patched copy. The module cache itself is read-only.
    fn apply(&self, patch: &Patch) -> Result<()> {
        let copy = self.patched();
        copy_sources(&self.download(patch.module)?, &copy)?;
        let file = copy.join(patch.file);
        let text = read(&file)?;
        if text.matches(patch.from).count() != 1 {
            return Err(format!("{} of {} no longer has {} once", patch.file, patch.module, patch.from));
        }
        write(&file, &text.replace(patch.from, patch.to))?;
        let mut go = go_in(&self.folder);
        go.args(["mod", "edit", &format!("-replace={}=./patched", patch.module)]);
        run_go(&mut go, self.module).map(drop)
    }
}

/// The output of `go version` in `folder`, where the module's `go.mod` may choose the toolchain.
pub(crate) fn go_version(module: &GoModule, folder: &Path) -> Result<String> {
    let output = run_go(go_in(folder).arg("version"), module)?;
    Ok(String::from_utf8_lossy(&output).trim().to_owned())
}

fn go_in(folder: &Path) -> Command {
    let mut go = Command::new("go");
    // A workspace file or flags of another module must not affect this one.
    go.current_dir(folder)
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null());
    go
}

fn run_go(go: &mut Command, module: &GoModule) -> Result<Vec<u8>> {
    // Otherwise, an interrupted build would go on in the background.
    die_with_parent(go);
    // Hundreds of lines name downloads: they are printed if the command fails.
    let output = go.output().map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!(
            "the control plane is built with Go, and there is no `go` in PATH: install Go {} or newer, or set \
             KUBEBUILDER_ASSETS to a folder with all the binaries",
            module.minimum_go()
        ),
        _ => format!("cannot run go: {e}"),
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let arguments: Vec<_> = go.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let (minimum, name) = (module.minimum_go(), module.name);
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{said}`go {}` failed (module {name}, which needs Go {minimum} or newer)",
        arguments.join(" ")
    ))
}

/// The name that Go gives the program of a package.
fn program_of(package: &str) -> &str {
    let is_version = |part: &str| part.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package)
}

/// Copies a tree of files without their read-only permissions.
fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    let problem = |e| format!("cannot copy {} to {}: {e}", from.display(), to.display());
    fs::create_dir_all(to).map_err(problem)?;
    for entry in fs::read_dir(from).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let target = to.join(entry.file_name());
        if entry.file_type().map_err(problem)?.is_dir() {
            copy_sources(&entry.path(), &target)?;
        } else {
            fs::write(&target, fs::read(entry.path()).map_err(problem)?).map_err(problem)?;
        }
    }
    Ok(())
}

fn is_manifest(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == "yaml")
        && file.file_name().is_some_and(|n| n != "kustomization.yaml")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
