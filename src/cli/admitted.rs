//! Writes that admission completes: each is first made as a server-side dry run, and is made only if the answer shows its effect.
//!
//! The API server may store a write without calling confrev, for instance while the webhook configuration is deleted. References
//! and the `sources` annotation would then disagree, and nothing would repair them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    failure::Failure,
    objects::{OptedIn, sources_of},
    target::Target,
};
use crate::{
    resolve::Workload,
    snapshot::ObjectName,
    template::{SourceMap, Template},
};

/// The effect that a write should have on the references to one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// They name this snapshot.
    Snapshot(String),
    /// They no longer name this snapshot.
    Other(String),
}

/// Makes a write if a dry run of it has its effect, and returns the workload as the API server would store it, or has stored it.
pub(super) async fn write(
    target: &Target,
    workload: &OptedIn,
    (content_type, body): (&str, &Value),
    goals: &BTreeMap<ObjectName, Goal>,
    only_try: bool,
) -> Result<OptedIn, Failure> {
    let patch = async |dry_run: bool| {
        let answer = target.patch(&workload.path(), content_type, body, dry_run).await?;
        OptedIn::of(target, &workload.kind, answer).ok_or_else(|| {
            Failure::Refused(format!("{}: the answer of the API server cannot be read", workload.reference()))
        })
    };
    let tried = patch(true).await?;
    check(&tried, workload, goals).map_err(|why| Failure::Refused(format!("{why}; nothing was written")))?;
    if only_try {
        return Ok(tried);
    }
    let written = patch(false).await?;
    // confrev may have stopped answering since the dry run.
    check(&written, workload, goals).map_err(|why| {
        Failure::Refused(format!(
            "{why}, but the change was written: run the command again when `kubectl confrev check` passes"
        ))
    })?;
    Ok(written)
}

/// Whether the workload of an answer has the effect; `Err`: why it does not.
fn check(answer: &OptedIn, before: &OptedIn, goals: &BTreeMap<ObjectName, Goal>) -> Result<(), String> {
    let workload = answer.reference();
    let unanswered =
        format!("confrev did not answer: the API server did not call its webhook for {workload}");
    if !is_resolved(answer) {
        return Err(unanswered);
    }
    for (source, goal) in goals {
        let of = |workload: &OptedIn| {
            let found = workload.record.uses.iter().find(|used| used.source == *source);
            found.and_then(|used| used.snapshot.clone())
        };
        let (found, stored) = (of(answer), of(before));
        let found = found.as_deref();
        match (goal, found) {
            (Goal::Snapshot(wanted), Some(found)) if wanted == found => {}
            (Goal::Other(held), found) if Some(held.as_str()) != found => {}
            // A plan that no webhook has read changes nothing.
            (Goal::Snapshot(_), Some(found)) if stored.as_deref() != Some(found) => {
                return Err(format!("{workload}: confrev resolves the references to {source} to {found}"));
            }
            _ => return Err(unanswered),
        }
    }
    Ok(())
}

/// Whether the template refers to every snapshot that its `sources` annotation lists, as each admission leaves it.
pub(super) fn is_resolved(workload: &OptedIn) -> bool {
    let template = workload.value.pointer(&workload.kind.template_pointer());
    let sources: SourceMap<String> = sources_of(template);
    let Ok(parsed) = Workload::read(&workload.kind, &*workload.value) else { return false };
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    sources.iter().all(|(source, snapshot)| {
        references.iter().any(|reference| reference.kind == source.kind && reference.name == snapshot)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        annotations,
        kinds::Kinds,
        snapshot::{Rotated, SourceKind},
    };

    fn answer(named: &str, listed: &str) -> OptedIn {
        let kinds = Kinds::default();
        let kind = kinds.iter().find(|kind| kind.kind == "Deployment").unwrap();
        let sources = json!({"configmaps": {"demo": listed}}).to_string();
        let volume = json!({"name": "v", "configMap": {"name": named}});
        let value = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "d"},
            "spec": {"template": {"metadata": {"annotations": {annotations::SOURCES: sources}}, "spec": {"volumes": [volume]}}},
        });
        OptedIn::read(kind, value, (&Rotated::default(), &crate::world::Inherited::default())).unwrap()
    }

    #[test]
    fn answer_without_its_effect_is_an_error() {
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        let snapshot = |name: &str| Goal::Snapshot(name.to_owned());
        let other = |name: &str| Goal::Other(name.to_owned());
        for (named, listed, goal, error) in [
            ("demo-a", "demo-a", snapshot("demo-a"), None),
            ("demo-a", "demo-b", snapshot("demo-a"), Some("confrev did not answer")),
            ("demo-b", "demo-b", snapshot("demo-a"), Some("confrev resolves the references")),
            ("demo", "demo-b", other("demo-b"), Some("confrev did not answer")),
            ("demo-b", "demo-b", other("demo-b"), Some("confrev did not answer")),
            ("demo-a", "demo-a", other("demo-b"), None),
        ] {
            let found = check(
                &answer(named, listed),
                &answer("demo-0", "demo-0"),
                &BTreeMap::from([(demo.clone(), goal.clone())]),
            );
            let found = found.err().unwrap_or_default();
            assert!(found.contains(error.unwrap_or_default()), "{named} {listed} {goal:?}: {found}");
            assert_eq!(found.is_empty(), error.is_none(), "{named} {listed} {goal:?}: {found}");
        }
    }
}
