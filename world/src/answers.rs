//! The answers of the gates about each source to whose content a workload would move.

use confrev_core::{
    gates::{self, Answer, Why},
    resolve::{Record, SetVersion, Use, Wait},
};
use jiff::Timestamp;

use crate::{
    name::Name,
    objects::WorkloadKey,
    question::{ContentOf, Question},
    records::SourceRecord,
    world::World,
};

/// A source to whose content a workload would move, and does not now.
pub struct Shut<'i> {
    /// The source.
    pub source: Name,
    /// What is known of it.
    pub known: &'i SourceRecord,
    /// The reason.
    pub why: Why<WorkloadKey>,
    /// The workload keeps its snapshot, or goes back to an earlier one.
    pub is_refused: bool,
    /// The source that the reason is about: this one, or another one of its set.
    pub about: Name,
}

impl Shut<'_> {
    /// Whether another source of its set is shut: the reason is about that one.
    pub fn is_joint(&self) -> bool {
        self.about != self.source
    }
}

/// The answers of the gates about the sources to whose contents a workload would move.
#[derive(Default)]
pub struct Answers<'i> {
    /// The sources to which it may move.
    pub open: Vec<(Name, &'i SourceRecord)>,
    /// The others.
    pub shut: Vec<Shut<'i>>,
}

impl Answers<'_> {
    /// The sources of one set move together or not at all.
    fn join_sets(&mut self) {
        for (source, known) in std::mem::take(&mut self.open) {
            match self.shut.iter().find(|shut| is_one_set(shut.known, known)) {
                Some(Shut { why, about, is_refused, .. }) => {
                    let (why, about, is_refused) = (why.clone(), about.clone(), *is_refused);
                    self.shut.push(Shut { source, known, why, is_refused, about });
                }
                None => self.open.push((source, known)),
            }
        }
    }
}

/// Whether two sources belong to one set.
pub fn is_one_set(one: &SourceRecord, other: &SourceRecord) -> bool {
    fn set(of: &SourceRecord) -> Option<&str> {
        SetVersion::parse(of.spread.set.as_deref()?).map(|set| set.name)
    }
    set(one).is_some_and(|name| set(other) == Some(name))
}

impl World {
    /// Asks the gates about each source to whose content a workload would move. `wait`: why others hold it from the content of a source.
    /// `since`: when the workload became pending.
    pub fn answers<'i>(
        &'i self,
        (key, record): (&WorkloadKey, &'i Record),
        mut wait: impl FnMut(&Name, &SourceRecord) -> Option<Wait<WorkloadKey>>,
        (since, now): (Timestamp, Timestamp),
    ) -> Answers<'i> {
        let mut answers = Answers::default();
        let sources = self.sources_of(key, record);
        for (source, used, known) in sources.filter(|(_, used, known)| record.is_behind(used, &known.present))
        {
            let answer =
                self.answer((key, record), (&source, used, known), || wait(&source, known), (since, now));
            let (why, is_refused) = match answer {
                Answer::Open => {
                    answers.open.push((source, known));
                    continue;
                }
                Answer::Wait(why) => (why, false),
                Answer::Refuse(why) => (why, true),
            };
            let about = source.clone();
            answers.shut.push(Shut { source, known, why, is_refused, about });
        }
        answers.join_sets();
        answers
    }

    /// Why a workload does not move to contents of its sources, for each that its own settings keep it from.
    pub fn stays<'i>(
        &'i self,
        key: &'i WorkloadKey,
        record: &'i Record,
    ) -> impl Iterator<Item = Why<WorkloadKey>> + 'i {
        let rolls = self.kind(key).is_some_and(|kind| kind.rolls);
        let behind = self
            .sources_of(key, record)
            .filter(move |(_, used, known)| rolls && record.is_behind(used, &known.present));
        behind.filter_map(|(_, used, _)| gates::of_workload(record, used))
    }

    /// Asks the gates about one source of a workload, whatever its others do.
    pub fn answer(
        &self,
        (key, record): (&WorkloadKey, &Record),
        (source, used, known): (&Name, &Use, &SourceRecord),
        wait: impl FnMut() -> Option<Wait<WorkloadKey>>,
        (since, now): (Timestamp, Timestamp),
    ) -> Answer<WorkloadKey> {
        let of = ContentOf::Source;
        gates::answer(&mut Question { world: self, key, record, source, used, known, of, wait, since, now })
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::{
        gate_settings::Texts,
        resolve::{Health, Observed, Present},
        snapshot::SourceKind,
        tie::{ReadKey, Reads},
    };

    use super::*;
    use crate::{
        fixture::{self, digest, key, object, source, source_record, used},
        records::Gates,
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// The content 2 with the key `there`.
    fn with_key() -> SourceRecord {
        let text = br#"{"metadata": {"name": "a"}, "data": {"there": "x"}}"#;
        let keys = Present::from(&Observed::read(SourceKind::ConfigMap, &text[..]).unwrap()).keys;
        let known = source_record("a", 2);
        SourceRecord { present: Present { keys, ..known.present.clone() }, ..known }
    }

    /// A workload that has seen the content 1 of the source, and reads this key of it.
    fn reading(used: Use, name: &str, required: bool) -> Record {
        let web = fixture::workload("web", 1, vec![used], digest(1), Health::Settled);
        let read = ReadKey { key: name.into(), required };
        let reads = Reads { whole: false, keys: [read].into() };
        web.tied(&object("a"), |tie| tie.reads = Some(Box::new(reads)))
    }

    /// The gate that keeps the workload from the content, and whether it refuses it.
    fn gate(web: &Record, known: SourceRecord) -> Option<(&'static str, bool)> {
        let mut world = fixture::world(&[("web", web)]);
        world.set_read(&source("a"), Some(known), &mut Vec::new());
        let answers = world.answers((&key("web"), web), |_, _| None, (NOW, NOW));
        assert_eq!(answers.open.len() + answers.shut.len(), 1);
        answers.shut.first().map(|shut| (shut.why.gate().name(), shut.is_refused))
    }

    /// New pods would not start.
    #[test]
    fn content_without_required_key_is_refused() {
        let held = || used("a", Some(1));
        let shut = Some(("required-keys", true));
        for (what, used, key, required, known, expected) in [
            ("it is missing", held(), "missing", true, with_key(), shut),
            ("it is there", held(), "there", true, with_key(), None),
            ("it is optional", held(), "missing", false, with_key(), None),
            ("the keys are not known", held(), "missing", true, source_record("a", 2), None),
            ("nothing can be kept", used("a", None), "missing", true, with_key(), None),
        ] {
            assert_eq!(gate(&reading(used, key, required), known), expected, "{what}");
        }
        let known = with_key();
        let live = Present { live: Some(true), stays_as_written: true, ..known.present.clone() };
        let live = SourceRecord { present: live, ..known };
        assert_eq!(gate(&reading(held(), "missing", true), live), None, "pods read the source itself");
    }

    #[test]
    fn content_that_fails_its_schema_is_refused() {
        let web = fixture::workload("web", 1, vec![used("a", Some(1))], digest(1), Health::Settled);
        for (check, expected) in
            [(None, None), (Some(Ok(())), None), (Some(Err("it fails".into())), Some(("schema", true)))]
        {
            let gates = Gates { settings: Texts::default(), set: None, has_schema: true, check };
            let known = SourceRecord { gates: Some(gates.into()), ..source_record("a", 2) };
            assert_eq!(gate(&web, known), expected);
        }
    }
}
