//! Warnings about annotations by which another tool restarts the pods of an opted-in workload at each change of its config.

use super::{Request, Workload};
use crate::annotations;

/// The annotation by which Wave finds its workloads.
pub const WAVE: &str = "wave.pusher.com/update-on-config-change";
/// The end of the domain of all annotations of Reloader.
pub const RELOADER: &str = "reloader.stakater.com";

/// Whether Reloader reads a value of its annotation `name` as true: `auto` by Go's `strconv.ParseBool`, all others by comparison
/// (Reloader 1.4, `pkg/common/common.go`).
pub fn reloader_reads_true(name: &str, value: &str) -> bool {
    match name {
        "auto" => matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        _ => value == "true",
    }
}

/// The tool that restarts a workload with this annotation at each change of its config.
fn restarter(key: &str, value: &str) -> Option<&'static str> {
    if key == WAVE {
        return (value == "true").then_some("Wave");
    }
    let (domain, name) = key.split_once('/')?;
    let prefix = domain.strip_suffix(RELOADER)?;
    match name {
        "auto" | "search" => reloader_reads_true(name, value).then_some("Reloader"),
        "reload" => (!prefix.ends_with("exclude.")).then_some("Reloader"),
        _ => None,
    }
}

/// A warning for the first such annotation, unless the stored object has it and was opted in before: tools that apply every few
/// minutes would repeat it.
pub(super) fn warning(request: &Request<'_>) -> Option<String> {
    let was_opted_in =
        |old: &&Workload<'_>| old.label(annotations::ENABLED).is_some_and(|label| label != "false");
    let old = request.old.as_ref().filter(was_opted_in);
    let mut annotations = request.new.annotations().into_iter().flatten();
    annotations.find_map(|(key, value)| {
        let tool = restarter(key, value)?;
        let is_known = old.is_some_and(|old| old.annotation(key) == Some(value));
        (!is_known).then(|| {
            format!(
                "annotation {key}: {tool} also restarts {} at each change, which makes a second revision: remove the annotation, see \
                 kubectl confrev migrate",
                request.new.display()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_annotations_that_restart_pods() {
        for (key, value, expected) in [
            ("wave.pusher.com/update-on-config-change", "true", Some("Wave")),
            ("wave.pusher.com/update-on-config-change", "false", None),
            ("reloader.stakater.com/auto", "true", Some("Reloader")),
            ("reloader.stakater.com/auto", "True", Some("Reloader")),
            ("reloader.stakater.com/auto", "false", None),
            ("reloader.stakater.com/search", "True", None),
            ("configmap.reloader.stakater.com/auto", "true", Some("Reloader")),
            ("secret.reloader.stakater.com/reload", "a", Some("Reloader")),
            ("secrets.exclude.reloader.stakater.com/reload", "a", None),
            ("reloader.stakater.com/rollout-strategy", "restart", None),
            ("other/auto", "true", None),
            ("auto", "true", None),
        ] {
            assert_eq!(restarter(key, value), expected, "{key}: {value}");
        }
    }
}
