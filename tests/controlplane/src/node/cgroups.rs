//! The control groups of the nodes. All processes of a node are in the groups below its own, so that they can be found.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::node::network::NAMES;

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "confrev-nodes-";
/// How long processes may take to leave their groups after they were killed.
const LIMIT: Duration = Duration::from_secs(20);

/// The groups of one run, named after the process that created them. Removed on drop.
#[derive(Debug)]
pub(crate) struct Cgroups {
    name: String,
}

impl Cgroups {
    /// Creates the groups, and removes those of processes that do not exist any more.
    pub(crate) fn create() -> Result<Self> {
        for name in abandoned() {
            drop(Self { name });
        }
        let groups = Self { name: format!("{PREFIX}{}", std::process::id()) };
        for hierarchy in hierarchies() {
            let own = hierarchy.join(&groups.name);
            let delegated = |folder: &Path| delegate(folder).map_err(|e| problem(folder, &e));
            delegated(&hierarchy)?;
            make(&own)?;
            delegated(&own)?;
            for node in NAMES {
                make(&own.join(node))?;
                delegated(&own.join(node))?;
                make(&own.join(node).join("system"))?;
            }
        }
        Ok(groups)
    }

    /// The name of the top group, which is in every hierarchy.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let start = Instant::now();
        while hierarchies().iter().any(|hierarchy| !remove(&hierarchy.join(&self.name))) {
            if start.elapsed() > LIMIT {
                eprintln!("controlplane: the control groups {} cannot be removed", self.name);
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The file to which a process of a node writes its id, to belong to the node.
pub(crate) fn entry(name: &str, node: &str) -> PathBuf {
    processes_of(name, node).join("system/cgroup.procs")
}

/// The ids of all processes of a node: its daemons, and those in its containers.
pub(crate) fn processes(name: &str, node: &str) -> Vec<i32> {
    let mut folders = vec![processes_of(name, node)];
    let mut ids = Vec::new();
    while let Some(folder) = folders.pop() {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        ids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        folders.extend(below(&folder));
    }
    ids
}

/// The group of a node in the hierarchy that knows its processes. In version 1, every hierarchy has groups of its own.
fn processes_of(name: &str, node: &str) -> PathBuf {
    let pids = Path::new(ROOT).join("pids");
    let hierarchy = if is_version_2() { PathBuf::from(ROOT) } else { pids };
    hierarchy.join(name).join(node)
}

fn is_version_2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The hierarchy of version 2, or one for each controller of version 1.
fn hierarchies() -> Vec<PathBuf> {
    if is_version_2() {
        return vec![PathBuf::from(ROOT)];
    }
    let mut folders: Vec<_> =
        below(Path::new(ROOT)).into_iter().filter(|folder| folder.join("cgroup.procs").exists()).collect();
    // Some controllers have two names, of which one is a link.
    folders.retain(|folder| !folder.is_symlink());
    folders
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| problem(folder, &e))?;
    // A group of `cpuset` has no processors until it is given some.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let above = folder.parent().map(|above| fs::read_to_string(above.join(file)));
        if let Some(Ok(all)) = above.filter(|_| !is_version_2()) {
            fs::write(folder.join(file), all.trim()).map_err(|e| problem(folder, &e))?;
        }
    }
    Ok(())
}

/// Lets the groups below have all controllers of this one, in version 2.
fn delegate(folder: &Path) -> std::io::Result<()> {
    if !is_version_2() {
        return Ok(());
    }
    let all = fs::read_to_string(folder.join("cgroup.controllers"))?;
    let all: Vec<_> = all.split_whitespace().map(|controller| format!("+{controller}")).collect();
    fs::write(folder.join("cgroup.subtree_control"), all.join(" "))
}

fn problem(folder: &Path, error: &std::io::Error) -> String {
    format!("cannot set up the control group {}: {error}", folder.display())
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Removes a group and those below it, if none has a process. Returns whether it is removed.
fn remove(folder: &Path) -> bool {
    for child in below(folder) {
        remove(&child);
    }
    let _ = fs::remove_dir(folder);
    !folder.exists()
}

/// The groups of processes that were killed.
fn abandoned() -> Vec<String> {
    let folders = hierarchies().into_iter().flat_map(|hierarchy| below(&hierarchy));
    let names = folders.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned()));
    let ended =
        |name: &String| name.strip_prefix(PREFIX).is_some_and(|id| !Path::new("/proc").join(id).exists());
    let mut names: Vec<_> = names.filter(ended).collect();
    names.sort();
    names.dedup();
    names
}
