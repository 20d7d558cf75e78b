//! The resources of a process, as the kernel counts them.

use std::fs;
use std::time::Duration;

/// The processor time of its threads. (The kernel reports the time of the whole process only in hundredths of a
/// second.)
pub(crate) fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let time = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(time).sum())
}

/// Its resident memory in MB: the peak, and the present value.
pub(crate) fn memory(pid: u32) -> (f64, f64) {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>();
        kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
    };
    (field("VmHWM"), field("VmRSS"))
}
