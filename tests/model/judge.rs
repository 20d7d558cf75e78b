//! Checks one admission against `fresh`, `sticks` and `rolls`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev::{
    annotations,
    resolve::{Move, Plan, To},
    snapshot::{Digest, ObjectName, SourceKind},
};
use serde_json::Value;

use crate::{
    ghost::{Mark, Pin, Pins, SourceState},
    manifest::{Reference, SOURCES, digest, keys_read, live_digests, references, same, stated},
    model::{Intent, Model},
    store::{Key, annotation, is_snapshot, label},
};

/// One admission to check.
#[expect(clippy::struct_excessive_bools, reason = "each flag is independent")]
struct Case<'c> {
    model: &'c Model,
    key: &'c Key,
    mark: &'c Mark,
    intent: Intent,
    track: bool,
    /// The request returns to the template of a live revision.
    is_undo: bool,
    /// An event came meanwhile: only checks that do not depend on the order apply.
    disturbed: bool,
    excluded: BTreeSet<String>,
    /// The snapshot on hold of each source, and the sources whose hold the request ends.
    held: BTreeMap<String, String>,
    ended: BTreeSet<String>,
    old: Vec<Reference>,
    new: Vec<Reference>,
    entered: Vec<(String, String)>,
    /// The digest of each live source.
    live: BTreeMap<String, String>,
    /// The digest of each live source before.
    old_live: BTreeMap<String, String>,
    /// The plan of the controller, if this is its write.
    plan: Option<Plan>,
    is_creation: bool,
}

impl Model {
    /// Checks an admission against `fresh`, `sticks` and `rolls`. `mark` was taken when the admission began.
    pub(crate) fn check_admitted(
        self: &Arc<Self>,
        key: &Key,
        wanted: &Value,
        admitted: &Value,
        old: Option<&Value>,
        (intent, mark): (Intent, &Mark),
    ) -> Pins {
        if label(admitted, annotations::ENABLED) != Some("true") {
            return Pins::new();
        }
        let template = |object: &Value| object["spec"]["template"].clone();
        // An undo keeps the settings, whatever annotations it restores.
        let exclude = annotation(admitted, annotations::EXCLUDE).unwrap_or_default();
        // A revision from before the opt-in has no such label: its names are the user's own.
        let labelled = !wanted["spec"]["template"]["metadata"]["labels"][annotations::REVISION].is_null();
        let is_undo = |old: &Value| {
            let mut revisions = self.replicasets(old).into_iter();
            labelled
                && template(old) != template(wanted)
                && revisions.any(|(_, revision)| template(&revision) == template(wanted))
        };
        let mut entered = old.map(|old| stated(&template(old))).unwrap_or_default();
        entered.extend(stated(&template(wanted)));
        let held = self.on_hold(key, admitted, &entered);
        let before = old.map(|old| self.on_hold(key, old, &entered)).unwrap_or_default();
        let ended = before.into_keys().filter(|source| !held.contains_key(source)).collect();
        let case = Case {
            model: self,
            key,
            mark,
            intent,
            track: annotation(admitted, annotations::TRACK) != Some("false"),
            is_undo: old.is_some_and(is_undo),
            disturbed: self.conditions().disturbed,
            excluded: exclude.split(',').map(str::to_owned).collect(),
            held,
            ended,
            old: old.map(|old| references(&template(old))).unwrap_or_default(),
            new: references(&template(admitted)),
            entered,
            live: live_digests(&template(admitted)),
            old_live: old.map(|old| live_digests(&template(old))).unwrap_or_default(),
            plan: annotation(wanted, annotations::ROLL)
                .filter(|_| intent.poke)
                .map(|roll| Plan::parse(roll).unwrap().expect("a plan of the controller")),
            is_creation: old.is_none(),
        };
        let mut pins = Pins::new();
        for (before, after) in references(&template(wanted)).iter().zip(&case.new) {
            match case.judge(before, after) {
                Ok(Some(pin)) => drop(pins.insert((key.clone(), after.name.clone()), pin)),
                Ok(None) => {}
                Err((promise, reason)) => {
                    let reason = format!("{key}: {} became {}: {reason}", before.name, after.name);
                    self.broken(promise, reason);
                }
            }
        }
        pins
    }

    /// The snapshots in the `hold` annotation, by source. Those that are missing hold nothing, unless the template lists them.
    pub(crate) fn on_hold(
        &self,
        key: &Key,
        object: &Value,
        entered: &[(String, String)],
    ) -> BTreeMap<String, String> {
        let text = annotation(object, annotations::HOLD).unwrap_or_default();
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .filter_map(|name| {
                let live = self.get(&Key::configmap(&key.namespace, name));
                let live = live.filter(|object| is_snapshot(object));
                let told =
                    live.and_then(|object| annotation(&object, annotations::SOURCE_NAME).map(str::to_owned));
                let listed = entered.iter().find(|(_, snapshot)| snapshot == name);
                let source = told.or_else(|| listed.map(|(source, _)| source.clone()))?;
                Some((source, name.to_owned()))
            })
            .collect()
    }

    /// Records that the admitted object was stored.
    pub(crate) fn admission_was_stored(
        &self,
        key: &Key,
        stored: &Value,
        old: Option<&Value>,
        intent: Intent,
        pins: Pins,
    ) {
        let changed = old.is_some_and(|old| old["spec"]["template"] != stored["spec"]["template"]);
        let both =
            [Some(stored), old].map(|object| object.and_then(|object| label(object, annotations::ENABLED)));
        let elapsed = self.conditions().elapsed;
        self.ghost().admitted(key, pins);
        if !intent.poke {
            self.ghost().written(key);
        } else if changed && both == [Some("true"); 2] {
            let rolled = self.ghost().rolled(key, elapsed);
            if let Err(reason) = rolled {
                self.broken("rolls", reason);
            }
        }
        let known = old.map(|old| stated(&old["spec"]["template"])).unwrap_or_default();
        for (_, snapshot) in stated(&stored["spec"]["template"]) {
            if !known.iter().any(|(_, known)| *known == snapshot) {
                let replica = self.conditions().served_by;
                self.ghost().taken_up(Key::configmap(&key.namespace, &snapshot), replica);
            }
        }
        if both[0] == Some("true") {
            self.freeze(key, &stored["spec"]["template"]);
        }
    }

    /// Records the contents of the snapshots of a template.
    fn freeze(&self, key: &Key, template: &Value) {
        let mut contents = BTreeMap::new();
        for (_, snapshot) in stated(template) {
            if let Some(object) = self.get(&Key::configmap(&key.namespace, &snapshot)) {
                contents.insert(snapshot, object["data"].clone());
            }
        }
        self.ghost().freeze(&key.namespace, template, contents);
    }
}

type Judgement = Result<Option<Pin>, (&'static str, String)>;

impl Case<'_> {
    /// A new pin. It is uncertain if the source changed during the admission.
    fn pin(&self, source: &Key) -> Pin {
        let ghost = self.model.ghost();
        let states = ghost.since(self.mark, source);
        let sure = states.windows(2).all(|pair| pair[0].content == pair[1].content);
        let mut pin = ghost.pin(source);
        pin.sure &= sure;
        // The decision may be based on the missing source, even if the source returned during the admission.
        pin.missing |= states.iter().any(|state| state.content.is_none());
        pin.contents.extend(states.into_iter().filter_map(|state| state.content));
        pin
    }

    /// Whether this request introduces the name in the reference.
    fn is_turn(&self, reference: &Reference) -> bool {
        !self.old.iter().any(|old| old.name == reference.name)
    }

    fn is_source(&self, name: &str) -> bool {
        SOURCES.contains(&(&self.key.namespace, name))
    }

    /// The source of the snapshot with this name.
    fn source_of(&self, name: &str) -> Option<String> {
        let live = self.model.get(&Key::configmap(&self.key.namespace, name));
        let live = live.filter(|object| is_snapshot(object));
        let told = live.and_then(|object| annotation(&object, annotations::SOURCE_NAME).map(str::to_owned));
        let entry = || self.entered.iter().find(|(source, snapshot)| snapshot == name && source != name);
        told.or_else(|| entry().map(|(source, _)| source.clone()))
    }

    /// Checks one reference, as requested and as admitted. Returns its pin, if it is pinned now.
    fn judge(&self, before: &Reference, after: &Reference) -> Judgement {
        let by_name = self.is_source(&before.name);
        let Some(source) = by_name.then(|| before.name.clone()).or_else(|| self.source_of(&before.name))
        else {
            return Ok(None);
        };
        let source_key = Key::configmap(&self.key.namespace, &source);
        let states = self.model.ghost().since(self.mark, &source_key);
        // A hold comes before all rules.
        if let Some(held) = self.held.get(&source) {
            let is_held = after.name == *held || self.disturbed;
            return if is_held { Ok(None) } else { Err(("sticks", format!("{held} is on hold"))) };
        }
        let left_alone = self.excluded.contains(&source);
        if !left_alone && by_name && states.iter().all(|state| state.live) {
            self.judge_live(&source, &states)?;
        }
        if left_alone || states.iter().any(|state| state.exempt) {
            return self.judge_left_alone(
                before,
                after,
                &source_key,
                left_alone || states.iter().all(|state| state.exempt),
            );
        }
        if states.iter().any(|state| state.content.is_none()) {
            // A pinned reference stays pinned; others are pinned to the last content of the source.
            if by_name || before.name != after.name {
                return Ok(None);
            }
            let is_gone = states.iter().all(|state| state.content.is_none());
            let pin = if is_gone && self.is_turn(before) {
                self.model.ghost().pin(&source_key)
            } else {
                self.pin(&source_key)
            };
            return Ok(Some(pin));
        }
        if by_name {
            return self.judge_fresh(before, after, &source, &states).map(|()| None);
        }
        self.judge_snapshot(before, after, &source_key, &states)
    }

    /// A reference to an exempt source stays as requested.
    fn judge_left_alone(
        &self,
        before: &Reference,
        after: &Reference,
        source: &Key,
        certain: bool,
    ) -> Judgement {
        let is_turn = self.is_turn(before);
        let by_name = self.is_source(&before.name);
        if certain && (by_name || is_turn) && after.name != before.name && !self.disturbed {
            return Err(("contained", "the reference must stay as written".to_owned()));
        }
        // A name that a user wrote before the workload opted in is a pin too.
        let is_own = !self.entered.iter().any(|(_, snapshot)| *snapshot == before.name);
        let held = !by_name && (is_turn || is_own || self.model.ghost().is_pinned(self.key, &before.name));
        Ok((held && after.name == before.name).then(|| self.pin(source)))
    }

    /// The pods of a template with a live source read its content. An undo does not restore an earlier one.
    fn judge_live(&self, source: &str, states: &[SourceState]) -> Result<(), (&'static str, String)> {
        let keys = keys_read(&self.new, &[source]);
        let mut contents = states.iter().filter_map(|state| state.content.as_ref());
        let stated = self.live.get(source);
        let is_fresh = contents.any(|content| stated == Some(&digest(content, keys.as_ref())));
        // A workload that does not follow changes keeps the digest, so that it does not roll.
        let is_kept = !self.track && !self.intent.roll && stated.is_some();
        let is_kept = is_kept || (self.may_stay(source, states) && stated == self.old_live.get(source));
        if is_fresh || is_kept || self.disturbed {
            return Ok(());
        }
        Err(("fresh", format!("the template states {stated:?} of a live source")))
    }

    fn judge_snapshot(
        &self,
        before: &Reference,
        after: &Reference,
        source: &Key,
        states: &[SourceState],
    ) -> Judgement {
        let exists = self.model.get(&Key::configmap(&self.key.namespace, &before.name)).is_some();
        if self.ended.contains(&source.name) && !self.is_turn(before) {
            return self.judge_fresh(before, after, &source.name, states).map(|()| None);
        }
        let stays = || {
            if before.name == after.name || self.disturbed || !exists {
                return Ok(Some(self.pin(source)));
            }
            Err(("sticks", "an undo, a pin or an untracked reference must stay".to_owned()))
        };
        if self.is_turn(before) {
            return if self.is_creation && !exists { Ok(None) } else { stays() };
        }
        if self.intent.roll {
            return self.judge_fresh(before, after, &source.name, states).map(|()| None);
        }
        if self.is_undo && self.track {
            return stays();
        }
        if !self.track {
            // Missed changes do not count as seen: the previous pin stays.
            let pin = self.model.ghost().pin_of(self.key, &before.name);
            return stays().map(|_| pin);
        }
        let held = self.model.ghost().held(self.key, &before.name, source);
        match held {
            Some(true) => stays(),
            // An undo may return to a template that reads other keys of the same snapshot: that is a pin too.
            None if before.name == after.name && self.reads_other_keys(&before.name, &source.name) => {
                Ok(Some(self.pin(source)))
            }
            // The source changed during the decision, and had the pinned content before.
            None if before.name == after.name && self.was_as_pinned(&before.name, states) => {
                Ok(Some(self.pin(source)))
            }
            // Only keys changed that the workload does not read.
            None if self.keeps_rejected(&before.name, &source.name, states) => stays(),
            Some(false) if before.name == after.name => Ok(Some(self.pin(source))),
            _ => self.judge_fresh(before, after, &source.name, states).map(|()| None),
        }
    }

    fn was_as_pinned(&self, snapshot: &str, states: &[SourceState]) -> bool {
        let mut contents = states.iter().filter_map(|state| state.content.as_ref());
        let pin = self.model.ghost().pin_of(self.key, snapshot);
        pin.is_some_and(|pin| contents.any(|content| pin.contents.contains(content)))
    }

    /// Whether the workload was pinned to a snapshot of which it reads some keys, and the source still has the values there
    /// that the pin rejected.
    fn keeps_rejected(&self, snapshot: &str, source: &str, states: &[SourceState]) -> bool {
        let Some(pin) = self.model.ghost().pin_of(self.key, snapshot).filter(|pin| pin.sure) else {
            return false;
        };
        let Some(keys) = keys_read(&self.new, &[snapshot, source]) else { return false };
        let object = self.model.get(&Key::configmap(&self.key.namespace, snapshot));
        let rejected = |content: &Value| pin.contents.iter().all(|known| same(known, content, Some(&keys)));
        !self.reads_other_keys(snapshot, source)
            && states.iter().filter_map(|state| state.content.as_ref()).all(rejected)
            && object.is_some_and(|object| !rejected(&object["data"]))
    }

    fn reads_other_keys(&self, snapshot: &str, source: &str) -> bool {
        keys_read(&self.old, &[snapshot, source]) != keys_read(&self.new, &[snapshot, source])
    }

    /// Whether the controller's plan does not move the source to each content that it has had since the admission began: a source that
    /// has changed since the controller decided stays as it is, and so does one that the controller did not know.
    fn may_stay(&self, source: &str, states: &[SourceState]) -> bool {
        let Some(plan) = &self.plan else { return false };
        let wanted = plan.moves.get(&ObjectName::new(SourceKind::ConfigMap, source));
        let Some(Move { to: To::Content(digits), .. }) = wanted else { return true };
        let is_named = |content: &Value| {
            let of: Digest = digest(content, None).parse().unwrap();
            of.hex(digits.len()) == *digits
        };
        !states.iter().all(|state| state.content.as_ref().is_some_and(is_named))
    }

    /// The reference must read a content that the source has had since the admission began, unless the plan leaves it as it is.
    fn judge_fresh(
        &self,
        before: &Reference,
        after: &Reference,
        source: &str,
        states: &[SourceState],
    ) -> Result<(), (&'static str, String)> {
        if before.name == after.name && !self.is_turn(before) && self.may_stay(source, states) {
            return Ok(());
        }
        if self.is_source(&after.name) {
            return Err(("fresh", "the reference was not resolved".to_owned()));
        }
        let snapshot = Key::configmap(&self.key.namespace, &after.name);
        let Some(object) = self.model.get(&snapshot) else {
            let excused = self.disturbed || self.model.ghost().lost.contains(&snapshot);
            return if excused { Ok(()) } else { Err(("kept", "the snapshot does not exist".to_owned())) };
        };
        let keys = keys_read(&self.new, &[source, &after.name]);
        let fits = states
            .iter()
            .flat_map(|state| &state.content)
            .any(|content| same(content, &object["data"], keys.as_ref()));
        if fits {
            return Ok(());
        }
        Err(("fresh", format!("the snapshot holds {}, the source {states:?}", object["data"])))
    }
}
