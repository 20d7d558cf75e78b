//! Which pending workloads are held until others prove a change sound. [`Spread`] has the rule; its input comes from the
//! world. A workload also counts as rolling while the outcome of its last roll is unknown.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts,
    gates::{NEXT_CHECK, ask_again, reported},
};
use crate::{
    cluster::Event,
    gates::{Gate, Why},
    resolve::{ChangeVerdict, Health, MemberState, Proof, Record, Spread, Wait, Waiting},
    snapshot::{Digest, Digests, ObjectName},
    world::{Answers, Name, Shut, SourceRecord, WorkloadKey, World},
};

/// How long a finding that held one workload counts for others without another check. A check reads all workloads that use
/// the source, and as many may be held.
const FRESH: SignedDuration = SignedDuration::from_millis(500);

/// A reported hold of a source.
#[derive(Debug)]
struct ReportedHold {
    /// The content that is held.
    digest: Digest,
    /// Why.
    proof: Proof<WorkloadKey>,
    /// When the hold was found.
    since: Timestamp,
}

/// How far a change had spread a moment ago, when it held a workload.
#[derive(Debug)]
struct Recent {
    spread: Spread<WorkloadKey>,
    /// The content that it applies to. In a group, each namespace may have digests of its own.
    content: Digests,
    /// The verdict about it in the namespace. In another one of the group, a failure refuses nothing, and has no reason.
    verdict: ChangeVerdict,
    at: Timestamp,
}

impl Recent {
    /// Whether the finding still counts. A finding from the future comes from a clock that stepped back.
    fn is_fresh(&self, now: Timestamp) -> bool {
        self.at <= now && now < self.at + FRESH
    }
}

/// The holds of all workloads.
#[derive(Debug, Default)]
pub(crate) struct HeldWorkloads {
    /// Workloads that a gate holds, each with whether the wait ends by itself.
    held: HashMap<WorkloadKey, (Gate, bool)>,
    /// By source, or by group. Nothing that lets a workload roll is remembered: the next one must see its roll.
    recent: HashMap<Name, Recent>,
    /// The last reported hold of each source, until it ends.
    reported: HashMap<Name, ReportedHold>,
}

/// What the gates say about a pending workload.
#[derive(Debug, Default)]
pub(crate) struct GateCheck {
    /// `None` if the workload is not held.
    pub held: Option<Held>,
    /// The sources to whose contents it may not roll yet, if it may roll to others meanwhile.
    pub waiting: Vec<Name>,
    /// The Events about holds that ended, and about invalid settings.
    pub events: Vec<Event>,
}

/// A pending workload that is held.
#[derive(Debug)]
pub(crate) struct Held {
    /// When to ask the gates again.
    pub until: Timestamp,
    /// The sources whose hold is to be reported: once for each content and failed workload.
    pub new: Vec<Name>,
}

impl HeldWorkloads {
    /// Asks the gates about each source to whose content a workload would move; the Events are about waves that it begins, if it
    /// rolls. `since`: when it became pending.
    pub(in crate::controller) fn answers<'i>(
        &mut self,
        world: &'i World,
        (key, record): (&WorkloadKey, &'i Record),
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        (since, now): (Timestamp, Timestamp),
    ) -> (Answers<'i>, Vec<Event>) {
        let mut begun = Vec::new();
        let wait = |source: &Name, known: &SourceRecord| {
            self.wait(world, (source, known), (key, record), &is_rolling, &mut begun, now)
        };
        let answers = world.answers((key, record), wait, (since, now));
        (answers, begun)
    }

    /// Asks the gates about a pending workload, for each of its sources. `since`: when it became pending.
    pub(crate) fn check(
        &mut self,
        world: &World,
        key: &WorkloadKey,
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        (since, now): (Timestamp, Timestamp),
    ) -> GateCheck {
        let Some(record) = world.workload(key) else { return GateCheck::default() };
        self.recent.retain(|_, recent| recent.is_fresh(now));
        let (answers, begun) = self.answers(world, (key, record), is_rolling, (since, now));
        let Answers { open, shut } = answers;
        let mut events = Vec::new();
        // A failed workload is not held by others, which says nothing about the rest.
        if world.health(key, record) != Health::Failed {
            let freed = shut
                .iter()
                .filter(|shut| matches!(&shut.why, Why::Others(wait) if !matches!(wait, Wait::Bad(_))));
            let ended = open.iter().map(|(source, known)| (source, *known));
            for (source, known) in ended.chain(freed.map(|shut| (&shut.source, shut.known))) {
                if !record.has_seen(&source.object, &known.present.digests) {
                    events.extend(self.end_report(world, source, now));
                }
            }
        }
        let returns = world.is_returning(key, record);
        // It stays where it is by its own settings: nothing waits, unless another source of a set does.
        let stays = |shut: &Shut<'_>| shut.why.is_of_workload() && !shut.is_joint();
        let moves_sources = returns || !open.is_empty() || !shut.iter().all(stays);
        let whole = world.closed_alone((key, record), moves_sources, (since, now));
        let is_waiting = shut.iter().any(|shut| !shut.is_refused);
        let joins = !is_waiting && world.joining(key).is_some();
        let rolls = shut.iter().all(stays) || !open.is_empty() || joins || returns;
        if rolls && whole.is_none() {
            self.held.remove(key);
            events.extend(begun);
            // The gates are about new content, and not about a return to an earlier one.
            let goes_back = |source: &Name| {
                let mut uses = record.uses.iter().filter(|used| used.source == source.object);
                uses.any(|used| world.returns(key, record, used))
            };
            let mut waiting: Vec<_> =
                shut.into_iter().map(|shut| shut.source).filter(|source| !goes_back(source)).collect();
            waiting.dedup();
            return GateCheck { held: None, waiting, events };
        }
        // The chain has the first word, as in all commands.
        let all = || shut.iter().filter(|shut| !shut.is_joint()).map(|shut| &shut.why).chain(&whole);
        let is_only_set = all().all(Why::is_of_workload);
        let whys = || all().filter(|why| is_only_set || !why.is_of_workload());
        if is_only_set {
            // The metric counts those with a gate of their own among workloads that are not pending.
            self.held.insert(key.clone(), (Gate::SET, true));
        } else if let Some(why) = whys().find(|why| !why.is_refusal()).or_else(|| whys().next()) {
            self.held.insert(key.clone(), (why.gate(), whys().all(Why::ends_by_itself)));
        }
        let until = whys().map(|why| ask_again(why, now)).min().unwrap_or(now + NEXT_CHECK);
        let mut new = Vec::new();
        let of_sources =
            shut.iter().filter(|shut| !shut.is_joint()).map(|shut| (Some(&shut.source), &shut.why));
        for (source, why) in whole.iter().map(|why| (None, why)).chain(of_sources) {
            for event in reported(world, key, source, why, now) {
                if !events.contains(&event) {
                    events.push(event);
                }
            }
            if let (Some(source), Why::Others(Wait::Bad(proof))) = (source, why)
                && self.set_reported(world, source, proof, now)
            {
                new.push(source.clone());
            }
        }
        GateCheck { held: Some(Held { until, new }), waiting: Vec::new(), events }
    }

    /// Why others hold a workload from the content of a source; `begun` gets the Event if it begins a wave.
    fn wait(
        &mut self,
        world: &World,
        (source, known): (&Name, &SourceRecord),
        (key, record): (&WorkloadKey, &Record),
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        begun: &mut Vec<Event>,
        now: Timestamp,
    ) -> Option<Wait<WorkloadKey>> {
        if !(known.spread.is_limited() || world.is_grouped(source)) {
            return None;
        }
        let MemberState::Waits(Waiting { place }) = world.member_state(key, record, source, known) else {
            return None;
        };
        let has_failed = world.health(key, record) == Health::Failed;
        let scope = world.scope(source);
        let verdict = world.own_verdict(source, known);
        let is_of_it = |recent: &&Recent| {
            recent.verdict == verdict && recent.content.same_content(&known.present.digests)
        };
        let recent = self.recent.get(&scope).filter(is_of_it);
        if let Some(wait) = recent.and_then(|recent| recent.spread.wait(has_failed, place)) {
            return Some(wait);
        }
        if world.awaits_sibling(source) {
            return Some(Wait::Wave);
        }
        let is_rolling = |other: &WorkloadKey, record: &Record, content: Option<(&ObjectName, &Digest)>| {
            other != key && is_rolling(other, record, content)
        };
        let spread = world.spread(source, known, is_rolling, now)?;
        let Some(wait) = spread.wait(has_failed, place) else {
            let progress = spread.progress().filter(|progress| progress.begins)?;
            begun.extend(event_texts::wave_begins(world, source, progress, now));
            return None;
        };
        self.recent
            .insert(scope, Recent { spread, content: known.present.digests.clone(), verdict, at: now });
        Some(wait)
    }

    /// Records that a hold is reported. Returns whether it is new.
    fn set_reported(
        &mut self,
        world: &World,
        source: &Name,
        proof: &Proof<WorkloadKey>,
        now: Timestamp,
    ) -> bool {
        let Some(known) = world.existing_source(source) else { return false };
        let digest = known.present.digests.current();
        let proof = &event_texts::as_seen_from(source, proof);
        let is_known = |report: &ReportedHold| (report.digest, &report.proof) == (digest, proof);
        if self.reported.get(source).is_some_and(is_known) {
            return false;
        }
        self.reported.insert(source.clone(), ReportedHold { digest, proof: proof.clone(), since: now });
        true
    }

    /// Ends the reported hold of a source, if there is one: an Event on the source.
    fn end_report(&mut self, world: &World, source: &Name, now: Timestamp) -> Option<Event> {
        let ReportedHold { digest, proof, since } = self.reported.remove(source)?;
        let event = event_texts::released(world, source, &digest, &proof, now)?;
        Some(Event { same: since.to_string(), ..event })
    }

    /// Ends the reported hold of a source that has other content now.
    pub(crate) fn release_replaced(&mut self, world: &World, source: &Name, now: Timestamp) -> Option<Event> {
        let held = self.reported.get(source)?.digest;
        let is_present = world.existing_source(source)?.present.digests.contains(&held);
        if is_present { None } else { self.end_report(world, source, now) }
    }

    /// How many workloads each gate holds.
    pub(crate) fn by_gate(&self) -> Vec<(Gate, usize)> {
        let held = |gate| self.held.values().filter(|(of, _)| *of == gate).count();
        Gate::all().map(|gate| (gate, held(gate))).collect()
    }

    /// How many of them wait until others are healthy, or until a person acts.
    pub(crate) fn blocked(&self) -> usize {
        self.held.values().filter(|(_, ends_by_itself)| !ends_by_itself).count()
    }

    /// Whether a workload was held at the last check.
    pub(crate) fn is_held(&self, key: &WorkloadKey) -> bool {
        self.held.contains_key(key)
    }

    /// Records that a gate holds a workload.
    #[cfg(test)]
    pub(crate) fn hold(&mut self, key: &WorkloadKey, gate: Gate, ends_by_itself: bool) {
        self.held.insert(key.clone(), (gate, ends_by_itself));
    }

    /// Records that a workload is not held.
    pub(crate) fn release(&mut self, key: &WorkloadKey) {
        self.held.remove(key);
    }

    /// Records that no workload is held.
    pub(crate) fn release_all(&mut self) {
        self.held.clear();
    }

    /// Records that a source has other content or other settings.
    pub(crate) fn source_changed(&mut self, world: &World, source: &Name) {
        self.recent.remove(&world.scope(source));
    }

    /// Forgets a source on which nothing depends.
    pub(crate) fn forget_source(&mut self, world: &World, source: &Name) {
        self.reported.remove(source);
        self.recent.remove(&world.scope(source));
    }

    /// The Event on a source whose change is held; `None` if the content is no longer the present one.
    pub(crate) fn event(&self, world: &World, source: &Name, now: Timestamp) -> Option<Event> {
        let current = world.existing_source(source)?.present.digests.current();
        let report = self.reported.get(source).filter(|report| report.digest == current)?;
        let is_held = |key: &WorkloadKey| {
            let is_proof = matches!(&report.proof, Proof::Workload { workload: Some(of), .. } if of == key);
            !is_proof && self.held.get(key).is_some_and(|(gate, _)| gate.is_about_others())
        };
        let held = world.workloads_using(source).filter(|(key, _)| is_held(key)).count();
        let event = event_texts::held(world, source, &report.proof, held, now)?;
        Some(Event { same: report.since.to_string(), ..event })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        controller::{
            Action, Config, Outcome, State,
            reconcile::fixture::{at, limited, moved_one, on, set_group, set_source, state},
        },
        kinds::Kinds,
        resolve::{Observed, Present, Use, Verdict},
        snapshot::SourceKind,
        telemetry::metrics::Reason,
        world::{
            Precondition, SnapshotRecord,
            fixture::{self, failed, having_seen, key, object, record, reverting, snapshot, source, used},
        },
    };

    /// Until when the workload is held in milliseconds, and the sources whose hold is to be reported; and the Events.
    fn check(state: &mut State, name: &str, now: Timestamp) -> (Option<(i64, Vec<Name>)>, Vec<Event>) {
        let GateCheck { held, events, .. } =
            state.held_workloads.check(&state.world, &key(name), |_, _, _| false, (now, now));
        (held.map(|held| (held.until.as_millisecond(), held.new)), events)
    }

    fn is_held(state: &mut State, name: &str, now: Timestamp) -> bool {
        check(state, name, now).0.is_some()
    }

    /// How many held workloads wait for a time, or for others.
    fn baking(state: &State) -> usize {
        state.held() - state.held_workloads.blocked()
    }

    fn refuse(state: &mut State, name: &str) {
        let refused =
            SnapshotRecord { verdict: Some(failed(None).into()), ..fixture::snapshot_record(name, 2) };
        let snapshot = source(name).sibling(snapshot(name, 2));
        state.world.apply_snapshot(&snapshot, Some(refused), &mut Vec::new());
    }

    #[test]
    fn finding_counts_for_half_a_second() {
        let mut state = moved_one(Health::Progressing, &[("max-in-flight", "1")]);
        assert_eq!(check(&mut state, "waits", at(10)).0, Some((11_000, Vec::new())));
        let found = state.held_workloads.recent.values().next().unwrap();
        // The clock may step back.
        for (milliseconds, is_fresh) in [(-1, false), (0, true), (499, true), (500, false)] {
            let then = at(10) + SignedDuration::from_millis(milliseconds);
            assert_eq!(found.is_fresh(then), is_fresh, "after {milliseconds} ms");
        }
        assert!(is_held(&mut state, "other", at(10)));
        assert_eq!((state.held(), baking(&state)), (2, 0), "a person may need to act");
        let now = at(10);
        let other = limited("a", 2, &[("max-in-flight", "2")]);
        state.update(now, |world, changes| world.set_read(&source("a"), Some(other), changes));
        assert!(!is_held(&mut state, "waits", now), "other settings count at once");
        assert_eq!(state.held(), 1);
    }

    #[test]
    fn bake_time_is_waited_for() {
        let waves = [("waves", "1,2"), ("bake", "10s")];
        let mut state = moved_one(Health::Settled, &waves);
        for (millisecond, until) in [(1_000, 6_000), (8_000, 10_000), (9_500, 10_500)] {
            let now = Timestamp::from_millisecond(millisecond).unwrap();
            assert_eq!(check(&mut state, "waits", now).0, Some((until, Vec::new())));
            assert_eq!((state.held(), baking(&state)), (1, 1));
        }
        let mut checks = ["waits", "other"].map(|name| check(&mut state, name, at(11)));
        checks.sort_by_key(|(held, _)| held.is_some());
        let [(first, events), (second, none)] = checks;
        assert_eq!((first, second), (None, Some((12_000, Vec::new()))), "the other one waits");
        assert_eq!(events.iter().map(|event| event.reason).collect::<Vec<_>>(), [Reason::WaveBegun]);
        assert_eq!((none.len(), state.held(), baking(&state)), (0, 1, 1));
    }

    /// After a start, workloads of a namespace whose source is not read yet could be missed, and too many would move.
    #[test]
    fn unread_source_of_group_holds_its_change() {
        let waves = [("waves", "3")];
        let sibling = Name::new("other", object("a"));
        let elsewhere = WorkloadKey { namespace: "other".into(), ..key("web") };
        let now = at(12);
        for known in [None, Some(limited("a", 3, &waves))] {
            let mut state = moved_one(Health::Settled, &waves);
            set_group(&mut state, "other");
            state.world.set_source_unknown(&sibling);
            assert!(!is_held(&mut state, "waits", now), "no workload uses it");
            state.world.apply_workload(&elsewhere, Some(on(1, Health::Settled)), &mut Vec::new());
            assert_eq!(check(&mut state, "waits", now).0, Some((13_000, Vec::new())));
            assert_eq!(baking(&state), 1, "no person needs to act");
            state.update(now, |world, changes| world.set_read(&sibling, known, changes));
            assert!(!is_held(&mut state, "waits", now));
        }
    }

    #[test]
    fn hold_is_reported_until_it_ends() {
        let mut state = moved_one(Health::Failed, &[("max-in-flight", "5")]);
        assert_eq!(check(&mut state, "waits", at(10)).0, Some((11_000, vec![source("a")])));
        assert_eq!(check(&mut state, "other", at(12)).0, Some((13_000, Vec::new())), "it is known");
        state.world.apply_workload(&key("done"), Some(on(2, Health::Settled)), &mut Vec::new());
        assert!(check(&mut state, "done", at(12)).1.is_empty(), "it moved before, and ends no hold");
        let event = state.held_workloads.event(&state.world, &source("a"), at(12)).unwrap();
        assert_eq!((event.reason, &*event.same), (Reason::RollHeld, &*at(10).to_string()));
        assert!(event.note.starts_with("2 workloads are held: "), "{}", event.note);
        let recovered = on(2, Health::Settled);
        state.world.apply_workload(&key("moved"), Some(recovered), &mut Vec::new());
        // A workload that failed is held by no failure, which says nothing about the others.
        state.world.apply_workload(&key("other"), Some(on(1, Health::Failed)), &mut Vec::new());
        assert_eq!(check(&mut state, "other", at(20)), (None, Vec::new()));
        let (held, events) = check(&mut state, "waits", at(20));
        assert_eq!((held, events.len()), (None, 1));
        assert_eq!((events[0].reason, &*events[0].same), (Reason::RollReleased, &*at(10).to_string()));
        assert!(check(&mut state, "waits", at(21)).1.is_empty(), "the end is reported once");
        assert_eq!(state.held_workloads.event(&state.world, &source("a"), at(21)), None);
    }

    /// The content of a is refused. A workload that waits for it rolls if something else requires that.
    #[test]
    fn refused_content_holds_no_other_change() {
        let with = |b: Use, seen_b: u8| {
            having_seen(record("web", &[used("a", Some(1)), b]), &[("a", 1), ("b", seen_b)])
        };
        let as_written = Present { stays_as_written: true, ..fixture::source_record("b", 2).present };
        let as_written = SourceRecord { present: as_written, ..fixture::source_record("b", 2) };
        let plain = fixture::source_record("b", 2);
        let returning =
            with(used("b", Some(2)), 2).tied(&object("b"), |tie| tie.previous = Some(snapshot("b", 1)));
        let moved = having_seen(with(used("b", Some(2)), 2), &[("a", 2), ("b", 2)]);
        let moved = Record { uses: vec![used("a", Some(2)), used("b", Some(2))], ..moved };
        for (what, record, b, rolls) in [
            ("nothing else", on(1, Health::Settled), plain.clone(), false),
            ("b has been seen", with(used("b", Some(2)), 2), plain.clone(), false),
            ("b is new to it", with(used("b", None), 2), plain.clone(), true),
            ("b changed", with(used("b", Some(1)), 1), plain.clone(), true),
            ("b changed, on hold", with(fixture::held("b", 1), 1), plain.clone(), false),
            ("b is refused, too", returning, reverting("b", 2), true),
            ("its reference to b returns to the name", with(used("b", Some(2)), 2), as_written.clone(), true),
            ("the same, and it has moved to a", moved, as_written, true),
        ] {
            let is_refused = b.spread.reverts;
            let mut state = state(&[("web", &record)]);
            for (name, known) in [("a", reverting("a", 2)), ("b", b)] {
                set_source(&mut state, name, known);
            }
            refuse(&mut state, "a");
            if is_refused {
                refuse(&mut state, "b");
            }
            let (held, events) = check(&mut state, "web", at(10));
            assert_eq!(held, (!rolls).then(|| (15_000, Vec::new())), "{what}");
            assert_eq!((events, baking(&state)), (Vec::new(), 0), "{what}");
            assert_eq!(state.held_workloads.is_held(&key("web")), !rolls, "{what}");
            let condition = Precondition::Version("7".to_owned());
            state.world.apply_joining(&key("web"), record, condition, &mut Vec::new());
            assert!(!is_held(&mut state, "web", at(11)), "{what}, and its namespace opts it in");
        }
    }

    /// The change of a waits for another workload. The source b changes as well.
    #[test]
    fn waiting_change_holds_no_other_change() {
        let one = [("max-in-flight", "1")];
        let uses =
            |a: Use, b: u8| having_seen(record("web", &[a, used("b", Some(b))]), &[("a", 1), ("b", b)]);
        let plain = |content| limited("b", content, &[]);
        let in_set = |name, content| limited(name, content, &[one[0], ("set", "shop/1")]);
        let both = || uses(used("a", Some(1)), 1);
        let live = || uses(Use { live: true, ..used("a", None) }, 1);
        let never_read = || having_seen(live(), &[("b", 1)]);
        let in_live = || {
            let known = limited("a", 2, &one);
            SourceRecord { present: Present { live: Some(true), ..known.present.clone() }, ..known }
        };
        for (what, record, a, b, rolls) in [
            ("b has not changed", uses(used("a", Some(1)), 3), limited("a", 2, &one), plain(3), false),
            ("b has no limits", both(), limited("a", 2, &one), plain(3), true),
            ("b has limits", both(), limited("a", 2, &one), limited("b", 3, &one), true),
            ("they are a set", both(), in_set("a", 2), in_set("b", 3), false),
            ("b is in a set", both(), limited("a", 2, &one), in_set("b", 3), true),
            (
                "they have one content",
                both(),
                limited("a", 2, &one),
                limited("b", 2, &[("waves", "9")]),
                true,
            ),
            ("the same, and b has no limits", both(), limited("a", 2, &one), plain(2), true),
            ("it reads a live", live(), in_live(), plain(3), true),
            ("it has not read a yet", never_read(), in_live(), plain(3), true),
            ("its reference to a is new", uses(used("a", None), 1), limited("a", 2, &one), plain(3), true),
        ] {
            let rolling = on(2, Health::Progressing);
            let mut state = state(&[("moved", &rolling), ("web", &record)]);
            for (name, known) in [("a", a), ("b", b)] {
                set_source(&mut state, name, known);
            }
            let GateCheck { held, waiting, .. } =
                state.held_workloads.check(&state.world, &key("web"), |_, _, _| false, (at(10), at(10)));
            let expected = if rolls { vec![source("a")] } else { Vec::new() };
            assert_eq!((held.is_none(), waiting), (rolls, expected), "{what}");
            assert_eq!(state.held_workloads.is_held(&key("web")), !rolls, "{what}");
        }
    }

    /// The content of a waits, or is refused, and b belongs to its set. The sources c and d change, too.
    #[test]
    fn set_moves_whole_or_not_at_all() {
        let one = ("max-in-flight", "1");
        let set = ("set", "shop/1");
        for (what, a, b, c, expected) in [
            (
                "a waits",
                limited("a", 2, &[one, set]),
                limited("b", 3, &[one, set]),
                true,
                Some(vec!["a", "b"]),
            ),
            (
                "the same, and nothing else",
                limited("a", 2, &[one, set]),
                limited("b", 3, &[one, set]),
                false,
                None,
            ),
            (
                "b has no limits",
                limited("a", 2, &[one, set]),
                limited("b", 3, &[set]),
                true,
                Some(vec!["a", "b"]),
            ),
            (
                "a is refused",
                limited("a", 2, &[set, ("on-failure", "revert")]),
                limited("b", 3, &[one, set]),
                true,
                Some(vec!["a", "b"]),
            ),
            (
                "b has no limits beside it",
                limited("a", 2, &[set, ("on-failure", "revert")]),
                limited("b", 3, &[set]),
                true,
                Some(vec!["a", "b"]),
            ),
        ] {
            let names = ["a", "b", "c"];
            let seen = names.map(|name| (name, if name == "c" && !c { 4 } else { 1 }));
            let record = having_seen(record("web", &names.map(|name| used(name, Some(1)))), &seen);
            let rolling = on(2, Health::Progressing);
            let is_refused = a.spread.reverts;
            let mut state = state(&[("moved", &rolling), ("web", &record)]);
            for (name, known) in [("a", a), ("b", b), ("c", limited("c", 4, &[]))] {
                set_source(&mut state, name, known);
            }
            if is_refused {
                refuse(&mut state, "a");
            }
            let GateCheck { held, waiting, .. } =
                state.held_workloads.check(&state.world, &key("web"), |_, _, _| false, (at(10), at(10)));
            let found = held.is_none().then(|| waiting.iter().map(|of| &*of.object.name).collect::<Vec<_>>());
            assert_eq!(found, expected, "{what}");
        }
    }

    /// The others of its set wait as well, and have no reason of their own.
    #[test]
    fn joint_source_reports_no_hold() {
        let set = ("set", "shop/1");
        let web =
            having_seen(record("web", &["a", "b"].map(|name| used(name, Some(1)))), &[("a", 1), ("b", 1)]);
        let mut state = state(&[("moved", &on(2, Health::Failed)), ("web", &web)]);
        for (name, settings) in [("a", &[("max-in-flight", "5"), set][..]), ("b", &[set])] {
            set_source(&mut state, name, limited(name, 2, settings));
        }
        assert_eq!(check(&mut state, "web", at(10)).0, Some((11_000, vec![source("a")])));
    }

    /// No source moves it. Its namespace has opted out.
    #[test]
    fn interval_delays_roll_without_source() {
        let rolled = |content| Record {
            last_roll: Some(at(5)),
            min_interval: Duration::from_secs(10),
            ..on(content, Health::Settled)
        };
        let mut state = state(&[("web", &rolled(2))]);
        set_source(&mut state, "a", limited("a", 2, &[]));
        assert_eq!(check(&mut state, "web", at(6)), (Some((15_000, Vec::new())), Vec::new()));
        assert_eq!(check(&mut state, "web", at(15)), (None, Vec::new()));
    }

    /// The source of the refused content changes its mode as well, which the interval delays.
    #[test]
    fn return_waits_for_no_gate_of_its_source() {
        let known = reverting("a", 2);
        let known = SourceRecord { present: Present { live: Some(true), ..known.present.clone() }, ..known };
        let web = Record {
            last_roll: Some(at(5)),
            min_interval: Duration::from_secs(10),
            ..on(2, Health::Failed).tied(&object("a"), |tie| tie.previous = Some(snapshot("a", 1)))
        };
        let mut state = state(&[("web", &web)]);
        set_source(&mut state, "a", known);
        refuse(&mut state, "a");
        let check = state.held_workloads.check(&state.world, &key("web"), |_, _, _| false, (at(6), at(6)));
        assert!(check.held.is_none() && check.waiting.is_empty(), "{check:?}");
    }

    /// A source with waves that stays as written moves no workload, and holds none.
    #[test]
    fn source_without_snapshots_holds_no_change() {
        for name in ["one", "two", "three"] {
            let record = having_seen(record("web", &[used("a", None), used("b", Some(1))]), &[("b", 1)]);
            let mut state = state(&["one", "two", "three"].map(|name| (name, &record)));
            let a = limited("a", 2, &[("waves", "1")]);
            let present = Present { stays_as_written: true, ..a.present };
            set_source(&mut state, "a", SourceRecord { present, ..a });
            set_source(&mut state, "b", limited("b", 2, &[]));
            assert!(!is_held(&mut state, name, at(10)), "{name}");
        }
    }

    /// A new source joins a set. Some workload may roll, whatever the order of the other source.
    #[test]
    fn set_with_unresolved_source_moves() {
        for changes in 100..120 {
            let record = having_seen(record("web", &[used("a", Some(1)), used("b", None)]), &[("a", 1)]);
            let names = ["one", "two", "three", "four"];
            let mut state = state(&names.map(|name| (name, &record)));
            for (name, content) in [("a", changes), ("b", 50)] {
                set_source(&mut state, name, limited(name, content, &[("waves", "1"), ("set", "shop/2")]));
            }
            let free = names.iter().filter(|name| !is_held(&mut state, name, at(10))).count();
            assert_eq!(free, 1, "change {changes}");
        }
    }

    /// Two sources with waves change at once. Whatever the order of each, some workload may roll; to both contents, if they are a
    /// set.
    #[test]
    fn workloads_of_two_sources_with_waves_move() {
        for (set, is_new) in [(None, false), (Some("shop/2"), false), (None, true)] {
            for changes in 2..22 {
                let content = |name: &str| if name == "a" { 100 + changes } else { 200 + changes };
                let uses = ["a", "b"].map(|name| used(name, (!is_new).then_some(1)));
                let waits = having_seen(record("web", &uses), &[("a", 1), ("b", 1)]);
                let names = ["one", "two", "three", "four"];
                let mut state = state(&names.map(|name| (name, &waits)));
                for name in ["a", "b"] {
                    let of_set = set.map(|set| ("set", set));
                    let settings: Vec<_> = std::iter::once(("waves", "1")).chain(of_set).collect();
                    set_source(&mut state, name, limited(name, content(name), &settings));
                }
                let checks = names.map(|name| {
                    state.held_workloads.check(&state.world, &key(name), |_, _, _| false, (at(10), at(10)))
                });
                let may = checks.iter().filter(|check| check.held.is_none());
                let moves: Vec<_> = may.map(|check| 2 - check.waiting.len()).collect();
                assert_eq!(moves.iter().sum::<usize>(), 2, "{set:?}, change {changes}: {moves:?}");
                let is_joint = set.is_some();
                assert!(!is_joint || moves == [2], "{set:?}, change {changes}: {moves:?}");
            }
        }
    }

    /// Each namespace of a group gets an Event about the failure. Only that of the workload names it.
    #[test]
    fn events_name_no_workload_of_another_namespace() {
        const ELSEWHERE: &str = "a workload of another namespace of the group failed with a-2000000000";
        let mut state = moved_one(Health::Settled, &[("max-in-flight", "1")]);
        set_group(&mut state, "other");
        let theirs = Name::new("other", object("a"));
        state.world.set_read(&theirs, Some(limited("a", 2, &[])), &mut Vec::new());
        let record = on(2, Health::Failed).tied(&object("a"), |tie| tie.moved = Some(at(0)));
        let bad = WorkloadKey { namespace: "other".into(), ..key("bad") };
        state.world.apply_workload(&bad, Some(record), &mut Vec::new());
        let (held, _) = check(&mut state, "waits", at(10));
        assert_eq!(held.map(|(_, new)| new), Some(vec![source("a")]));
        let note =
            |state: &State| state.held_workloads.event(&state.world, &source("a"), at(10)).unwrap().note;
        assert!(note(&state).starts_with(&format!("1 workload is held: {ELSEWHERE}.")), "{}", note(&state));

        // It goes back there, so that only the verdict shows the failure. The hold stays, and is not reported again.
        state.world.set_read(&theirs, Some(reverting("a", 2)), &mut Vec::new());
        state.world.apply_workload(&bad, Some(on(1, Health::Settled)), &mut Vec::new());
        let refused =
            SnapshotRecord { verdict: Some(failed(None).into()), ..fixture::snapshot_record("a", 2) };
        state.world.apply_snapshot(&theirs.sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        assert_eq!(check(&mut state, "waits", at(20)).0, Some((21_000, Vec::new())));
        assert!(note(&state).starts_with(&format!("1 workload is held: {ELSEWHERE}.")), "{}", note(&state));
        state.world.apply_snapshot(&theirs.sibling(snapshot("a", 2)), None, &mut Vec::new());
        let (held, events) = check(&mut state, "waits", at(30));
        assert!(held.is_none(), "the refusal ended");
        let notes: Vec<_> = events.iter().map(|event| &*event.note).collect();
        let ended = "a workload of another namespace of the group no longer holds the roll to a-2000000000";
        assert!(notes.iter().any(|note| note.starts_with(ended)), "{notes:?}");
    }

    /// A person lets the change continue. That ends the hold by a refusal in another namespace, and no refusal.
    #[test]
    fn refusal_elsewhere_is_not_remembered_as_own() {
        let settings = [("waves", "1"), ("on-failure", "revert")];
        let mut state = moved_one(Health::Settled, &settings);
        let promoted = |verdict: Verdict| {
            let verdict = Some(Verdict { promoted: Some("all".into()), ..verdict }.into());
            Some(SnapshotRecord { verdict, ..fixture::snapshot_record("a", 2) })
        };
        let own = source("a").sibling(snapshot("a", 2));
        state.world.apply_snapshot(&own, promoted(Verdict::default()), &mut Vec::new());
        set_group(&mut state, "other");
        let theirs = Name::new("other", object("a"));
        state.world.set_read(&theirs, Some(limited("a", 2, &settings)), &mut Vec::new());
        let web = WorkloadKey { namespace: "other".into(), ..key("web") };
        let unresolved = Record { uses: vec![used("a", None)], ..on(1, Health::Settled) };
        state.world.apply_workload(&web, Some(unresolved), &mut Vec::new());
        state.world.apply_snapshot(
            &theirs.sibling(snapshot("a", 2)),
            promoted(failed(None)),
            &mut Vec::new(),
        );
        let of_other = state.held_workloads.check(&state.world, &web, |_, _, _| false, (at(10), at(10)));
        assert!(of_other.held.is_some(), "it is refused there");
        assert!(!is_held(&mut state, "waits", at(10)), "it is promoted here");
    }

    #[test]
    fn state_forgets_holds_of_deleted_workloads() {
        let config = Config { settle: SignedDuration::ZERO, rolls_per_second: 1000, ..Config::default() };
        let mut state = State::new(Arc::new(Kinds::default()), config);
        state.set_synced();
        let mut now = Timestamp::from_second(1_000_000).unwrap();
        let source = ObjectName::new(SourceKind::ConfigMap, "demo");
        let json = r#"{"metadata":{"name":"demo","uid":"u","resourceVersion":"1",
            "annotations":{"confrev.dev/max-in-flight":"1"}},"data":{"k":"v"}}"#;
        let read = Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap();
        let record = |health, seen: bool| {
            let record = fixture::record("web", &[fixture::used("demo", Some(1))]);
            Record { health, ..record.tied(&source, |tie| tie.seen = seen.then(|| read.digest())) }
        };
        for number in 0..50 {
            let namespace: Arc<str> = format!("ns-{number}").into();
            let key =
                |name: &str| WorkloadKey { kind: 1, namespace: Arc::clone(&namespace), name: name.into() };
            state.apply_workload(&key("a"), Some(record(Health::Failed, true)), now);
            state.apply_workload(&key("b"), Some(record(Health::Settled, false)), now);
            for _ in 0..3 {
                now += SignedDuration::from_secs(1);
                while let Some((task, action)) = state.next_action(now) {
                    let outcome = match action {
                        Action::Read(_) => Outcome::Read(Some(Box::new(read.clone()))),
                        _ => Outcome::Done,
                    };
                    state.finish(&task, Ok(outcome), now);
                }
            }
            state.apply_workload(&key("a"), None, now);
            state.apply_workload(&key("b"), None, now);
        }
        assert_eq!((state.world.sources().len(), state.world.users().names().count()), (0, 0));
        assert!(state.rolls.is_empty());
        assert_eq!(
            (state.held_workloads.reported.len(), state.held(), state.missing.lost().count()),
            (0, 0, 0)
        );
    }
}
