//! What live reads found about the AnalysisRuns of waves. A restart forgets it, and reads it again: until then no further wave
//! begins.

use std::collections::HashMap;

use confrev_core::{
    resolve::{AnalysisRun, EndedWave, RunState, is_run_of},
    snapshot::{DIGITS, snapshot_name},
};
use jiff::Timestamp;

use crate::{name::Name, records::SourceRecord};

/// An AnalysisRun that was read.
#[derive(Clone, Debug)]
pub struct KnownRun {
    /// The run.
    pub run: AnalysisRun,
    /// When it was read.
    pub at: Timestamp,
}

/// The last known AnalysisRun of each source.
#[derive(Debug, Default)]
pub struct Analyses(HashMap<Name, KnownRun>);

impl Analyses {
    /// The last known run of a source.
    pub fn get(&self, source: &Name) -> Option<&KnownRun> {
        self.0.get(source)
    }

    /// Records a run. Returns the state in which it was known, if any.
    pub fn set(&mut self, source: &Name, run: AnalysisRun, at: Timestamp) -> Option<RunState> {
        let name = run.name.clone();
        let old = self.0.insert(source.clone(), KnownRun { run, at });
        old.filter(|old| old.run.name == name).map(|old| old.run.state)
    }

    /// Forgets the run of a source.
    pub fn forget(&mut self, source: &Name) {
        self.0.remove(source);
    }

    /// Forgets all runs: another replica may have led since.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The name of the AnalysisRun that judges a wave of a change of this source. `retried`: from the verdict on the content.
pub fn run_name(source: &Name, known: &SourceRecord, ended: EndedWave, retried: Option<&str>) -> String {
    ended.run_name(source.object.kind, &snapshot_of(source, known), retried)
}

/// Whether an AnalysisRun of this name judges the present content of the source.
pub fn judges_present(run: &str, source: &Name, known: &SourceRecord) -> bool {
    is_run_of(run, &snapshot_of(source, known))
}

fn snapshot_of(source: &Name, known: &SourceRecord) -> String {
    snapshot_name(&source.object.name, &known.present.digests.current(), DIGITS[0])
}
