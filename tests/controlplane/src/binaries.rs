//! The folder of binaries: found, or built once into a cache outside the work tree.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Result;
use crate::gobuild::{Workshop, go_version};
use crate::progress::Progress;
use crate::recipe::{
    ACTIONLINT, Artifact, COMPATIBILITY_MODULES, CONTROL_PLANE, GoModule, NEWEST, NODE_MODULES, OLDER,
    modules,
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

/// The folder with binaries of the control plane, and its manifests. Each set of them that is made later is added to the
/// same folder.
#[derive(Debug, Clone)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// What a control plane and its users need. Uses the binaries in `KUBEBUILDER_ASSETS`, and takes the rest from the
    /// cache. Missing ones are built, which takes about seven minutes on two cores and needs Go. Progress goes to stderr.
    pub fn control_plane() -> Result<Self> {
        Self::of(|artifact| CONTROL_PLANE.contains(&artifact.name), &assets())
    }

    /// As [`control_plane`](Self::control_plane), and the tools of the tests, which take another five minutes.
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
        link(&files, &assets(), &cache)
    }

    /// The test suites of other projects, which take another ten minutes.
    pub fn of_compatibility() -> Result<Self> {
        let cache = cache_folder()?;
        let modules: Vec<_> = COMPATIBILITY_MODULES.iter().collect();
        link(&gather("-compatibility", &modules, |_| true, &assets(), &cache)?, &assets(), &cache)
    }

    /// One of the binaries of [`all`](Self::all).
    pub fn tool(name: &str) -> Result<Self> {
        known(name)?;
        Self::of(|artifact| artifact.name == name, &assets())
    }

    /// As [`all`](Self::all), but only for these names, which are searched in `PATH` too.
    pub fn only(names: &[&str]) -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut found = assets();
        found.extend(env::split_paths(&path));
        names.iter().try_for_each(|name| known(name))?;
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
        link(&files, ready_made, &cache)
    }
}

/// A missing artifact of a module, and its file.
type Missing = (&'static GoModule, &'static Artifact, PathBuf);

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

    let scratch = Scratch::new(cache, part)?;
    let mut files = BTreeMap::new();
    let mut missing = Vec::new();
    for module in modules {
        let mut folder = None;
        let others = module.artifacts.iter().filter(|a| wanted(a) && !files.contains_key(a.name));
        for artifact in others.collect::<Vec<_>>() {
            if let Some(file) = find(ready_made, artifact.name) {
                files.insert(artifact.name, file);
                continue;
            }
            let folder = match &folder {
                Some(known) => known,
                None => folder.insert(folder_of(module, &scratch.0, cache)?),
            };
            let file = folder.join(artifact.name);
            if !file.exists() {
                missing.push((*module, artifact, file.clone()));
            }
            files.insert(artifact.name, file);
        }
    }
    make(&missing, &files, &scratch.0)?;
    Ok(files)
}

fn known(name: &str) -> Result<()> {
    let mut known = modules(NEWEST)?.into_iter().flat_map(|module| module.artifacts);
    known.any(|artifact| artifact.name == name).then_some(()).ok_or_else(|| format!("no module makes {name}"))
}

fn modules_of_control_plane() -> Result<Vec<&'static GoModule>> {
    modules(&kubernetes()).map_err(|problem| format!("{VERSION_VARIABLE}: {problem}"))
}

/// The folder of a module in the cache, which exists.
fn folder_of(module: &GoModule, scratch: &Path, cache: &Path) -> Result<PathBuf> {
    fs::write(scratch.join("go.mod"), module.go_mod).map_err(|e| format!("cannot write go.mod: {e}"))?;
    let key = key(module, &go_version(module, scratch)?);
    let folder = cache.join(format!("controlplane-{}-{key}", module.name));
    fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    Ok(folder)
}

/// Builds the missing artifacts in their order, the packages of a module at once, each into its file. `files` has all files of the set.
fn make(missing: &[Missing], files: &BTreeMap<&'static str, PathBuf>, scratch: &Path) -> Result<()> {
    let kubectl = files.get("kubectl").map(PathBuf::as_path);
    let artifacts: Vec<_> = missing.iter().map(|(_, artifact, _)| *artifact).collect();
    Progress::of(&artifacts, |progress| {
        let mut workshop: Option<Workshop<'_>> = None;
        let are_one = |(module, a, _): &Missing, (other, b, _): &Missing| {
            std::ptr::eq(*module, *other) && a.package().is_some() && b.package().is_some()
        };
        for part in missing.chunk_by(are_one) {
            let artifacts: Vec<_> = part.iter().map(|(_, artifact, _)| *artifact).collect();
            progress.make(&artifacts, || {
                let module = part[0].0;
                let workshop = match &workshop {
                    Some(same) if same.is_of(module) => same,
                    _ => workshop.insert(Workshop::lay_out(module, scratch)?),
                };
                let made = workshop.make(&artifacts, scratch, kubectl)?;
                for (made, (_, _, file)) in made.iter().zip(part) {
                    // The rename means that only complete files have their name in the cache, even if the build is interrupted.
                    fs::rename(made, file)
                        .map_err(|e| format!("cannot rename to {}: {e}", file.display()))?;
                }
                Ok::<_, String>(())
            })?;
        }
        Ok(())
    })
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

/// A folder with a link to each file, so that one entry in PATH suffices. Sets of one version of Kubernetes and of the same
/// `ready_made` folders share it.
fn link(files: &BTreeMap<&'static str, PathBuf>, ready_made: &[PathBuf], cache: &Path) -> Result<Binaries> {
    let folder = cache.join(format!("controlplane-{}", digest(&format!("{} {ready_made:?}", kubernetes()))));
    let problem = |e| format!("cannot link the binaries in {}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(problem)?;
    for (name, file) in files {
        let link = folder.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == *file) {
            continue;
        }
        // The rename replaces the link of an older build at once: another process may be using the folder.
        let new = folder.join(format!(".{name}-{}", std::process::id()));
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(file, &new).map_err(problem)?;
        fs::rename(&new, &link).map_err(problem)?;
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
