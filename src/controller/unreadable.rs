//! Objects that cannot be read: nested too deep, or not of the form of their kind. They are skipped and reported, and do
//! not block others.

use std::sync::Arc;

use jiff::Timestamp;

use super::{RevisionKey, records::User, state::State};
use crate::{
    cluster::{Event, ObjectRef, WorkloadKey},
    kinds::REVISION_KINDS,
    telemetry::metrics::Reason,
};

impl State {
    /// Records that an object cannot be read, and reports it on the object.
    ///
    /// The object counts as no user of a snapshot in the state, but stays an owner of the snapshots that it owns: see
    /// [`crate::cluster::Usage`].
    pub(super) fn set_unreadable(
        &mut self,
        object: &User,
        uid: &str,
        error: &serde_json::Error,
        now: Timestamp,
    ) {
        if self.unreadable.insert(object.clone(), Arc::from(uid)).as_deref() == Some(uid) {
            return;
        }
        // The error itself may quote the object's content.
        let (line, column, category) = (error.line(), error.column(), error.classify());
        let name = self.display_user(object);
        tracing::warn!(object = name, ?category, line, column, "object cannot be read and is skipped");
        self.report_unreadable(object, now);
    }

    /// Forgets that an object could not be read.
    pub(super) fn set_readable(&mut self, object: &User, now: Timestamp) {
        // The map is nearly always empty.
        if self.unreadable.is_empty() {
            return;
        }
        if let Some(uid) = self.unreadable.remove(object) {
            let (User::Workload(WorkloadKey { namespace, .. })
            | User::Revision(RevisionKey { namespace, .. })) = object;
            self.verify_again(namespace, std::iter::once(&(&*uid).into()), now);
        }
    }

    /// Reports every object that cannot be read. Called when this replica begins to lead.
    pub(super) fn report_all_unreadable(&mut self, now: Timestamp) {
        for object in self.unreadable.keys().cloned().collect::<Vec<_>>() {
            self.report_unreadable(&object, now);
        }
    }

    fn report_unreadable(&mut self, object: &User, now: Timestamp) {
        let Some(uid) = self.unreadable.get(object) else { return };
        let (namespace, name) = match object {
            User::Workload(key) => (&key.namespace, &key.name),
            User::Revision(key) => (&key.namespace, &key.name),
        };
        let (api_version, kind) = self.kind_of_user(object);
        let regarding = ObjectRef { api_version, kind, name: name.to_string(), uid: uid.to_string() };
        let note = "the object cannot be read: it is nested too deep, or its pod template is malformed. confrev skips it: its \
                    references are not resolved, and snapshots that it may use are kept"
            .to_owned();
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
