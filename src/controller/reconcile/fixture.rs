//! A small state for tests of single rules: the world of [`crate::world::fixture`], and no task.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::state::State;
use crate::{
    controller::{config::Config, tasks::decided::Decided},
    kinds::Kinds,
    resolve::{Health, Record, SpreadPolicy},
    world::{
        NamespaceSettings, SourceRecord,
        fixture::{digest, object, record, source, source_record, used, world},
    },
};

/// The time of this second.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// What a reconcile decides: "done", "later" with the time in milliseconds, or the name of the action.
pub(crate) fn brief(decided: &Decided) -> String {
    match decided {
        Decided::Done => "done".to_owned(),
        Decided::Later(at) => format!("later {}", at.as_millisecond()),
        Decided::Act(action) => {
            let text = format!("{action:?}");
            text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
        }
    }
}

/// A state with these workloads of the namespace.
pub(crate) fn state(workloads: &[(&str, &Record)]) -> State {
    let config = Config { settle: SignedDuration::from_secs(2), rolls_per_second: 1000, ..Config::default() };
    let mut state = State::new(Arc::new(Kinds::default()), config);
    state.world = world(workloads);
    state
}

/// A workload that has seen a content of the source a, uses its snapshot, and has this health.
pub(crate) fn on(content: u8, health: Health) -> Record {
    let record = record("web", &[used("a", Some(content))]);
    Record { health, ..record.tied(&object("a"), |tie| tie.seen = Some(digest(content))) }
}

/// A source with a content and with these annotations, without the prefix of their names.
pub(crate) fn limited(name: &str, content: u8, annotations: &[(&str, &'static str)]) -> SourceRecord {
    let spread = SpreadPolicy::read(|key| {
        let of = |(name, _): &&(&str, &str)| key.strip_prefix(crate::annotations::PREFIX) == Some(*name);
        annotations.iter().find(of).map(|(_, value)| *value)
    });
    SourceRecord { spread: spread.into(), ..source_record(name, content) }
}

/// Applies a source of the namespace, in which no Rollout uses the template of another workload.
pub(crate) fn set_source(state: &mut State, name: &str, known: SourceRecord) {
    state.world.set_read(&source(name), Some(known), &mut Vec::new());
    state.world.referrers_mut().set_listed("ns");
}

/// A workload has moved to the content 2 of a at the start, and has this health. Two others wait.
pub(crate) fn moved_one(health: Health, annotations: &[(&str, &'static str)]) -> State {
    let moved = on(2, health).tied(&object("a"), |tie| tie.moved = Some(at(0)));
    let waits = on(1, Health::Settled);
    let mut state = state(&[("moved", &moved), ("waits", &waits), ("other", &waits)]);
    set_source(&mut state, "a", limited("a", 2, annotations));
    state
}

/// Puts the namespace, and another one, into a group.
pub(crate) fn set_group(state: &mut State, other: &str) {
    set_group_that(state, other, false);
}

/// The same. `reverts`: a failure in one of the namespaces refuses the content in both.
pub(crate) fn set_group_that(state: &mut State, other: &str, reverts: bool) {
    for namespace in ["ns", other] {
        let settings = NamespaceSettings {
            group: Some("group".into()),
            group_revert: reverts,
            ..NamespaceSettings::default()
        };
        state.world.apply_namespace_settings(&namespace.into(), settings, &mut Vec::new());
    }
}
