//! What a resolver knows of live objects, and the snapshot of a source's present content.

use super::{
    Ensure, Need, Observed,
    decide::{Resolver, Stop, is_reserved},
    used::{UsedKeys, keys_of},
};
use crate::{
    snapshot::{DIGITS, ObjectName, SourceKind, snapshot_name},
    template::Reference,
};

impl<'r> Resolver<'r> {
    /// The snapshot of the source's present content, or `held` where every key in use reads the same in both.
    pub(super) fn present_content(
        &mut self,
        source: &ObjectName,
        held: Option<&str>,
        used: &UsedKeys<'_>,
    ) -> Result<String, Stop> {
        self.mark_seen(source)?;
        let facts = self.facts;
        let Some(Some(present)) = facts.object(source) else { return Err(Stop::Unknown) };
        let digest = present.digest();
        if let Some(held) = held
            && let Some(keys) = keys_of(source, held, used)
        {
            let snapshot = ObjectName::new(source.kind, held);
            if let Some(content) = self.live(&snapshot)?
                && content.same_values(present, keys.iter().copied())
            {
                return Ok(held.to_owned());
            }
        }
        for digits in DIGITS {
            let name = snapshot_name(&source.name, &digest, digits);
            let candidate = ObjectName::new(source.kind, name.clone());
            match self.live(&candidate)? {
                Some(taken) if taken.is_snapshot_of(&source.name, &digest) => {
                    // Its owners may all be on their way out, and it with them before the controller binds it.
                    if taken.may_go_without(&present.uid) && !self.stored.contains(&candidate) {
                        self.adopt.insert(candidate);
                    }
                    return Ok(name);
                }
                Some(_) => {}
                None => {
                    let ensure = Ensure { source: source.clone(), digest, name: name.clone() };
                    self.ensure.insert(candidate, ensure);
                    return Ok(name);
                }
            }
        }
        Err(Stop::Deny(format!(
            "every name for a snapshot of {source} is taken by an object that is not one"
        )))
    }

    /// Whether references to this source stay as written.
    pub(super) fn stays_as_written(&mut self, source: &ObjectName) -> Result<bool, Stop> {
        let ours = source.kind == SourceKind::ConfigMap || self.takes_secrets()?;
        if !ours || is_reserved(source) || self.policy.exclude.contains(source) {
            return Ok(true);
        }
        Ok(self.live(source)?.is_some_and(Observed::stays_as_written))
    }

    /// Whether Secrets are snapshotted: by the workload's word, else by its namespace's.
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

    /// What the namespace says of Secrets; `None` where that was not read.
    fn namespace_takes_secrets(&self) -> Option<bool> {
        self.facts.namespace().map(|namespace| namespace.enabled && namespace.secrets)
    }

    /// Where this source is to be read now, its newest snapshot is most likely needed next.
    pub(super) fn expect_newest(&mut self, source: ObjectName, held: Option<String>) {
        let takes_secrets = || self.policy.secrets.or_else(|| self.namespace_takes_secrets()) == Some(true);
        let ours = source.kind == SourceKind::ConfigMap || (self.request.secrets && takes_secrets());
        let left = is_reserved(&source) || self.policy.exclude.contains(&source);
        if ours && !left && self.needs.contains(&Need::Object(source.clone())) {
            self.needs.insert(Need::Newest { source, held });
        }
    }

    /// The live object of that name: `Ok(None)` where there is none.
    pub(super) fn live(&mut self, name: &ObjectName) -> Result<Option<&'r Observed>, Stop> {
        self.facts.object(name).ok_or_else(|| {
            self.needs.insert(Need::Object(name.clone()));
            Stop::Unknown
        })
    }

    /// Whether it may not be read: a Secret, where Secrets are off.
    pub(super) fn is_out_of_reach(&self, object: &ObjectName) -> bool {
        object.kind == SourceKind::Secret && !self.request.secrets
    }

    /// Whether the object was read and is there.
    pub(super) fn is_live(&self, name: &ObjectName) -> bool {
        self.facts.object(name).flatten().is_some()
    }

    /// The present content of the source is taken into account by this decision.
    pub(super) fn mark_seen(&mut self, source: &ObjectName) -> Result<(), Stop> {
        if let Some(present) = self.live(source)? {
            self.now_seen.insert(source.clone(), present.digest());
        } else {
            self.keep_seen(source);
        }
        Ok(())
    }

    /// A source that is gone stays accounted for as it was.
    pub(super) fn keep_seen(&mut self, source: &ObjectName) {
        if let Some(digest) = self.seen.get(source) {
            self.now_seen.insert(source.clone(), *digest);
        }
    }

    /// A source that is gone is asked for by its name: should it come back with anything else than what stands for it,
    /// that is news, even if it was seen before an undo.
    pub(super) fn mark_held(&mut self, source: &ObjectName, held: &str) -> Result<(), Stop> {
        if *held == *source.name {
            // One that is bound itself is known by no other name.
            self.keep_seen(source);
        } else if let Some(held) = self.live(&ObjectName::new(source.kind, held))? {
            self.now_seen.insert(source.clone(), held.digest());
        }
        Ok(())
    }

    /// A source that is gone, whose snapshot this request leaves: as it was, unless another reference of the template marks
    /// what stands for it ([`Self::mark_held`]), or did when this decision was made before: another webhook may have
    /// written since, and then its own result is asked about.
    pub(super) fn keep_seen_or_held(&mut self, source: &ObjectName, held: &ObjectName) -> Result<(), Stop> {
        if self.now_seen.get(source).is_some() {
            return Ok(());
        }
        let stated = self.request.new.seen().get(source).copied();
        if stated.is_some()
            && stated != self.seen.get(source).copied()
            && stated == self.live(held)?.map(Observed::digest)
        {
            return self.mark_held(source, &held.name);
        }
        self.keep_seen(source);
        Ok(())
    }

    /// Notes keys that the reference needs and its content lacks.
    pub(super) fn check_keys(&mut self, reference: &Reference<'_>, source: &ObjectName, name: &str) {
        let Some(keys) = reference.keys.as_ref().filter(|_| !reference.optional) else { return };
        let snapshot = ObjectName::new(source.kind, name);
        let content = if self.ensure.contains_key(&snapshot) { source } else { &snapshot };
        // Where the content was not read, the reference did not change, and was checked when it did.
        let Some(Some(content)) = self.facts.object(content) else { return };
        for key in keys.iter().filter(|key| !content.has_key(key)) {
            self.missing.push(format!("{source} has no key {key:?}: pods that refer to it do not start"));
        }
    }

    pub(super) fn warn_source_is_gone(&mut self, source: &ObjectName, snapshot: &str) {
        self.warnings.push(format!("{source} is gone: its references keep the snapshot {snapshot:?}"));
    }
}
