//! The resolver's view of live objects, and the snapshot of a source's present content.

use super::{
    Ensure, Need, Observed, Seen, Spares,
    decide::{Resolver, Stop},
    used::{ReadKeys, UsedKeys},
};
use crate::{
    snapshot::{DIGITS, Digest, ObjectName, SourceKind, is_named_after, snapshot_name, spare_name},
    template::Reference,
    tie::Remembered,
};

fn no_key(source: &ObjectName, key: &str) -> String {
    format!("{source} has no key {key:?}: pods that refer to it do not start")
}

impl<'r> Resolver<'r> {
    /// The snapshot of the source's present content, or `kept` if it is a snapshot of the source in which every used key has
    /// the same value.
    pub(super) fn present_content(
        &mut self,
        source: &ObjectName,
        kept: Option<&str>,
        used: &UsedKeys<'_>,
    ) -> Result<String, Stop> {
        self.mark_seen(source)?;
        let facts = self.facts;
        let Some(Some(present)) = facts.object(source) else { return Err(Stop::Unknown) };
        let digest = present.digest();
        let own = kept.filter(|kept| is_named_after(kept, &source.name, &digest));
        if let Some(kept) = kept {
            let keys = used.of_names(source, kept);
            // A snapshot of a Secret may be named after a digest of another scheme or key.
            let is_renamed = source.kind == SourceKind::Secret && own.is_none();
            if (keys.is_some() || is_renamed)
                && let Some(content) = self.live(&ObjectName::new(source.kind, kept))?
                && content.is_snapshot_of_source(&source.name)
            {
                let same_values = keys.is_some_and(|keys| content.same_values(present, keys.iter().copied()));
                if same_values || (is_renamed && content.same_content(present)) {
                    return Ok(kept.to_owned());
                }
            }
        }
        if own.is_none()
            && let Some(failure) = self.schema_failure(source)?
        {
            return self.without_failing(source, kept, &failure);
        }
        if let Some(kept) = kept.filter(|_| own.is_none() && self.is_poke) {
            self.keeps_required_keys(source, kept)?;
        }
        self.snapshot_of_present(source, present, own)
    }

    /// The name of the snapshot of the source's present content, which may have to be created. The name that the template has
    /// comes first: a shorter one may be free again. Names that objects of others have are passed over. Who knows the content
    /// in advance may have taken all of them, but not one of random digits.
    fn snapshot_of_present(
        &mut self,
        source: &ObjectName,
        present: &Observed,
        own: Option<&str>,
    ) -> Result<String, Stop> {
        let digest = present.digest();
        let usual = || DIGITS.iter().map(|digits| snapshot_name(&source.name, &digest, *digits));
        for (place, name) in own.map(str::to_owned).into_iter().chain(usual()).enumerate() {
            if place > 0 && self.facts.object(&ObjectName::new(source.kind, name.as_str())).is_none() {
                // All at once: one round of reads, however many are taken.
                let others = usual().map(|name| ObjectName::new(source.kind, name));
                let unread = others.filter(|name| self.facts.object(name).is_none());
                self.needs.extend(unread.map(Need::Object));
                self.spares(source)?;
            }
            if self.is_snapshot_or_free(source, present, &name)? {
                return Ok(name);
            }
        }
        let Spares { known, digits } = self.spares(source)?;
        let new = spare_name(&source.name, &digest, digits);
        for name in known.iter().filter(|name| is_named_after(name, &source.name, &digest)).chain([&new]) {
            let exists = self.live(&ObjectName::new(source.kind, name.as_str()))?.is_some();
            if (exists || *name == new) && self.is_snapshot_or_free(source, present, name)? {
                return Ok(name.clone());
            }
        }
        Err(Stop::Deny(format!(
            "every possible snapshot name of {source} is used by another object: delete those objects"
        )))
    }

    /// Whether the name is that of a sound snapshot of the source's present content, or free. A free one gets a snapshot.
    fn is_snapshot_or_free(
        &mut self,
        source: &ObjectName,
        present: &Observed,
        name: &str,
    ) -> Result<bool, Stop> {
        let (candidate, digest) = (ObjectName::new(source.kind, name), present.digest());
        match self.live(&candidate)? {
            Some(taken) if taken.is_snapshot_of(&source.name, &digest) => {
                // All its owners may be about to be deleted, and the snapshot with them before the controller binds it.
                if taken.may_go_without(&present.uid) && !self.stored.contains(&candidate) {
                    self.adopt.insert(candidate);
                }
                Ok(true)
            }
            Some(_) => Ok(false),
            None => {
                let ensure = Ensure { source: source.clone(), digest, name: name.to_owned() };
                self.ensure.insert(candidate, ensure);
                Ok(true)
            }
        }
    }

    /// Further names for the snapshot of the source's present content.
    pub(super) fn spares(&mut self, source: &ObjectName) -> Result<&'r Spares, Stop> {
        self.facts.spares(source).ok_or_else(|| {
            self.needs.insert(Need::Spares(source.clone()));
            Stop::Unknown
        })
    }

    /// Whether the workload, its namespace or the installation leaves references to this source as written: by its name, or by a label
    /// if it was read.
    pub(super) fn is_excluded(&self, source: &ObjectName) -> bool {
        let present = || self.facts.object(source).flatten();
        self.facts.is_rotated(source)
            || self.policy.exclude.names(source)
            || present().is_some_and(|present| self.excludes_label_of(present))
    }

    /// The same, by a label of a source that was read.
    fn excludes_label_of(&self, present: &Observed) -> bool {
        self.policy.exclude.labels().have(present.labels())
    }

    /// Whether references to this source stay as written.
    pub(super) fn stays_as_written(&mut self, source: &ObjectName) -> Result<bool, Stop> {
        let ours = source.kind == SourceKind::ConfigMap || self.takes_secrets()?;
        if !ours || self.is_excluded(source) {
            return Ok(true);
        }
        // Both facts are requested in one pass.
        let live_secrets = (source.kind == SourceKind::Secret).then(|| self.namespace_has_live_secrets());
        let Some(present) = self.live(source)? else { return Ok(false) };
        Ok(self.excludes_label_of(present)
            || present.stays_as_written()
            || match (present.is_live(), live_secrets) {
                (None, Some(live_secrets)) => live_secrets?,
                (live, _) => live == Some(true),
            })
    }

    /// Whether the namespace sets the mode `live` for Secrets that set no mode themselves.
    fn namespace_has_live_secrets(&mut self) -> Result<bool, Stop> {
        self.facts.namespace().map(|namespace| namespace.live_secrets).ok_or_else(|| {
            self.needs.insert(Need::Namespace);
            Stop::Unknown
        })
    }

    /// Whether the source is in mode `live`: references stay as written, and a change rolls the workload.
    pub(super) fn is_live_mode(&mut self, source: &ObjectName) -> Result<bool, Stop> {
        let ours = source.kind == SourceKind::ConfigMap || self.takes_secrets()?;
        if !ours || self.is_excluded(source) {
            return Ok(false);
        }
        let present = self.live(source)?.filter(|present| !self.excludes_label_of(present));
        match present.map(Observed::is_live) {
            None => Ok(false),
            Some(Some(live)) => Ok(live),
            Some(None) => self.namespace_has_live_secrets(),
        }
    }

    /// Records a source in mode `live` with the digest of the keys that the template reads. A new digest rolls the workload, so
    /// the digest stays if the content is the same or cannot be compared.
    pub(super) fn enter_live(
        &mut self,
        source: &ObjectName,
        name: &str,
        used: &UsedKeys<'_>,
    ) -> Result<(), Stop> {
        if !self.is_live_mode(source)? {
            return Ok(());
        }
        let Some(present) = self.live(source)? else { return Ok(()) };
        let read = present.digests_of(used.of_names(source, name).as_ref());
        let seen = self.is_seen(source)?;
        let prior = self.prior_live.get(source).copied();
        if let Some(prior) = prior.filter(|prior| read.judge(prior) == Some(false))
            && self.live_awaits_its_turn(source, present)?
        {
            self.keep_until_its_turn(source, None)?;
            self.now_live.insert(source.clone(), prior);
            return Ok(());
        }
        if prior.is_none_or(|prior| read.judge(&prior) == Some(false))
            && let Some(failure) = self.schema_failure(source)?
        {
            let Some(prior) = prior.filter(|_| !self.is_poke) else {
                return Err(Stop::Deny(failure));
            };
            self.warnings.push(format!("{failure}: {} does not roll to it", self.request.new.display()));
            self.forget_seen(source);
            self.keep_seen(source);
            self.now_live.insert(source.clone(), prior);
            return Ok(());
        }
        let is_asked = self.asks_for(source);
        let is_kept = |prior: &Digest| match read.judge(prior) {
            Some(true) => true,
            Some(false) => {
                !self.policy.track && !is_asked && self.request.new.live().get(source) == Some(prior)
            }
            // The key of that digest is lost.
            None => !is_asked && seen != Seen::No,
        };
        let kept = prior.filter(is_kept);
        let is_behind = kept.is_some_and(|kept| read.judge(&kept) == Some(false));
        if is_behind || (seen == Seen::Unknown && kept.is_some() && !self.is_poke) {
            self.keep_seen(source);
        } else {
            self.mark_seen(source)?;
        }
        self.now_live.insert(source.clone(), kept.unwrap_or_else(|| read.current()));
        Ok(())
    }

    /// Keeps the digest of a missing source in mode `live`, so that it rolls nothing if it returns with the same content.
    pub(super) fn keep_live(&mut self, source: &ObjectName) {
        if let Some(digest) = self.prior_live.get(source) {
            self.now_live.insert(source.clone(), *digest);
            self.keep_seen(source);
        }
    }

    /// Whether the content last taken into account is the present one.
    ///
    /// The digest in `seen` may be under a scheme or key that cannot be computed. A snapshot that states the same digest then
    /// holds that content.
    pub(super) fn is_seen(&mut self, source: &ObjectName) -> Result<Seen, Stop> {
        let Some(stated) = self.seen(source) else { return Ok(Seen::No) };
        let Some(present) = self.live(source)? else { return Ok(Seen::Unknown) };
        let seen = |is_seen| if is_seen { Seen::Yes } else { Seen::No };
        if let Some(known) = present.digests().judge(&stated) {
            return Ok(seen(known));
        }
        for digits in DIGITS {
            let name = snapshot_name(&source.name, &stated, digits);
            match self.live(&ObjectName::new(source.kind, name))? {
                Some(named) if named.is_snapshot_of_source(&source.name) && named.states(&stated) => {
                    return Ok(seen(named.same_content(present)));
                }
                Some(_) => {}
                None => break,
            }
        }
        let Some(kept) = self.prior.get(source) else { return Ok(Seen::Unknown) };
        let kept = self.live(&ObjectName::new(source.kind, kept.as_str()))?;
        let Some(kept) = kept.filter(|kept| kept.is_snapshot_of_source(&source.name)) else {
            return Ok(Seen::Unknown);
        };
        Ok(match kept.same_content(present) {
            is_seen if kept.states(&stated) => seen(is_seen),
            true => Seen::Alike,
            // A workload that reads some keys may also keep it because those have equal values in both contents.
            false if self.pinned(source).is_some() || self.keys_read(source, &self.stored_used).is_none() => {
                Seen::Rejected
            }
            false => Seen::Unknown,
        })
    }

    /// Whether Secrets are snapshotted, by the workload's setting or else by its namespace's.
    fn takes_secrets(&mut self) -> Result<bool, Stop> {
        match (self.request.secrets, self.policy.secrets) {
            (false, _) => Ok(false),
            (true, Some(asked)) => Ok(asked),
            (true, None) => self.namespace_takes_secrets().ok_or_else(|| {
                self.needs.insert(Need::Namespace);
                Stop::Unknown
            }),
        }
    }

    /// Whether the namespace asks for snapshots of Secrets; `None` if it was not read.
    fn namespace_takes_secrets(&self) -> Option<bool> {
        self.facts.namespace().map(|namespace| namespace.opt_in.is_in() && namespace.secrets)
    }

    /// Asks for the newest snapshot of a source that must be read now: most likely, it is needed next.
    pub(super) fn expect_newest(&mut self, source: ObjectName, kept: Option<String>) {
        let takes_secrets = || self.policy.secrets.or_else(|| self.namespace_takes_secrets()) == Some(true);
        let ours = source.kind == SourceKind::ConfigMap || (self.request.secrets && takes_secrets());
        if ours && !self.is_excluded(&source) && self.needs.contains(&Need::Object(source.clone())) {
            self.needs.insert(Need::Newest { source, kept });
        }
    }

    /// The live object of that name; `Ok(None)` if it does not exist.
    pub(super) fn live(&mut self, name: &ObjectName) -> Result<Option<&'r Observed>, Stop> {
        self.facts.object(name).ok_or_else(|| {
            self.needs.insert(Need::Object(name.clone()));
            Stop::Unknown
        })
    }

    /// Whether the object may not be read: a Secret, if Secrets are off.
    pub(super) fn is_out_of_reach(&self, object: &ObjectName) -> bool {
        object.kind == SourceKind::Secret && !self.request.secrets
    }

    /// Whether the object was read and exists.
    pub(super) fn is_live(&self, name: &ObjectName) -> bool {
        self.facts.object(name).flatten().is_some()
    }

    /// Marks the present content of the source as seen.
    pub(super) fn mark_seen(&mut self, source: &ObjectName) -> Result<(), Stop> {
        let Some(present) = self.live(source)? else {
            self.keep_seen(source);
            return Ok(());
        };
        // A digest under another scheme or key stays while it is true: an upgrade writes nothing.
        let stated = self.seen(source);
        let is_true = match self.is_seen(source)? {
            Seen::Yes => true,
            Seen::Alike => !self.is_poke,
            Seen::No | Seen::Rejected | Seen::Unknown => false,
        };
        let digest = stated.filter(|_| is_true).unwrap_or_else(|| present.digest());
        self.now.entry(source).seen = Some(digest);
        Ok(())
    }

    /// The content of the source that the stored workload has seen.
    pub(super) fn seen(&self, source: &ObjectName) -> Option<Digest> {
        self.before.get(source)?.seen
    }

    /// The digest of the keys that the stored workload rejects by an undo or a pin.
    fn pinned(&self, source: &ObjectName) -> Option<Digest> {
        self.before.get(source)?.pinned
    }

    /// The content of the source that this decision has marked as seen so far.
    pub(super) fn now_seen(&self, source: &ObjectName) -> Option<Digest> {
        self.now.get(source)?.seen
    }

    /// Takes back that this decision has marked a content of the source as seen.
    pub(super) fn forget_seen(&mut self, source: &ObjectName) {
        self.now.entry(source).seen = None;
    }

    /// Keeps `seen` of the source as it is, and `pinned` and `lacking`, which belong to the same content.
    pub(super) fn keep_seen(&mut self, source: &ObjectName) {
        let Some(Remembered { seen, pinned, lacking, .. }) = self.before.get(source) else { return };
        let now = self.now.entry(source);
        (now.seen, now.pinned) = (seen.or(now.seen), pinned.or(now.pinned));
        now.lacking |= lacking;
    }

    /// The keys that a template reads of a source, by whatever names; `None` if it reads the whole source.
    pub(super) fn keys_read<'k>(&self, source: &ObjectName, used: &UsedKeys<'k>) -> ReadKeys<'k> {
        used.of_source(source, |kind, name| {
            [&self.prior, &self.stated].into_iter().find_map(|map| map.source_of(kind, name))
        })
    }

    /// Whether the workload keeps another snapshot by an undo or a pin, and the present content has the values that the
    /// workload rejected by it: only keys changed that the workload does not read.
    pub(super) fn reads_what_is_pinned(
        &mut self,
        source: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<bool, Stop> {
        let Some(pinned) = self.pinned(source) else { return Ok(false) };
        let Some(keys) = self.keys_read(source, used) else { return Ok(false) };
        let present = self.live(source)?;
        Ok(present.is_some_and(|present| present.digests_of(Some(&keys)).judge(&pinned) == Some(true)))
    }

    /// Records which values the workload rejects, if it keeps a snapshot with other values in the keys that it reads. Any change
    /// of a source that the workload reads whole ends the undo or the pin, so nothing is recorded for such a source.
    pub(super) fn mark_pinned(
        &mut self,
        source: &ObjectName,
        kept: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<(), Stop> {
        self.now.entry(source).pinned = None;
        let Some(keys) = self.keys_read(source, used) else { return Ok(()) };
        let (Some(present), Some(kept)) = (self.live(source)?, self.live(kept)?) else { return Ok(()) };
        if !kept.same_values(present, keys.iter().copied()) {
            let read = present.digests_of(Some(&keys));
            // A digest under another scheme or key stays while it is true: an upgrade writes nothing.
            let stated = self.pinned(source).filter(|stated| read.judge(stated) == Some(true));
            self.now.entry(source).pinned = Some(stated.unwrap_or_else(|| read.current()));
        }
        Ok(())
    }

    /// Records the rejected values again if the template reads other keys than before. They cannot be determined if the
    /// source has changed since.
    pub(super) fn keep_pinned(
        &mut self,
        source: &ObjectName,
        kept: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<(), Stop> {
        if self.keys_read(source, &self.stored_used) == self.keys_read(source, used) {
            if let Some(pinned) = self.pinned(source) {
                self.now.entry(source).pinned = Some(pinned);
            }
            return Ok(());
        }
        if matches!(self.is_seen(source)?, Seen::Yes | Seen::Alike) {
            self.mark_pinned(source, kept, used)?;
        }
        Ok(())
    }

    /// Marks the content of the snapshot `kept` as seen, for a reference to the name of a missing source. If the source returns
    /// with other content, that change is pending, even if that content was seen before an undo.
    pub(super) fn mark_kept(&mut self, source: &ObjectName, kept: &str) -> Result<(), Stop> {
        if *kept == *source.name {
            // A source that is bound itself has no other name.
            self.keep_seen(source);
        } else if let Some(kept) = self.live(&ObjectName::new(source.kind, kept))? {
            let stated = self.seen(source).filter(|stated| kept.is_known_by(stated));
            self.now.entry(source).seen = Some(stated.unwrap_or_else(|| kept.digest()));
        }
        Ok(())
    }

    /// Keeps `seen` of a missing source whose snapshot this request leaves in place, unless another reference of the
    /// template marks the snapshot's content ([`Self::mark_kept`]). An earlier pass of this admission may have marked it: after
    /// a change by another webhook, the decision runs again on its own result.
    pub(super) fn keep_seen_or_mark(&mut self, source: &ObjectName, kept: &ObjectName) -> Result<(), Stop> {
        if self.now_seen(source).is_some() {
            return Ok(());
        }
        let stated = self.request.new.state().get(source).and_then(|stated| stated.seen);
        if let Some(stated) = stated
            && Some(stated) != self.seen(source)
            && self.live(kept)?.is_some_and(|kept| kept.is_known_by(&stated))
        {
            return self.mark_kept(source, &kept.name);
        }
        self.keep_seen(source);
        Ok(())
    }

    /// Whether the present content of the source lacks a key that the template requires. Pods start when the source has it: until
    /// then, the references of a workload without a snapshot stay as written, as those to a source that does not exist.
    pub(super) fn lacks_required_key(
        &mut self,
        source: &ObjectName,
        reference: &Reference<'_>,
    ) -> Result<bool, Stop> {
        let Some(required) = self.required.get(&(reference.kind, reference.name)) else { return Ok(false) };
        let Some(Some(present)) = self.facts.object(source) else { return Ok(false) };
        let lacking: Vec<_> = required.iter().filter(|key| !present.has_key(key)).collect();
        if lacking.is_empty() {
            return Ok(false);
        }
        self.missing.extend(lacking.into_iter().map(|key| no_key(source, key)));
        self.mark_seen(source)?;
        self.now.entry(source).lacking = true;
        Ok(true)
    }

    /// Records the keys that the reference requires and its content lacks.
    pub(super) fn check_keys(&mut self, reference: &Reference<'_>, source: &ObjectName, name: &str) {
        let Some(keys) = reference.keys.as_ref().filter(|_| !reference.optional) else { return };
        let snapshot = ObjectName::new(source.kind, name);
        let content = if self.ensure.contains_key(&snapshot) { source } else { &snapshot };
        // If the content was not read, the reference did not change, and was checked when it last changed.
        let Some(Some(content)) = self.facts.object(content) else { return };
        for key in keys.iter().filter(|key| !content.has_key(key)) {
            self.missing.push(no_key(source, key));
        }
    }

    pub(super) fn warn_source_is_gone(&mut self, source: &ObjectName, snapshot: &str) {
        self.warnings
            .push(format!("{source} no longer exists: its references keep the snapshot {snapshot:?}"));
    }
}
