//! The snapshot of a source's present content: whether there should be one, and its creation.

use std::sync::Arc;

use crate::{
    cluster::{Api, ApiError, Created, ensure_snapshot, facts::spare_digits},
    controller::{
        action::{Action, Outcome},
        reconcile::state::State,
    },
    resolve::{Ensure, Observed, Record},
    snapshot::{DIGITS, snapshot_name, spare_name},
    world::Name,
};

impl State {
    /// Creates the snapshot of a source's present content, or writes the verdict on it.
    pub(super) fn decide_ensure(&mut self, source: &Name) -> Option<Action> {
        let content = self.memory.fresh.take(source);
        let known = self.world.existing_source(source)?;
        let content = content.filter(|content| *content.resource_version == *known.resource_version);
        if self.lacks_snapshot(source) {
            return Some(Action::Ensure { source: source.clone(), content });
        }
        self.take_over(source).or_else(|| self.refuse_with_group(source))
    }

    /// Whether the present content of a source should have a snapshot, and has none.
    pub(super) fn lacks_snapshot(&self, source: &Name) -> bool {
        let world = &self.world;
        let Some(known) = world.existing_source(source) else { return false };
        // Workloads that read the source live need no snapshot of it, nor do those that leave it as written.
        let is_used = |record: &Record| {
            let mut uses = record.uses.iter().filter(|used| used.source == source.object && !used.live);
            uses.any(|used| !used.excludes(&known.present.labels))
        };
        let is_used = world.workloads_using(source).any(|(_, record)| is_used(record));
        // With `keep: 0`, an unused snapshot would be deleted again; an admission that needs it creates it.
        let wanted =
            (is_used || world.is_labelled(source)) && !known.present.stays_as_written && known.keep > 0;
        wanted
            && !known.present.is_snapshot
            && !world.snapshots().has_content_of(source, known)
            && world.snapshots().count(source) < self.config.max_snapshots
            && world.has_room_for_snapshot(source)
    }
}

/// Snapshots the content of a source: the one that was just read, or the present one.
pub(in crate::controller) async fn run<A: Api>(
    api: &A,
    source: &Name,
    content: Option<Arc<Observed>>,
) -> Result<Outcome, ApiError> {
    let observed = match content {
        Some(content) => Some((*content).clone()),
        None => api.read(&source.namespace, &source.object).await?,
    };
    // While a snapshot is missing, its name may be taken for a source's. A snapshot gets no snapshots.
    if let Some(observed) = observed.filter(|observed| observed.identity().is_none()) {
        ensure(api, source, &observed).await?;
    }
    Ok(Outcome::Done)
}

/// Creates a snapshot of that content under the first free name, unless a sound one exists. Objects of others may have all
/// names that follow from the content, but not one with random digits.
pub async fn ensure<A: Api>(api: &A, source: &Name, observed: &Observed) -> Result<Option<String>, ApiError> {
    let digest = observed.digest();
    let usual = DIGITS.map(|digits| snapshot_name(&source.object.name, &digest, digits));
    let spare = spare_name(&source.object.name, &digest, &spare_digits());
    for name in usual.into_iter().chain([spare]) {
        let wanted = Ensure { source: source.object.clone(), digest, name: name.clone() };
        if ensure_snapshot(api, &source.namespace, &wanted, observed.json()).await? == Created::Now {
            return Ok(Some(name));
        }
        let existing = api.read(&source.namespace, &source.sibling(name.as_str()).object).await?;
        if existing.is_some_and(|existing| existing.is_snapshot_of(&source.object.name, &digest)) {
            return Ok(Some(name));
        }
    }
    tracing::warn!(%source, "every possible snapshot name of the source is used by another object");
    Ok(None)
}

#[cfg(test)]
mod tests {
    use crate::{
        controller::reconcile::fixture::{set_source, state},
        resolve::{Present, Use},
        world::{
            SourceRecord,
            fixture::{record, source, source_record, used},
        },
    };

    #[test]
    fn content_in_use_needs_a_snapshot() {
        let kept = || SourceRecord { keep: 1, ..source_record("a", 4) };
        let present = || kept().present;
        let with = |present| SourceRecord { present, ..kept() };
        let (a, b) = (used("a", Some(1)), used("b", Some(1)));
        let live = Use { live: true, ..used("a", None) };
        for (what, uses, known, lacks) in [
            ("it is used", [&a, &b], kept(), true),
            ("it is not used", [&b, &b], kept(), false),
            ("it is read live, beside another source", [&live, &b], kept(), false),
            ("its content has one", [&a, &b], SourceRecord { keep: 1, ..source_record("a", 2) }, false),
            ("it keeps none", [&a, &b], source_record("a", 4), false),
            ("it stays as written", [&a, &b], with(Present { stays_as_written: true, ..present() }), false),
            ("it is a snapshot itself", [&a, &b], with(Present { is_snapshot: true, ..present() }), false),
        ] {
            let web = record("web", &uses.map(Use::clone));
            let mut state = state(&[("web", &web)]);
            set_source(&mut state, "a", known);
            assert_eq!(state.lacks_snapshot(&source("a")), lacks, "{what}");
        }
        let mut state = state(&[]);
        set_source(&mut state, "a", kept());
        state.world.set_labelled(&source("a"), true, &mut Vec::new());
        assert!(state.lacks_snapshot(&source("a")), "its label asks for one");
        for (limit, lacks) in [(3, false), (4, true)] {
            state.config.max_snapshots = limit;
            assert_eq!(state.lacks_snapshot(&source("a")), lacks, "it has 3 of at most {limit}");
        }
    }
}
