//! The marks on a refused snapshot.

use crate::annotations;

/// Why a content is refused: the marks on its snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The workload that failed, and how.
    pub reason: Box<str>,
    /// When the content was refused.
    pub at: Box<str>,
    /// The snapshot for workloads that have no previous one.
    pub previous: Option<Box<str>>,
}

impl Refusal {
    /// Reads the marks of a snapshot.
    pub fn read<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        Some(Self {
            reason: annotation(annotations::REFUSED)?.into(),
            at: annotation(annotations::REFUSED_AT).unwrap_or_default().into(),
            previous: annotation(annotations::PREVIOUS).map(Into::into),
        })
    }

    /// The annotation of the source with which a person asks to try the content again. It ends with the next refusal.
    pub fn retry_text(&self, snapshot: &str) -> String {
        format!("{snapshot} {}", self.at)
    }
}
