//! What keeps workloads from a content that their source is about to get: the same gates, asked before the content is written.

use std::collections::{HashMap, hash_map::Entry};

use confrev_core::{
    gate_settings::Texts,
    gates::{self, Answer, Why},
    resolve::{Health, Record, Use},
    snapshot::SourceKind,
    tie::Reads,
};
use jiff::Timestamp;

use crate::{
    change_state::MOST_ASKED,
    name::Name,
    objects::WorkloadKey,
    question::{ContentOf, Question},
    records::SourceRecord,
    world::World,
};

/// What the gates ask about a workload and the source, beside the others and its last roll. Workloads of one class have one answer.
#[derive(PartialEq, Eq, Hash)]
struct Class<'i> {
    settings: &'i Texts,
    on_hold: bool,
    has_snapshot: bool,
    reads: Option<&'i Reads>,
    has_failed: bool,
}

/// Why some workloads would not move to a content.
pub struct Objection<'i> {
    /// The reason.
    pub why: Why<WorkloadKey>,
    /// The workloads.
    pub workloads: Vec<&'i WorkloadKey>,
}

impl World {
    /// Why workloads that follow a source would not move to a content that it is about to get, as far as that does not depend on the
    /// time of their last rolls. About 50 different workloads are asked, since all clients wait for the world meanwhile.
    ///
    /// A review of a Secret may be forged. Its answer depends neither on what is stored nor on what a workload has seen: it would test
    /// guesses.
    pub fn objections<'i>(
        &'i self,
        source: &'i Name,
        content: &'i SourceRecord,
        now: Timestamp,
    ) -> Vec<Objection<'i>> {
        let is_blind = source.object.kind == SourceKind::Secret;
        let is_limited = !is_blind && (content.spread.is_limited() || self.is_grouped(source));
        let mut spread = None;
        let mut classes = HashMap::<Class<'_>, Option<usize>>::new();
        let mut objections = Vec::<Objection<'_>>::new();
        for (key, record) in self.workloads_using(source).filter(|(_, record)| record.track) {
            let mut uses = record.uses.iter().filter(|used| used.source == source.object);
            let would_move = |used: &&Use| {
                content.present.mode_for(used).rolls()
                    && (is_blind || record.is_behind(used, &content.present))
            };
            let Some(used) = uses.find(would_move) else { continue };
            let count = classes.len();
            let found = match classes.entry(self.class(key, record, used)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(_) if count == MOST_ASKED => continue,
                Entry::Vacant(new) => {
                    let mut wait = || {
                        let find = || self.spread(source, content, |_, _, _| false, now);
                        let spread = spread.get_or_insert_with(find).as_ref()?;
                        self.wait_in((key, record), (source, content), spread)
                    };
                    let wait = || if is_limited { wait() } else { None };
                    // No last roll is so old that its interval is not over.
                    let (since, known) = (Timestamp::MIN, content);
                    let of = if is_blind { ContentOf::Stranger } else { ContentOf::Writer };
                    let mut question =
                        Question { world: self, key, record, source, used, known, of, wait, since, now };
                    let why = match gates::answer(&mut question) {
                        Answer::Open => None,
                        Answer::Wait(why) | Answer::Refuse(why) => Some(why),
                    };
                    *new.insert(why.map(|why| place_of(&mut objections, why)))
                }
            };
            if let Some(objection) = found.and_then(|place| objections.get_mut(place)) {
                objection.workloads.push(key);
            }
        }
        objections
    }

    fn class<'i>(&self, key: &WorkloadKey, record: &'i Record, used: &Use) -> Class<'i> {
        Class {
            settings: &record.gates,
            on_hold: used.on_hold,
            has_snapshot: used.snapshot.is_some(),
            reads: record.reads(&used.source),
            has_failed: self.health(key, record) == Health::Failed,
        }
    }
}

/// The place of the objection with this reason.
fn place_of(objections: &mut Vec<Objection<'_>>, why: Why<WorkloadKey>) -> usize {
    let known = objections.iter().position(|objection| objection.why == why);
    known.unwrap_or_else(|| {
        objections.push(Objection { why, workloads: Vec::new() });
        objections.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use confrev_core::{
        resolve::{Observed, Present, SpreadPolicy},
        snapshot::ObjectName,
        tie::ReadKey,
    };

    use super::*;
    use crate::{
        fixture::{
            self, digest, failed, held, object, reverting, snapshot, snapshot_record, source, source_record,
            used, window,
        },
        records::{Gates, NamespaceSettings, SnapshotRecord},
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn on(content: u8, of: Use) -> Record {
        fixture::workload("web", 1, vec![of], digest(content), Health::Settled)
    }

    /// A world with these workloads, in which a workload failed with the content 2 of a.
    fn world(workloads: &[(&str, &Record)]) -> World {
        let mut world = fixture::world(workloads);
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        world.referrers_mut().set_listed("ns");
        world
    }

    /// The gates that keep workloads from a content, each with the workloads.
    fn gates(world: &World, content: &SourceRecord) -> Vec<(&'static str, Vec<String>)> {
        let of = source("a");
        let objections = world.objections(&of, content, NOW);
        let named = |objection: &Objection<'_>| {
            let mut names: Vec<_> = objection.workloads.iter().map(|key| key.name.to_string()).collect();
            names.sort();
            (objection.why.gate().name(), names)
        };
        objections.iter().map(named).collect()
    }

    /// A content with the key `there`.
    fn with_keys(known: SourceRecord) -> SourceRecord {
        let text = br#"{"metadata": {"name": "a"}, "data": {"there": "x"}}"#;
        let keys = Present::from(&Observed::read(SourceKind::ConfigMap, &text[..]).unwrap()).keys;
        SourceRecord { present: Present { keys, ..known.present.clone() }, ..known }
    }

    #[test]
    fn writer_learns_what_keeps_workloads_from_the_content() {
        let behind = || on(1, used("a", Some(1)));
        let reads = Reads { whole: false, keys: [ReadKey { key: "missing".into(), required: true }].into() };
        let requires = behind().tied(&object("a"), |tie| tie.reads = Some(Box::new(reads)));
        let plain = || source_record("a", 2);
        let closed = Gates { settings: window("01:00-02:00"), set: None, has_schema: false, check: None };
        let set =
            Gates { settings: Texts::default(), set: Some("s/2".into()), has_schema: false, check: None };
        let limited = SpreadPolicy { max_in_flight: Some(1), ..SpreadPolicy::default() };
        for (what, record, content, expected) in [
            ("nothing keeps it", behind(), plain(), None),
            ("it does not follow", Record { track: false, ..behind() }, reverting("a", 2), None),
            ("it has the content", on(2, used("a", Some(2))), reverting("a", 2), None),
            ("it is on hold", on(1, held("a", 1)), reverting("a", 2), Some("hold")),
            ("the content is refused", behind(), reverting("a", 2), Some("refused")),
            (
                "a workload failed",
                behind(),
                SourceRecord { spread: limited.into(), ..plain() },
                Some("failed"),
            ),
            ("it requires a key", requires, with_keys(plain()), Some("required-keys")),
            (
                "its window is closed",
                Record { gates: window("01:00-02:00"), ..behind() },
                plain(),
                Some("window"),
            ),
            (
                "the window of the source is closed",
                behind(),
                SourceRecord { gates: Some(closed.into()), ..plain() },
                Some("window"),
            ),
            (
                "it has just rolled",
                Record { last_roll: Some(NOW), min_interval: Duration::from_mins(1), ..behind() },
                plain(),
                None,
            ),
            ("its set is being written", behind(), SourceRecord { gates: Some(set.into()), ..plain() }, None),
        ] {
            let found = gates(&world(&[("web", &record)]), &content);
            let expected: Vec<_> = expected.into_iter().map(|gate| (gate, vec!["web".to_owned()])).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    /// Equal workloads have one answer; about 50 different ones are asked.
    #[test]
    fn few_workloads_are_asked() {
        let of = |minute: usize| Record {
            gates: window(&format!("01:{minute:02}-02:00")),
            ..on(1, used("a", Some(1)))
        };
        let records: Vec<_> = (0..60).map(of).collect();
        let names: Vec<_> = (0..120).map(|number| format!("w{number:03}")).collect();
        let workloads: Vec<_> =
            names.iter().enumerate().map(|(number, name)| (name.as_str(), &records[number % 60])).collect();
        let found = gates(&world(&workloads), &source_record("a", 2));
        assert_eq!(found.len(), MOST_ASKED);
        assert!(found.iter().all(|(_, names)| names.len() == 2), "{found:?}");
    }

    /// In a group, the source of another namespace may limit the change.
    #[test]
    fn group_keeps_workloads_from_failed_content() {
        let mut world = world(&[("web", &on(1, used("a", Some(1))))]);
        assert_eq!(gates(&world, &source_record("a", 2)), []);
        for namespace in ["ns", "other"] {
            let settings = NamespaceSettings { group: Some("group".into()), ..NamespaceSettings::default() };
            world.apply_namespace_settings(&namespace.into(), settings, &mut Vec::new());
        }
        let limited = SpreadPolicy { max_in_flight: Some(1), ..SpreadPolicy::default() };
        let elsewhere = SourceRecord { spread: limited.into(), ..source_record("a", 2) };
        world.set_read(&Name::new("other", object("a")), Some(elsewhere), &mut Vec::new());
        assert_eq!(gates(&world, &source_record("a", 2)), [("failed", vec!["web".to_owned()])]);
    }

    /// What is stored decides nothing: a forged review would test guesses of it.
    #[test]
    fn answer_about_secret_depends_on_the_review_alone() {
        let secret = |name: &str| ObjectName::new(SourceKind::Secret, name);
        let of = Use { source: secret("a"), ..used("a", Some(1)) };
        let (of_source, guesses) = (Name::new("ns", secret("a")), [1, 2, 3]);
        let ask = |seen: u8, gates: Texts| {
            let record = Record {
                gates,
                ..fixture::workload("web", 1, vec![of.clone()], digest(seen), Health::Settled)
            };
            let mut world = fixture::world(&[("web", &record)]);
            let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
            let name = of_source.sibling(snapshot("a", 2));
            world.apply_snapshot(&name, Some(refused), &mut Vec::new());
            world.referrers_mut().set_listed("ns");
            let answer = |guess: u8| {
                let content = reverting("a", guess);
                let objections = world.objections(&of_source, &content, NOW);
                objections.iter().map(|objection| objection.why.gate().name()).collect::<Vec<_>>()
            };
            guesses.map(answer)
        };
        for seen in guesses {
            assert_eq!(ask(seen, Texts::default()), [const { Vec::<&str>::new() }; 3], "{seen}");
            assert_eq!(ask(seen, window("01:00-02:00")), [["window"]; 3].map(Vec::from), "{seen}");
        }
    }
}
