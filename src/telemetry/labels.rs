//! The values of metric labels, apart from routes, verbs and HTTP codes.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

/// Declares an enum with the text of each value, so that every metric can start at zero: a rate over a counter that
/// begins with its first event misses that event.
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
    ReviewOutcome {
        /// Allowed unchanged.
        Allowed = "allowed",
        /// Allowed with a patch.
        Patched = "patched",
        /// Denied by a rule.
        Denied = "denied",
        /// Not decided: malformed, too slow, or the API server could not be reached.
        Failed = "failed",
    }
}

labels! {
    /// How the attempt to roll a workload forward ended.
    Roll {
        /// The workload was written.
        Rolled = "rolled",
        /// Another client wrote it first; the roll is repeated on the new state.
        Conflict = "conflict",
        /// The write was refused or got no answer.
        Failed = "failed",
    }
}

labels! {
    /// The controller's tasks.
    Work {
        /// Reading a source.
        Read = "read",
        /// Checking the content of a source against its schema.
        Check = "check",
        /// Rolling a workload forward.
        Roll = "roll",
        /// Creating the snapshot of a source that lacks one.
        Ensure = "ensure",
        /// Refusing a content with which a workload failed.
        Judge = "judge",
        /// Creating, reading or terminating the AnalysisRun of a wave.
        Analyse = "analyse",
        /// Writing the state of a change on its source.
        Publish = "publish",
        /// Adding a snapshot's owners.
        Bind = "bind",
        /// Removing owners from a snapshot.
        Unbind = "unbind",
        /// Recreating a snapshot that is referenced but missing.
        Restore = "restore",
        /// Deleting a snapshot that is no longer used.
        Sweep = "sweep",
        /// Writing an Event.
        Tell = "tell",
        /// Opting in the workloads of a namespace.
        OptIn = "opt-in",
    }
}

labels! {
    /// How a task of the controller ended.
    Done {
        /// The task succeeded.
        Done = "done",
        /// The object had changed in the meantime; the task is repeated.
        Conflict = "conflict",
        /// The call was refused or got no answer.
        Failed = "failed",
    }
}

labels! {
    /// Why the API server forbade a call.
    Forbidden {
        /// confrev lacks a right.
        Rbac = "rbac",
        /// One of confrev's own policies denied the write.
        Guard = "guard",
        /// The policy of an outage denied the write: no replica answered its review.
        Unanswered = "unanswered",
        /// Another part of admission denied the write: a webhook, a policy, a quota.
        Admission = "admission",
        /// The namespace is being terminated.
        Terminating = "terminating",
    }
}

labels! {
    /// The result of loading a new serving certificate.
    Reload {
        /// It is in use.
        Loaded = "loaded",
        /// It is broken; the previous one stays in use.
        Refused = "refused",
    }
}

labels! {
    /// The reason of an Event.
    Reason {
        /// A workload rolled to the current content of its sources.
        Rolled = "Rolled",
        /// A workload was rolled back to another content, or made to keep it.
        Pinned = "Pinned",
        /// An undo or a pin of a workload ended.
        Unpinned = "Unpinned",
        /// The annotation `hold` began to keep a workload on a snapshot.
        Held = "Held",
        /// The annotation `hold` no longer keeps a workload on a snapshot.
        HoldEnded = "HoldEnded",
        /// A workload refers to an object that does not exist.
        SourceMissing = "SourceMissing",
        /// A change rolls no further, since a workload failed with it.
        RollHeld = "RollHeld",
        /// A change that was held rolls again, or was replaced.
        RollReleased = "RollReleased",
        /// A person promoted a wave, or stopped or continued a change.
        ChangeDecided = "ChangeDecided",
        /// The next wave of a change begins.
        WaveBegun = "WaveBegun",
        /// A wave ended, and an AnalysisRun judges it.
        AnalysisBegun = "AnalysisBegun",
        /// The AnalysisRun of a wave was successful.
        AnalysisSucceeded = "AnalysisSucceeded",
        /// The AnalysisRun of a wave failed.
        AnalysisFailed = "AnalysisFailed",
        /// The AnalysisRun of a wave has no result that decides, or cannot be created.
        AnalysisHeld = "AnalysisHeld",
        /// A workload failed with a content, so no workload resolves to the content.
        ContentRefused = "ContentRefused",
        /// A workload went back from refused content.
        Reverted = "Reverted",
        /// confrev decided on a write that it had not answered.
        Carried = "Carried",
        /// A setting of a source is invalid, so a change of it rolls nothing.
        SettingInvalid = "SettingInvalid",
        /// The API server refused to roll a workload.
        RollRefused = "RollRefused",
        /// A snapshot that is referenced is missing, and cannot be recreated.
        SnapshotLost = "SnapshotLost",
        /// A snapshot that is referenced was missing, and was recreated.
        SnapshotRestored = "SnapshotRestored",
        /// A source's unused snapshots are too large together, so the oldest are deleted early.
        SnapshotsDropped = "SnapshotsDropped",
        /// A workload or revision cannot be read, or refers to too many names, and is skipped.
        ObjectUnreadable = "ObjectUnreadable",
        /// Events of a namespace were dropped, since too many of them waited.
        EventsDropped = "EventsDropped",
        /// A namespace has more workloads and revisions than the index keeps of one namespace.
        NamespacePartlyKnown = "NamespacePartlyKnown",
    }
}

labels! {
    /// The result of writing an Event.
    EventOutcome {
        /// It was written.
        Written = "written",
        /// An attempt to write it failed; there are a few attempts.
        Failed = "failed",
        /// It was dropped because there were too many.
        Dropped = "dropped",
    }
}

labels! {
    /// The result of posting a notification.
    NotificationOutcome {
        /// The receiver accepted it.
        Sent = "sent",
        /// An attempt failed, and is repeated.
        Failed = "failed",
        /// The receiver refused it, and it is not repeated.
        Refused = "refused",
        /// It was dropped: the receiver was away for too long, or too many waited.
        Dropped = "dropped",
    }
}

labels! {
    /// Which limit was reached: one set by an option of `serve`, or one of the system.
    Limit {
        /// A body was too long.
        Body = "max-body",
        /// The memory for bodies was exhausted.
        Bodies = "max-bodies",
        /// The maximum number of reviews was being decided.
        Decisions = "max-decisions",
        /// Calls to the API server for reviews were at their maximum until a review's deadline.
        Calls = "max-calls",
        /// A workload refers to too many objects.
        Reads = "max-reads",
        /// The objects that a workload refers to are too large, or those of all reviews in progress are too large
        /// together.
        ReadBytes = "max-read-bytes",
        /// A source has too many snapshots.
        Snapshots = "max-snapshots",
        /// An unused snapshot was deleted early, since those of its source are too large together.
        SnapshotBytes = "max-snapshot-bytes",
        /// A connection arrived while the maximum number was open.
        Connections = "max-connections",
        /// A connection arrived from an address with its maximum open, none of them idle.
        ConnectionsPerAddress = "max-connections-per-address",
        /// A request arrived from an address with its maximum in progress.
        Requests = "max-requests",
        /// A handshake took too long.
        Handshake = "handshake-timeout",
        /// The head of a request took too long.
        Header = "header-timeout",
        /// A request took too long.
        Request = "request-timeout",
        /// A roll waited for the rate limit.
        Rolls = "roll-rate",
        /// The system ran out of file descriptors.
        Descriptors = "descriptors",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReviewLabels {
    pub(super) path: &'static str,
    pub(super) outcome: ReviewOutcome,
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
pub(super) struct ForbiddenLabels {
    pub(super) verb: &'static str,
    pub(super) cause: Forbidden,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GateLabels {
    pub(super) gate: &'static str,
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
pub(super) struct ChangeLabels {
    /// The strategy's name, which the installation defines; empty for a change outside any.
    pub(super) strategy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RollLabels {
    pub(super) outcome: Roll,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EventLabels {
    pub(super) reason: Reason,
    pub(super) outcome: EventOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct NotificationLabels {
    pub(super) outcome: NotificationOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) outcome: Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) limit: Limit,
}
