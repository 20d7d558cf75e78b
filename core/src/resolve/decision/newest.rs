//! The snapshot of a source's newest content.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::{
    resolve::{Ensure, Need, Observed, Spares},
    snapshot::{DIGITS, ObjectName, SourceKind, is_named_after, snapshot_name, spare_name},
};

impl Outcome {
    /// The snapshot of the source's newest content, or `kept` if it is a snapshot of the source in which every used key has
    /// the same value. The source exists.
    pub(super) fn newest_content(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: Option<&str>,
    ) -> Result<String, Stop> {
        self.mark_seen(question, source)?;
        let Some(newest) = question.known(source) else { return Err(Stop::Unknown) };
        let digest = newest.digest();
        let own = kept.filter(|kept| is_named_after(kept, &source.name, &digest));
        if let Some(kept) = kept {
            let keys = question.used.of_names(source, kept);
            // A snapshot of a Secret may be named after a digest of another scheme or key.
            let is_renamed = source.kind == SourceKind::Secret && own.is_none();
            if (keys.is_some() || is_renamed)
                && let Some(content) = question.object(&ObjectName::new(source.kind, kept))?
                && content.is_snapshot_of_source(&source.name)
            {
                let same_values = keys.is_some_and(|keys| content.same_values(newest, keys.iter().copied()));
                if same_values || (is_renamed && content.same_content(newest)) {
                    return Ok(kept.to_owned());
                }
            }
        }
        if own.is_none()
            && let Some(failure) = question.schema_failure(source)?
        {
            return self.without_failing(question, source, kept, &failure);
        }
        if let Some(kept) = kept.filter(|_| own.is_none() && question.roll.is_poke) {
            question.keeps_required_keys(source, kept)?;
        }
        self.snapshot_of(question, source, newest, own)
    }

    /// The name of the snapshot of the source's newest content, which may have to be created. The name that the template has
    /// comes first: a shorter one may be free again. Names that objects of others have are passed over. Who knows the content
    /// in advance may have taken all of them, but not one of random digits.
    fn snapshot_of(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        newest: &Observed,
        own: Option<&str>,
    ) -> Result<String, Stop> {
        let digest = newest.digest();
        let usual = || DIGITS.iter().map(|digits| snapshot_name(&source.name, &digest, *digits));
        let is_unread = |name: &ObjectName| question.facts.object(name).is_none();
        for (place, name) in own.map(str::to_owned).into_iter().chain(usual()).enumerate() {
            if place > 0 && is_unread(&ObjectName::new(source.kind, name.as_str())) {
                // All at once: one round of reads, however many are taken.
                for other in usual().map(|name| ObjectName::new(source.kind, name)).filter(is_unread) {
                    question.need(Need::Object(other));
                }
                question.spares(source)?;
            }
            if self.is_snapshot_or_free(question, source, newest, &name)? {
                return Ok(name);
            }
        }
        let Spares { known, digits } = question.spares(source)?;
        let new = spare_name(&source.name, &digest, digits);
        for name in known.iter().filter(|name| is_named_after(name, &source.name, &digest)).chain([&new]) {
            let exists = question.object(&ObjectName::new(source.kind, name.as_str()))?.is_some();
            if (exists || *name == new) && self.is_snapshot_or_free(question, source, newest, name)? {
                return Ok(name.clone());
            }
        }
        Err(Stop::Deny(format!(
            "every possible snapshot name of {source} is used by another object: delete those objects"
        )))
    }

    /// Whether the name is that of a sound snapshot of the source's newest content, or free. A free one gets a snapshot.
    fn is_snapshot_or_free(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        newest: &Observed,
        name: &str,
    ) -> Result<bool, Stop> {
        let (candidate, digest) = (ObjectName::new(source.kind, name), newest.digest());
        match question.object(&candidate)? {
            Some(taken) if taken.is_snapshot_of(&source.name, &digest) => {
                // All its owners may be about to be deleted, and the snapshot with them before the controller binds it.
                if taken.may_go_without(&newest.uid) {
                    self.adopt_new(question, candidate);
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
}
