//! The label `enabled` of a namespace.

/// What the label of a namespace says about workloads without a label of their own. A later one opts more of them in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamespaceOptIn {
    /// They are not opted in.
    #[default]
    Out,
    /// Each is opted in with its next deployment.
    Next,
    /// They are opted in, and roll.
    Now,
}

impl NamespaceOptIn {
    /// Reads the label's value.
    pub fn read(label: Option<&str>) -> Self {
        match label {
            Some("true") => Self::Now,
            Some("next") => Self::Next,
            _ => Self::Out,
        }
    }

    /// Whether a workload without the label is opted in now. `is_marked`: it was deployed while confrev did not answer.
    pub fn joins(self, is_marked: bool) -> bool {
        match self {
            Self::Now => true,
            Self::Next => is_marked,
            Self::Out => false,
        }
    }

    /// Whether workloads are opted in, now or later.
    pub fn is_in(self) -> bool {
        self != Self::Out
    }
}
