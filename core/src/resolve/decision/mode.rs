//! The first rule: whether a reference to a source stays as written, by the mode of the source or by an exclusion.

use super::{question::Question, stop::Stop};
use crate::{
    resolve::{Need, Observed},
    snapshot::{ObjectName, SourceKind},
};

impl Question<'_> {
    /// Whether the workload, its namespace or the installation leaves references to this source as written: by its name, or by a label
    /// if it was read.
    pub(super) fn is_excluded(&self, source: &ObjectName) -> bool {
        self.facts.is_rotated(source)
            || self.policy.exclude.names(source)
            || self.known(source).is_some_and(|newest| self.excludes_label_of(newest))
    }

    /// The same, by a label of a source that was read.
    fn excludes_label_of(&self, newest: &Observed) -> bool {
        self.policy.exclude.labels().have(newest.labels())
    }

    /// Whether references to this source stay as written.
    pub(super) fn stays_as_written(&self, source: &ObjectName) -> Result<bool, Stop> {
        if !self.is_ours(source)? {
            return Ok(true);
        }
        // Both facts are requested in one pass.
        let live_secrets = (source.kind == SourceKind::Secret).then(|| self.namespace_has_live_secrets());
        let Some(newest) = self.object(source)? else { return Ok(false) };
        Ok(self.excludes_label_of(newest)
            || newest.stays_as_written()
            || match (newest.is_live(), live_secrets) {
                (None, Some(live_secrets)) => live_secrets?,
                (live, _) => live == Some(true),
            })
    }

    /// Whether the source is in mode `live`: references stay as written, and a change rolls the workload.
    pub(super) fn is_live_mode(&self, source: &ObjectName) -> Result<bool, Stop> {
        if !self.is_ours(source)? {
            return Ok(false);
        }
        let newest = self.object(source)?.filter(|newest| !self.excludes_label_of(newest));
        match newest.map(Observed::is_live) {
            None => Ok(false),
            Some(Some(live)) => Ok(live),
            Some(None) => self.namespace_has_live_secrets(),
        }
    }

    /// Whether confrev resolves references to sources of this kind, and no exclusion names the source.
    fn is_ours(&self, source: &ObjectName) -> Result<bool, Stop> {
        let takes_kind = source.kind == SourceKind::ConfigMap || self.takes_secrets()?;
        Ok(takes_kind && !self.is_excluded(source))
    }

    /// Whether the namespace sets the mode `live` for Secrets that set no mode themselves.
    fn namespace_has_live_secrets(&self) -> Result<bool, Stop> {
        let namespace = self.facts.namespace().ok_or_else(|| self.need(Need::Namespace))?;
        Ok(namespace.live_secrets)
    }

    /// Whether Secrets are snapshotted, by the workload's setting or else by its namespace's.
    fn takes_secrets(&self) -> Result<bool, Stop> {
        match (self.request.secrets, self.policy.secrets) {
            (false, _) => Ok(false),
            (true, Some(asked)) => Ok(asked),
            (true, None) => self.namespace_takes_secrets().ok_or_else(|| self.need(Need::Namespace)),
        }
    }

    /// Whether the namespace asks for snapshots of Secrets; `None` if it was not read.
    fn namespace_takes_secrets(&self) -> Option<bool> {
        self.facts.namespace().map(|namespace| namespace.opt_in.is_in() && namespace.secrets)
    }

    /// Asks for the newest snapshot of a source that must be read now: most likely, it is needed next.
    pub(super) fn expect_newest(&self, source: ObjectName, kept: Option<String>) {
        let takes_secrets = || self.policy.secrets.or_else(|| self.namespace_takes_secrets()) == Some(true);
        let ours = source.kind == SourceKind::ConfigMap || (self.request.secrets && takes_secrets());
        if ours && !self.is_excluded(&source) && self.needs(&Need::Object(source.clone())) {
            self.need(Need::Newest { source, kept });
        }
    }
}
