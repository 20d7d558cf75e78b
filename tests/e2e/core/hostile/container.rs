//! A memory control group like that of confrev's container: with the chart's limit, without swap, and killed as a whole where the
//! kernel can (version 2, as the kubelet does).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use confrev_controlplane::wait_for;

use crate::world::LIMIT;

const ROOT: &str = "/sys/fs/cgroup";

/// The group. Removed on drop, once its processes have ended.
pub(super) struct Container {
    group: PathBuf,
    is_version_2: bool,
    launcher: PathBuf,
}

impl Container {
    /// A group of at most this many MiB; otherwise why this machine allows none.
    pub(super) fn new(mebibytes: usize, program: &Path) -> Result<Self, String> {
        let is_version_2 = Path::new(ROOT).join("cgroup.controllers").exists();
        let above = if is_version_2 { PathBuf::from(ROOT) } else { Path::new(ROOT).join("memory") };
        let name = format!("confrev-container-{}", std::process::id());
        let (group, launcher) = (above.join(&name), std::env::temp_dir().join(name));
        let problem = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let write = |path: PathBuf, text: &str| fs::write(&path, text).map_err(|error| problem(&path, error));
        if is_version_2 {
            write(above.join("cgroup.subtree_control"), "+memory")?;
        }
        fs::create_dir(&group).map_err(|error| problem(&group, error))?;
        let container = Self { group, is_version_2, launcher };
        let bytes = (mebibytes << 20).to_string();
        if is_version_2 {
            write(container.group.join("memory.max"), &bytes)?;
            // A machine without swap has no such file.
            let _ = write(container.group.join("memory.swap.max"), "0");
            write(container.group.join("memory.oom.group"), "1")?;
        } else {
            write(container.group.join("memory.limit_in_bytes"), &bytes)?;
            let _ = write(container.group.join("memory.memsw.limit_in_bytes"), &bytes);
        }
        // All memory counts from the start, since the program begins in the group.
        let entry = container.group.join("cgroup.procs");
        let script =
            format!("#!/bin/sh\necho $$ >{} || exit 1\nexec {} \"$@\"\n", entry.display(), program.display());
        write(container.launcher.clone(), &script)?;
        fs::set_permissions(&container.launcher, fs::Permissions::from_mode(0o755))
            .map_err(|error| problem(&container.launcher, error))?;
        Ok(container)
    }

    /// Starts the program in the group.
    pub(super) fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// How many processes of the group the kernel killed for its memory.
    pub(super) fn kills(&self) -> u64 {
        let file = if self.is_version_2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.group.join(file)).expect("the group exists");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no count of kills in\n{text}"))
    }

    /// The memory of the group that the kernel cannot take back, in MiB.
    pub(super) fn memory(&self) -> u64 {
        let text = fs::read_to_string(self.group.join("memory.stat")).expect("the group exists");
        let name = if self.is_version_2 { "anon " } else { "rss " };
        let bytes: Option<u64> = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        bytes.unwrap_or_else(|| panic!("no memory in\n{text}")) >> 20
    }

    /// The processes of the group.
    pub(super) fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub(super) fn version(&self) -> u8 {
        if self.is_version_2 { 2 } else { 1 }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.launcher);
        if std::thread::panicking() {
            let _ = fs::remove_dir(&self.group);
            return;
        }
        wait_for("the processes of the container to end", LIMIT, || {
            fs::remove_dir(&self.group).map_err(|error| error.to_string())
        });
    }
}
