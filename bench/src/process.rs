//! What a process takes, as the kernel counts it.

use std::fs;
use std::time::Duration;

/// Clock ticks in a second: what Linux shows to programs, on every machine.
const TICKS: f64 = 100.0;

/// The processor time that it has taken.
pub(crate) fn cpu(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may hold anything; the times are the twelfth and thirteenth fields after it.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Duration::from_secs_f64(ticks / TICKS)
}

/// Its resident memory in MB: the most that it was, and now.
pub(crate) fn memory(pid: u32) -> (f64, f64) {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>();
        kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
    };
    (field("VmHWM"), field("VmRSS"))
}
