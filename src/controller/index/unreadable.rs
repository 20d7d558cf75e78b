//! Objects that cannot be read: nested too deep, not of the form of their kind, or with references to too many names. They
//! are skipped and reported, and do not block others.

use std::sync::Arc;

use jiff::Timestamp;

use crate::controller::{RevisionKey, index::records::User, state::State};
use crate::{
    cluster::{Event, ObjectRef, WorkloadKey},
    kinds::REVISION_KINDS,
    telemetry::metrics::Reason,
    uid::Uid,
};

/// Why an object is skipped.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// It is nested too deep, or malformed. The error itself may quote the object's content.
    Form(serde_json::Error),
    /// It refers to more names than the limit.
    Names {
        /// The limit.
        most: usize,
    },
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self::Form(error)
    }
}

/// What is known of an object that is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    uid: Uid,
    /// The exceeded limit of names; `None` if the object is malformed.
    most_names: Option<usize>,
}

impl State {
    /// Skips workloads and revisions that refer to more names than this.
    #[must_use]
    pub fn naming_at_most(mut self, names: usize) -> Self {
        self.most_names = names;
        self
    }

    /// Records that an object cannot be read, and reports it on the object.
    ///
    /// The object counts as no user of a snapshot in the state, but stays an owner of the snapshots that it owns: see
    /// [`crate::cluster::Usage`].
    pub(crate) fn set_unreadable(&mut self, object: &User, uid: &Uid, error: &Unreadable, now: Timestamp) {
        let most_names = match error {
            Unreadable::Form(_) => None,
            Unreadable::Names { most } => Some(*most),
        };
        let skipped = Skipped { uid: uid.clone(), most_names };
        if self.unreadable.insert(object.clone(), skipped.clone()) == Some(skipped) {
            return;
        }
        let name = self.display_user(object);
        match error {
            Unreadable::Form(error) => {
                let (line, column, category) = (error.line(), error.column(), error.classify());
                tracing::warn!(
                    object = name,
                    ?category,
                    line,
                    column,
                    "object cannot be read and is skipped"
                );
            }
            Unreadable::Names { most } => {
                tracing::warn!(object = name, most, "object refers to too many names and is skipped");
            }
        }
        self.report_unreadable(object, now);
    }

    /// Forgets that an object could not be read.
    pub(crate) fn set_readable(&mut self, object: &User, now: Timestamp) {
        // The map is nearly always empty.
        if self.unreadable.is_empty() {
            return;
        }
        if let Some(Skipped { uid, .. }) = self.unreadable.remove(object) {
            let (User::Workload(WorkloadKey { namespace, .. })
            | User::Revision(RevisionKey { namespace, .. })) = object;
            self.verify_again(namespace, std::iter::once(&uid), now);
        }
    }

    /// Reports every object that cannot be read. Called when this replica begins to lead.
    pub(crate) fn report_all_unreadable(&mut self, now: Timestamp) {
        for object in self.unreadable.keys().cloned().collect::<Vec<_>>() {
            self.report_unreadable(&object, now);
        }
    }

    fn report_unreadable(&mut self, object: &User, now: Timestamp) {
        let Some(Skipped { uid, most_names }) = self.unreadable.get(object) else { return };
        let (namespace, name) = match object {
            User::Workload(key) => (&key.namespace, &key.name),
            User::Revision(key) => (&key.namespace, &key.name),
        };
        let (api_version, kind) = self.kind_of_user(object);
        let regarding = ObjectRef { api_version, kind, name: name.to_string(), uid: uid.to_string() };
        let why = match most_names {
            None => "the object cannot be read: it is nested too deep, or its pod template is malformed"
                .to_owned(),
            Some(most) => format!("the object refers to more than {most} names (--max-reads)"),
        };
        let note = why
            + ". confrev skips it: its references are not resolved, and snapshots that it may use are kept";
        let namespace = Arc::clone(namespace);
        let (reason, same) = (Reason::ObjectUnreadable, String::new());
        self.tell(Event { namespace, regarding, related: None, reason, same, note, at: now }, now);
    }

    /// The `apiVersion` and kind of a user.
    fn kind_of_user(&self, user: &User) -> (String, String) {
        let known = match user {
            User::Workload(key) => {
                self.kinds.iter().nth(key.kind).map(|kind| (kind.api_version(), kind.kind.clone()))
            }
            User::Revision(key) => {
                REVISION_KINDS.get(key.kind).map(|kind| (kind.api_version(), kind.kind.to_owned()))
            }
        };
        known.unwrap_or_default()
    }

    fn display_user(&self, user: &User) -> String {
        let (namespace, name) = match user {
            User::Workload(key) => (&key.namespace, &key.name),
            User::Revision(key) => (&key.namespace, &key.name),
        };
        format!("{} {namespace}/{name}", self.kind_of_user(user).1)
    }
}
