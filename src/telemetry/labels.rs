//! The values that labels of metrics take, apart from routes, verbs and HTTP codes.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

/// Declares an enum with the text of each value, so that every metric can be at zero from the start: a rate over a
/// counter that begins with its first event misses that event.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of])* $variant,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The value of the label.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> std::fmt::Result {
                self.text().encode(encoder)
            }
        }
    };
}

labels! {
    /// How an admission review ended.
    Review {
        /// Let through as it was.
        Allowed = "allowed",
        /// Let through with a patch.
        Patched = "patched",
        /// Refused, by a rule.
        Denied = "denied",
        /// Not decided: malformed, too slow, or the API server could not be asked.
        Failed = "failed",
    }
}

labels! {
    /// How the attempt to roll a workload forward ended.
    Roll {
        /// The workload was written.
        Rolled = "rolled",
        /// Somebody else wrote it first; it is tried again on its fresh state.
        Conflict = "conflict",
        /// The write was refused or not answered.
        Failed = "failed",
    }
}

labels! {
    /// What the controller works on.
    Work {
        /// Reading a source.
        Read = "read",
        /// Rolling a workload forward.
        Roll = "roll",
        /// Making the snapshot of a source that lacks one.
        Ensure = "ensure",
        /// Adding a snapshot's owners.
        Bind = "bind",
        /// Taking owners from a snapshot.
        Unbind = "unbind",
        /// Making a snapshot again that is referenced and gone.
        Restore = "restore",
        /// Deleting what nothing wants any more.
        Sweep = "sweep",
        /// Writing an Event.
        Tell = "tell",
        /// Taking up the workloads of a namespace that opts in.
        OptIn = "opt-in",
    }
}

labels! {
    /// How a piece of the controller's work ended.
    Done {
        /// Done.
        Done = "done",
        /// The object had changed in the meantime; it is looked at again.
        Conflict = "conflict",
        /// Refused or not answered.
        Failed = "failed",
    }
}

labels! {
    /// What became of a new serving certificate.
    Reload {
        /// It is in use.
        Loaded = "loaded",
        /// It is broken; the one before stays in use.
        Refused = "refused",
    }
}

labels! {
    /// What an Event tells.
    Reason {
        /// A workload took the present content of its sources.
        Rolled = "Rolled",
        /// A workload was put back to another content, or made to keep it.
        Pinned = "Pinned",
        /// A workload refers to what does not exist.
        SourceMissing = "SourceMissing",
        /// A change is not taken further, since a workload that took it failed.
        RollHeld = "RollHeld",
        /// The API server refused to roll a workload.
        RollRefused = "RollRefused",
        /// A snapshot that is referenced is gone, and cannot be made again.
        SnapshotLost = "SnapshotLost",
        /// A snapshot that is referenced was gone, and was made again.
        SnapshotRestored = "SnapshotRestored",
        /// A workload or revision cannot be read, and is skipped.
        ObjectUnreadable = "ObjectUnreadable",
    }
}

labels! {
    /// What became of an Event.
    Told {
        /// It was written.
        Written = "written",
        /// An attempt to write it failed; it is tried a few times.
        Failed = "failed",
        /// There were too many.
        Dropped = "dropped",
    }
}

labels! {
    /// Which limit was reached: the options of `serve` that they are, and what the system gives.
    Limit {
        /// A body was too long.
        Body = "max-body",
        /// The memory for bodies was in use.
        Bodies = "max-bodies",
        /// As many reviews as may were being decided.
        Decisions = "max-decisions",
        /// As many calls to the API server as may were made for reviews, until a review's deadline.
        Calls = "max-calls",
        /// A workload refers to too many objects.
        Reads = "max-reads",
        /// What a workload refers to is too large, or what all refer to that are being decided.
        ReadBytes = "max-read-bytes",
        /// A source has too many snapshots.
        Snapshots = "max-snapshots",
        /// A connection came when as many as may were open.
        Connections = "max-connections",
        /// A connection came from an address that had as many open as it may, and none idle.
        ConnectionsPerAddress = "max-connections-per-address",
        /// A request came from an address that had as many under way as it may.
        Requests = "max-requests",
        /// A handshake took too long.
        Handshake = "handshake-timeout",
        /// A head took too long.
        Header = "header-timeout",
        /// A request took too long.
        Request = "request-timeout",
        /// A roll waited for others.
        Rolls = "roll-rate",
        /// The system gave no more descriptors.
        Descriptors = "descriptors",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReviewLabels {
    pub(super) path: &'static str,
    pub(super) outcome: Review,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PathLabels {
    pub(super) path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ApiLabels {
    pub(super) verb: &'static str,
    pub(super) code: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VerbLabels {
    pub(super) verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TaskLabels {
    pub(super) task: Work,
    pub(super) outcome: Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RollLabels {
    pub(super) outcome: Roll,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EventLabels {
    pub(super) reason: Reason,
    pub(super) outcome: Told,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) outcome: Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) limit: Limit,
}
