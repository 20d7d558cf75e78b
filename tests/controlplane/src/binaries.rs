//! The folder of binaries: found, or built once into a cache outside the work tree.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Result;
use crate::gobuild::{Workshop, go_version};
use crate::recipe::{
    ACTIONLINT, Artifact, COMPATIBILITY_MODULES, GoModule, NEWEST, NODE_MODULES, OLDER, modules,
};

/// The environment variable with the Kubernetes version of the control plane.
const VERSION_VARIABLE: &str = "CONFREV_KUBERNETES";

/// The Kubernetes version in `CONFREV_KUBERNETES`, such as `1.34`; by default the newest available.
pub fn kubernetes() -> String {
    env::var(VERSION_VARIABLE).ok().filter(|version| !version.is_empty()).unwrap_or_else(|| NEWEST.to_owned())
}

/// All available versions of Kubernetes, the newest first.
pub fn versions() -> impl Iterator<Item = &'static str> {
    std::iter::once(NEWEST).chain(OLDER.iter().map(|(version, _)| *version))
}

/// The folder with every binary of the control plane, and its manifests.
#[derive(Debug, Clone)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Uses the binaries in `KUBEBUILDER_ASSETS`, and takes the rest from the cache. Missing ones are built, which
    /// takes about ten minutes on two cores and needs Go. Progress goes to stderr.
    pub fn all() -> Result<Self> {
        Self::of(|artifact| artifact.name != ACTIONLINT, &assets())
    }

    /// As [`all`](Self::all), and the binaries of real nodes, which take another ten minutes and need a C compiler and
    /// libseccomp.
    pub(crate) fn with_nodes() -> Result<Self> {
        if kubernetes() != NEWEST {
            return Err(format!("{VERSION_VARIABLE}: real nodes have Kubernetes {NEWEST}"));
        }
        let cache = cache_folder()?;
        let mut files = gather("", &modules_of_control_plane()?, |_| true, &assets(), &cache)?;
        let modules: Vec<_> = NODE_MODULES.iter().collect();
        files.extend(gather("-nodes", &modules, |_| true, &assets(), &cache)?);
        link(&files, &cache)
    }

    /// The test suites of other projects, which take another ten minutes.
    pub fn of_compatibility() -> Result<Self> {
        let cache = cache_folder()?;
        let modules: Vec<_> = COMPATIBILITY_MODULES.iter().collect();
        link(&gather("-compatibility", &modules, |_| true, &assets(), &cache)?, &cache)
    }

    /// As [`all`](Self::all), but only for these names, which are searched in `PATH` too.
    pub fn only(names: &[&str]) -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut found = assets();
        found.extend(env::split_paths(&path));
        let known: Vec<_> = modules(NEWEST)?.into_iter().flat_map(|module| module.artifacts).collect();
        if let Some(name) = names.iter().find(|name| known.iter().all(|artifact| artifact.name != **name)) {
            return Err(format!("no module makes {name}"));
        }
        Self::of(|artifact| names.contains(&artifact.name), &found)
    }

    /// The binaries in a folder that an earlier call has filled.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder. It contains one file (or link) for each binary.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of one binary.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn of(wanted: impl Fn(&Artifact) -> bool, ready_made: &[PathBuf]) -> Result<Self> {
        let cache = cache_folder()?;
        let files = gather("", &modules_of_control_plane()?, wanted, ready_made, &cache)?;
        link(&files, &cache)
    }
}

/// The files of the `wanted` artifacts of modules. `part` distinguishes sets of modules that may be built at the same
/// time.
fn gather(
    part: &str,
    modules: &[&'static GoModule],
    wanted: impl Fn(&Artifact) -> bool,
    ready_made: &[PathBuf],
    cache: &Path,
) -> Result<BTreeMap<&'static str, PathBuf>> {
    let lock = File::create(cache.join(format!("lock{part}")))
        .map_err(|e| format!("cannot open the cache's lock: {e}"))?;
    if lock.try_lock().is_err() {
        eprintln!("controlplane: waiting for another process that builds the binaries");
        lock.lock().map_err(|e| format!("cannot lock the cache: {e}"))?;
    }

    let mut files = BTreeMap::new();
    for module in modules {
        let mut missing = Vec::new();
        let others = module.artifacts.iter().filter(|a| wanted(a) && !files.contains_key(a.name));
        for artifact in others.collect::<Vec<_>>() {
            match find(ready_made, artifact.name) {
                Some(file) => drop(files.insert(artifact.name, file)),
                None => missing.push(artifact),
            }
        }
        make(part, module, &missing, cache, &mut files)?;
    }
    Ok(files)
}

fn modules_of_control_plane() -> Result<Vec<&'static GoModule>> {
    modules(&kubernetes()).map_err(|problem| format!("{VERSION_VARIABLE}: {problem}"))
}

/// Adds the `missing` artifacts of a module to `files`, from its folder in the cache. Artifacts that are not there are
/// built into it.
fn make(
    part: &str,
    module: &GoModule,
    missing: &[&'static Artifact],
    cache: &Path,
    files: &mut BTreeMap<&'static str, PathBuf>,
) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let scratch = Scratch::new(cache, part)?;
    fs::write(scratch.0.join("go.mod"), module.go_mod).map_err(|e| format!("cannot write go.mod: {e}"))?;
    let key = key(module, &go_version(module, &scratch.0)?);
    let folder = cache.join(format!("controlplane-{}-{key}", module.name));
    fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;

    let mut workshop = None;
    for artifact in missing {
        let file = folder.join(artifact.name);
        if !file.exists() {
            if workshop.is_none() {
                workshop = Some(Workshop::lay_out(module, &scratch.0)?);
            }
            let made = scratch.0.join(artifact.name);
            let kubectl = files.get("kubectl").map(PathBuf::as_path);
            workshop.as_ref().expect("laid out above").make(artifact, &made, kubectl)?;
            // The rename means that only complete files have their name in the cache, even if the build is interrupted.
            fs::rename(&made, &file).map_err(|e| format!("cannot rename to {}: {e}", file.display()))?;
        }
        files.insert(artifact.name, file);
    }
    Ok(())
}

/// A short hash of everything that the files of a module depend on.
fn key(module: &GoModule, go_version: &str) -> String {
    digest(&format!("{go_version}\n{module:?}"))
}

fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    let start = hash.iter().take(6).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    format!("{start:012x}")
}

/// A folder with a link to each file, so that one entry in PATH suffices. Its name contains a hash of the link targets.
fn link(files: &BTreeMap<&'static str, PathBuf>, cache: &Path) -> Result<Binaries> {
    let folder = cache.join(format!("controlplane-{}", digest(&format!("{files:?}"))));
    let problem = |e| format!("cannot link the binaries in {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(problem)?;
    for (name, file) in files {
        let link = folder.join(name);
        if !link.exists() {
            // Removes a broken link. If its file came back in the meantime, a new link is as good.
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(file, &link).map_err(problem)?;
        }
    }
    Ok(Binaries { folder })
}

fn assets() -> Vec<PathBuf> {
    env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map(PathBuf::from).into_iter().collect()
}

fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    let file = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file())?;
    fs::canonicalize(file).ok()
}

fn cache_folder() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("CONFREV_CACHE")
        .or_else(|| set("XDG_CACHE_HOME"))
        .or_else(|| Some(set("HOME")?.join(".cache")))
        .ok_or("set CONFREV_CACHE to a folder for the binaries: there is no HOME")?;
    let folder = base.join("confrev");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot create the cache {}: {e}", folder.display()))?;
    fs::canonicalize(&folder).map_err(|e| format!("cannot use the cache {}: {e}", folder.display()))
}

/// A folder to build in, on the cache's file system so that a rename suffices. Removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(cache: &Path, part: &str) -> Result<Self> {
        let folder = cache.join(format!("building{part}"));
        // The remains of an interrupted build: only the holder of the lock gets here.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::MODULES;

    #[test]
    fn cache_key_depends_on_go_version_and_module() {
        let [first, second, ..] = MODULES else { panic!("two modules") };
        assert_eq!(key(first, "go1.26.1"), key(first, "go1.26.1"));
        assert_ne!(key(first, "go1.26.1"), key(first, "go1.26.2"));
        assert_ne!(key(first, "go1.26.1"), key(second, "go1.26.1"));
        assert_eq!(key(first, "go1.26.1").len(), 12);
    }

    #[test]
    fn finds_binary_in_first_folder_that_has_it() {
        let folders = [PathBuf::from("/nonexistent"), PathBuf::from("/bin"), PathBuf::from("/usr/bin")];
        assert!(find(&folders, "sh").is_some());
        assert_eq!(find(&folders, "no-such-binary"), None);
    }

    #[test]
    fn every_module_states_its_minimum_go_version() {
        let newest = MODULES.iter().chain(NODE_MODULES).chain(COMPATIBILITY_MODULES);
        for module in newest.chain(OLDER.iter().map(|(_, module)| module)) {
            assert!(module.minimum_go().starts_with("1."), "{}", module.name);
        }
    }
}
