//! The answers of the gates about each source to whose content a workload would move.

use confrev_core::{
    gates::{self, Answer, Why},
    resolve::{Record, SetVersion, Use, Wait},
};
use jiff::Timestamp;

use crate::{name::Name, objects::WorkloadKey, question::Question, records::SourceRecord, world::World};

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
                Some(Shut { why, about, .. }) => {
                    let (why, about) = (why.clone(), about.clone());
                    self.shut.push(Shut { source, known, why, is_refused: false, about });
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
        gates::answer(&mut Question { world: self, key, record, source, used, known, wait, since, now })
    }
}
