//! The state of a change in the namespace of its source, for tools that look at the source alone.

use std::collections::BTreeMap;

use confrev_core::{
    gates::{Gate, Why},
    resolve::{ChangeState, MemberState, Phase, Record, Spread},
    snapshot::{Digest, ObjectName},
};
use jiff::Timestamp;

use crate::{answers::is_one_set, name::Name, objects::WorkloadKey, records::SourceRecord, world::World};

/// About how many waiting workloads the gates are asked: an answer may take some milliseconds, and all clients wait for the world
/// meanwhile.
pub(super) const MOST_ASKED: usize = 50;

/// The workloads of a namespace that use a source and follow its changes, counted.
#[derive(Default)]
struct Count {
    of: usize,
    moved: usize,
    /// Whether a workload that has moved is not healthy, or one moves now.
    is_under_way: bool,
    /// Whether a workload has not moved.
    waits: bool,
    /// Whether no gate keeps one of them.
    may_move: bool,
    /// The gates that keep them.
    gates: Vec<Gate>,
    asked: usize,
}

impl World {
    /// The state of the change to the present content of a source. It counts the workloads of the source's own namespace: those of the
    /// other namespaces of a group are none of its readers' concern. `is_rolling`: whether a roll of a workload is in progress.
    pub fn change_state(
        &self,
        source: &Name,
        known: &SourceRecord,
        is_rolling: impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        now: Timestamp,
    ) -> ChangeState {
        let spread = self.spread(source, known, &is_rolling, now);
        let count = self.count((source, known), spread.as_ref(), &is_rolling, now);
        let digest = known.present.digests.current();
        let before = known.reported().and_then(ChangeState::read).filter(|before| before.digest == digest);
        let (phase, gate) = self.phase((source, known), spread.as_ref(), &count, before.as_ref());
        let since = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let gate = gate.map(|gate| gate.name().to_owned());
        ChangeState { digest, phase, moved: count.moved, of: count.of, gate, since }.after(before)
    }

    fn phase(
        &self,
        (source, known): (&Name, &SourceRecord),
        spread: Option<&Spread<WorkloadKey>>,
        count: &Count,
        before: Option<&ChangeState>,
    ) -> (Phase, Option<Gate>) {
        // A content that only the installation refuses may be that of workloads.
        let is_listed =
            || count.gates.contains(&Gate::REFUSED) && self.listed_as_refused(source, known).is_some();
        if self.refused_of(source, known).is_some() || is_listed() {
            return (Phase::Refused, Some(Gate::REFUSED));
        }
        let has_failed = spread.is_some() && {
            let verdict = self.change(source, known).verdict(self);
            verdict.failed.is_some() || verdict.failed_elsewhere
        };
        let is_proven = spread.is_none_or(|spread| spread.progress().is_none() || spread.is_complete());
        // What happens to the workloads after that says nothing about the change: an image that does not start, a node that is lost.
        let was_complete = before.is_some_and(|before| before.phase == Phase::Complete);
        if !count.waits && !has_failed && (was_complete || (is_proven && !count.is_under_way)) {
            return (Phase::Complete, None);
        }
        let gate = match spread {
            _ if count.may_move => None,
            _ if count.waits => Gate::all().find(|gate| count.gates.contains(gate)),
            _ if has_failed => Some(Gate::FAILED),
            spread => spread.and_then(Spread::reason).map(|wait| Why::Others(wait).gate()),
        };
        match gate {
            Some(gate) if has_failed || !count.is_under_way => (Phase::Waiting, Some(gate)),
            _ => (Phase::Rolling, None),
        }
    }

    fn count(
        &self,
        (source, known): (&Name, &SourceRecord),
        spread: Option<&Spread<WorkloadKey>>,
        is_rolling: &impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool,
        now: Timestamp,
    ) -> Count {
        // The sources of one set move together.
        let mut others = BTreeMap::<Name, Option<Spread<WorkloadKey>>>::new();
        let mut count = Count::default();
        for (key, record, member_state) in self.member_states(source, known) {
            let mut uses = record.uses.iter().filter(|used| used.source == source.object);
            if member_state == MemberState::Apart || !uses.any(|used| known.present.mode_for(used).rolls()) {
                continue;
            }
            count.of += 1;
            let rolls = is_rolling(key, record, None);
            match member_state {
                MemberState::Moved(moved) => {
                    count.moved += 1;
                    count.is_under_way |= rolls || !moved.health.is_at_rest();
                    continue;
                }
                MemberState::Unaffected | MemberState::Apart => {
                    count.moved += 1;
                    continue;
                }
                MemberState::Waits(_) => count.waits = true,
            }
            count.is_under_way |= rolls;
            if rolls || count.may_move || count.asked == MOST_ASKED {
                continue;
            }
            count.asked += 1;
            let wait = |of: &Name, known_of: &SourceRecord| {
                if of == source {
                    return self.wait_in((key, record), (of, known_of), spread?);
                }
                if !is_one_set(known, known_of) {
                    return None;
                }
                let spread =
                    others.entry(of.clone()).or_insert_with(|| self.spread(of, known_of, is_rolling, now));
                self.wait_in((key, record), (of, known_of), spread.as_ref()?)
            };
            let answers = self.answers((key, record), wait, (now, now));
            match answers.shut.into_iter().find(|shut| shut.source == *source) {
                Some(shut) if count.gates.contains(&shut.why.gate()) => {}
                Some(shut) => count.gates.push(shut.why.gate()),
                None => count.may_move = true,
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use confrev_core::{
        gate_settings::Texts,
        resolve::{Health, SpreadPolicy, Use},
    };

    use super::*;
    use crate::{
        fixture::{
            digest, failed, having_seen, held, record, reverting, snapshot, snapshot_record, source,
            source_record, used, window, world,
        },
        records::{Gates, Report, SnapshotRecord},
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// A workload that has seen this content of a.
    fn seen(content: u8, health: Health) -> Record {
        let record = record("web", &[used("a", Some(content))]);
        Record { health, ..having_seen(record, &[("a", content)]) }
    }

    /// `PHASE MOVED/OF GATE` of the content 2 of a.
    fn said(workloads: &[Record], known: SourceRecord, rolling: Option<&str>) -> String {
        let names = ["one", "two", "three"];
        let workloads: Vec<_> = names.into_iter().zip(workloads).collect();
        let mut world = world(&workloads);
        world.set_read(&source("a"), Some(known), &mut Vec::new());
        world.referrers_mut().set_listed("ns");
        said_of(&world, rolling)
    }

    fn said_of(world: &World, rolling: Option<&str>) -> String {
        let known = world.existing_source(&source("a")).unwrap();
        let is_rolling =
            |of: &WorkloadKey, _: &Record, _: Option<(&ObjectName, &Digest)>| Some(&*of.name) == rolling;
        let state = world.change_state(&source("a"), known, is_rolling, NOW);
        assert_eq!(state.digest, digest(2));
        format!("{:?} {}/{} {}", state.phase, state.moved, state.of, state.gate.unwrap_or_default())
    }

    #[test]
    fn phase_follows_from_workloads_and_gates() {
        let asked =
            |change: Option<&str>| Some(Report { asked: Some(true), change: change.map(Into::into) }.into());
        let plain = || SourceRecord { report: asked(None), ..source_record("a", 2) };
        let had = |phase: Phase| {
            let of = ChangeState { digest: digest(2), phase, moved: 1, of: 1, gate: None, since: NOW };
            SourceRecord { report: asked(Some(&of.text())), ..plain() }
        };
        let limited = || SourceRecord {
            spread: Arc::new(SpreadPolicy { max_in_flight: Some(1), ..SpreadPolicy::default() }),
            ..plain()
        };
        let closed = || {
            let settings = window("12:00-13:00");
            SourceRecord {
                gates: Some(Gates { settings, set: None, has_schema: false, check: None }.into()),
                ..plain()
            }
        };
        let (old, new) = (seen(1, Health::Settled), seen(2, Health::Settled));
        let with = |health| seen(2, health);
        let on_hold = Record { uses: vec![held("a", 1)], ..old.clone() };
        let paused = Record { track: false, ..old.clone() };
        let excluded = Record { uses: vec![Use { excluded: true, ..used("a", Some(1)) }], ..old.clone() };
        for (what, workloads, known, rolling, expected) in [
            ("nobody uses it", vec![], plain(), None, "Complete 0/0 "),
            ("all have it", vec![new.clone(), new.clone()], plain(), None, "Complete 2/2 "),
            ("one may move", vec![new.clone(), old.clone()], plain(), None, "Rolling 1/2 "),
            ("one moves", vec![new.clone(), old.clone()], plain(), Some("two"), "Rolling 1/2 "),
            ("one progresses", vec![new.clone(), with(Health::Progressing)], plain(), None, "Rolling 2/2 "),
            ("one is not healthy", vec![new.clone(), with(Health::Failed)], plain(), None, "Rolling 2/2 "),
            ("one was healthy", vec![with(Health::Failed)], had(Phase::Complete), None, "Complete 1/1 "),
            ("it was not complete", vec![with(Health::Failed)], had(Phase::Rolling), None, "Rolling 1/1 "),
            ("another one came", vec![new.clone(), old.clone()], had(Phase::Complete), None, "Rolling 1/2 "),
            (
                "one is not healthy, another may move",
                vec![old.clone(), with(Health::Failed)],
                plain(),
                None,
                "Rolling 1/2 ",
            ),
            ("a window is closed", vec![new.clone(), old.clone()], closed(), None, "Waiting 1/2 window"),
            (
                "one progresses, the others wait",
                vec![with(Health::Progressing), old.clone()],
                limited(),
                None,
                "Rolling 1/2 ",
            ),
            (
                "one fails, the others wait",
                vec![with(Health::Failed), old.clone()],
                limited(),
                None,
                "Rolling 1/2 ",
            ),
            (
                "the others stay where they are",
                vec![new.clone(), on_hold, paused],
                plain(),
                None,
                "Complete 1/1 ",
            ),
            ("another one excludes it", vec![new.clone(), excluded], plain(), None, "Complete 1/1 "),
        ] {
            assert_eq!(said(&workloads, known, rolling), expected, "{what}");
        }
    }

    #[test]
    fn refused_content_stays_refused() {
        let mut world = world(&[("one", &seen(1, Health::Settled)), ("two", &seen(1, Health::Settled))]);
        world.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        assert_eq!(said_of(&world, None), "Refused 0/2 refused");
    }

    /// The failure is on the snapshot.
    #[test]
    fn failure_keeps_the_change_from_completion() {
        for (workloads, expected) in [([2, 1], "Waiting 1/2 failed"), ([2, 2], "Waiting 2/2 failed")] {
            let [one, two] = workloads.map(|content| seen(content, Health::Settled));
            let mut world = world(&[("one", &one), ("two", &two)]);
            let spread = SpreadPolicy { max_in_flight: Some(1), ..SpreadPolicy::default() };
            let known = SourceRecord { spread: spread.into(), ..source_record("a", 2) };
            world.set_read(&source("a"), Some(known), &mut Vec::new());
            world.referrers_mut().set_listed("ns");
            let bad = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
            world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(bad), &mut Vec::new());
            assert_eq!(said_of(&world, None), expected);
        }
    }

    /// The other source of the set moves one workload at a time.
    #[test]
    fn set_waits_for_its_other_source() {
        let both = record("two", &[used("a", Some(1)), used("b", Some(1))]);
        let both = having_seen(both, &[("a", 1), ("b", 1)]);
        let of_b = having_seen(record("one", &[used("b", Some(2))]), &[("b", 2)]);
        let of_b = Record { health: Health::Progressing, ..of_b };
        let in_set = |name: &str, max_in_flight| SourceRecord {
            gates: Some(
                Gates {
                    settings: Texts::default(),
                    set: Some("shop/1".into()),
                    has_schema: false,
                    check: None,
                }
                .into(),
            ),
            spread: Arc::new(SpreadPolicy {
                max_in_flight,
                set: Some("shop/1".into()),
                ..SpreadPolicy::default()
            }),
            ..source_record(name, 2)
        };
        let mut world = world(&[("one", &of_b), ("two", &both)]);
        let changes = &mut Vec::new();
        world.set_read(&source("a"), Some(in_set("a", None)), changes);
        world.set_read(&source("b"), Some(in_set("b", Some(1))), changes);
        assert_eq!(said_of(&world, None), "Waiting 0/1 max-in-flight");
    }
}
