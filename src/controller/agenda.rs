//! What is to be looked at, and when. An entry says only where to look; what to do is decided then, from what is known
//! then.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use super::Name;
use crate::{cluster::WorkloadKey, telemetry::metrics::Work};

/// The first pause after a failure; it doubles with each further one.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_millis(500);
/// The longest pause after a failure.
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_secs(60);
/// The longest pause of a task whose object had changed.
const LONGEST_AFTER_CONFLICT: SignedDuration = SignedDuration::from_secs(10);

/// For so many tasks there may be room, however few there are.
const MOST_ROOM: usize = 1024;

/// How much later than what is urgent that comes which may wait.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(2);

/// The longest pause after a write that admission did not see.
const LONGEST_IN_VAIN: SignedDuration = SignedDuration::from_hours(1);

/// One object to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// A source whose content is not known, or changed.
    Read(Name),
    /// A workload that has something to take into account.
    Roll(WorkloadKey),
    /// A source whose present content may have no snapshot.
    Ensure(Name),
    /// A snapshot that may lack an owner.
    Bind(Name),
    /// A snapshot that may have an owner too many.
    Unbind(Name),
    /// A user's object that may have owners of confrev's, and is not bound.
    Free(Name),
    /// A snapshot that is referenced and may not be there.
    Restore(Name),
    /// A snapshot that nothing may want any more.
    Sweep(Name),
    /// A workload that may refer to what does not exist.
    Report(WorkloadKey),
    /// Events that wait to be written, one after the other.
    Tell,
    /// A namespace that opts in, whose workloads may not know it yet.
    OptIn(std::sync::Arc<str>),
}

impl Task {
    /// Whether it may wait while there is something more urgent: owners, clean-up and Events keep for a moment, and a
    /// change that is under way should not be held up by what it leaves behind.
    fn may_wait(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Unbind(_) | Self::Free(_) | Self::Report(_) | Self::Tell)
    }

    /// Whether its work may list a whole namespace.
    fn is_slow(&self) -> bool {
        matches!(self, Self::Restore(_) | Self::Sweep(_) | Self::OptIn(_))
    }

    /// As metrics have it.
    pub fn work(&self) -> Work {
        match self {
            Self::Read(_) => Work::Read,
            Self::Roll(_) => Work::Roll,
            Self::Ensure(_) => Work::Ensure,
            Self::Bind(_) => Work::Bind,
            Self::Unbind(_) | Self::Free(_) => Work::Unbind,
            Self::Restore(_) => Work::Restore,
            Self::Sweep(_) => Work::Sweep,
            Self::Report(_) | Self::Tell => Work::Tell,
            Self::OptIn(_) => Work::OptIn,
        }
    }
}

type Queue = BTreeSet<(Timestamp, Task)>;

/// Tasks that list whole namespaces, at most so many at a time: one namespace full of objects, or of references that lead
/// nowhere, must not keep the rolls of others waiting.
const MOST_SLOW: usize = 4;

/// Tasks by time. A task stands in it at most once, and is never handed out while it is being worked on.
#[derive(Debug, Default)]
pub struct Agenda {
    urgent: Queue,
    /// Rolls, which are handed out one by one where there is a rate: the others wait where they stand, so that who has
    /// waited longest comes first.
    rolls: Queue,
    /// What may wait for what is urgent.
    patient: Queue,
    /// What is slow, of which a few are worked on at a time.
    slow: Queue,
    slow_working: usize,
    at: HashMap<Task, Timestamp>,
    working: HashSet<Task>,
    /// How often a task failed in a row, and until when it must rest.
    failures: HashMap<Task, (u32, Timestamp)>,
}

impl Agenda {
    /// Enters a task for `at`; where it is entered already, the earlier time holds. A task that failed rests first,
    /// however often it is entered: events on an object must not defeat its pause.
    pub fn schedule(&mut self, task: Task, at: Timestamp) {
        let at = self.failures.get(&task).map_or(at, |(_, rest)| at.max(*rest));
        if let Some(entered) = self.at.get(&task) {
            if *entered <= at {
                return;
            }
            let entry = (*entered, task.clone());
            self.queue(&task).remove(&entry);
        }
        self.at.insert(task.clone(), at);
        self.queue(&task).insert((at, task));
    }

    /// Strikes a task.
    pub fn cancel(&mut self, task: &Task) {
        self.failures.remove(task);
        if let Some(at) = self.at.remove(task) {
            self.queue(task).remove(&(at, task.clone()));
        }
    }

    fn queue(&mut self, task: &Task) -> &mut Queue {
        match task {
            Task::Roll(_) => &mut self.rolls,
            task if task.is_slow() => &mut self.slow,
            task if task.may_wait() => &mut self.patient,
            _ => &mut self.urgent,
        }
    }

    /// The first task of a queue that is not being worked on.
    fn first<'q>(&self, queue: &'q Queue) -> Option<&'q (Timestamp, Task)> {
        queue.iter().find(|(_, task)| !self.working.contains(task))
    }

    /// The next task that is due by `now` and not being worked on: the one that has waited longest, where what may wait has
    /// some time to its credit. There is no roll before `rolls_from`. The caller must call [`Agenda::done`] for it.
    pub fn pop(&mut self, now: Timestamp, rolls_from: Timestamp) -> Option<Task> {
        let due = |queue| self.first(queue).filter(|(at, _)| *at <= now);
        let roll = due(&self.rolls).filter(|_| rolls_from <= now);
        let slow = due(&self.slow).filter(|_| self.slow_working < MOST_SLOW);
        let urgent = due(&self.urgent).into_iter().chain(roll).chain(slow).min();
        let entry = match (urgent, due(&self.patient)) {
            (Some(urgent), Some(patient)) if patient.0 + LONGEST_WAIT < urgent.0 => patient,
            (urgent, patient) => urgent.or(patient)?,
        };
        let entry = entry.clone();
        self.queue(&entry.1).remove(&entry);
        self.at.remove(&entry.1);
        // After a start or a storm it has room for as much as there is of everything.
        if self.at.capacity() > MOST_ROOM.max(4 * self.at.len()) {
            self.at.shrink_to_fit();
        }
        self.working.insert(entry.1.clone());
        self.slow_working += usize::from(entry.1.is_slow());
        Some(entry.1)
    }

    /// Ends the work on a task that [`Agenda::pop`] gave.
    pub fn done(&mut self, task: &Task) {
        self.leave(task);
        self.failures.remove(task);
    }

    /// The task is worked on no longer.
    fn leave(&mut self, task: &Task) {
        if self.working.remove(task) {
            self.slow_working -= usize::from(task.is_slow());
        }
    }

    /// How often a task failed in a row.
    pub fn failures(&self, task: &Task) -> u32 {
        self.failures.get(task).map_or(0, |(failures, _)| *failures)
    }

    /// Hands back a task that [`Agenda::pop`] gave, for another time.
    pub fn postpone(&mut self, task: Task, at: Timestamp) {
        self.leave(&task);
        self.schedule(task, at);
    }

    /// Ends the work on a task that failed: it comes again after a pause that grows. Answers with the pause.
    pub fn failed(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_BACKOFF, task, now)
    }

    /// The same for a task whose object had changed: its pauses grow to a few seconds. As long as a watch is silent, each try
    /// is in vain.
    pub fn conflicted(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_AFTER_CONFLICT, task, now)
    }

    /// The same for a task whose every try is a write that changed nothing: its pauses grow to an hour.
    pub fn failed_in_vain(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_IN_VAIN, task, now)
    }

    fn failed_up_to(&mut self, longest: SignedDuration, task: Task, now: Timestamp) -> SignedDuration {
        self.leave(&task);
        let (failures, rest) = self.failures.entry(task.clone()).or_insert((0, now));
        let pause = FIRST_BACKOFF.checked_mul(1 << (*failures).min(20)).unwrap_or(longest).min(longest);
        *failures += 1;
        *rest = now + pause;
        // What was entered while it was worked on rests as well.
        if let Some(at) = self.at.remove(&task) {
            self.queue(&task).remove(&(at, task.clone()));
        }
        self.schedule(task, now);
        pause
    }

    /// When the next task that is not being worked on is due, where there is no roll before `rolls_from`.
    pub fn next(&self, rolls_from: Timestamp) -> Option<Timestamp> {
        let at = |queue| self.first(queue).map(|(at, _)| *at);
        let roll = at(&self.rolls).map(|at| at.max(rolls_from));
        let slow = at(&self.slow).filter(|_| self.slow_working < MOST_SLOW);
        [at(&self.urgent), roll, at(&self.patient), slow].into_iter().flatten().min()
    }

    /// Strikes every task that is not to be kept, those apart that are being worked on.
    pub fn retain(&mut self, mut keep: impl FnMut(&Task) -> bool) {
        self.at.retain(|task, _| keep(task));
        let Self { at, urgent, rolls, patient, slow, failures, .. } = self;
        for queue in [urgent, rolls, patient, slow] {
            queue.retain(|(_, task)| at.contains_key(task));
        }
        failures.retain(|task, _| at.contains_key(task));
    }

    /// Whether the task is entered or being worked on.
    pub fn has(&self, task: &Task) -> bool {
        self.at.contains_key(task) || self.working.contains(task)
    }

    /// Whether the task is entered, be it for another time after the present one.
    pub fn is_entered(&self, task: &Task) -> bool {
        self.at.contains_key(task)
    }

    /// Whether the task is being worked on.
    pub fn is_working(&self, task: &Task) -> bool {
        self.working.contains(task)
    }

    /// How many workloads wait to be rolled.
    pub fn pending_rolls(&self) -> usize {
        self.at.keys().chain(&self.working).filter(|task| matches!(task, Task::Roll(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ObjectName, SourceKind};

    fn task(name: &str) -> Task {
        Task::Read(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, name)))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_task_stands_once_at_its_earliest_time() {
        let mut agenda = Agenda::default();
        agenda.schedule(task("a"), at(5));
        agenda.schedule(task("a"), at(3));
        agenda.schedule(task("a"), at(9));
        assert_eq!(agenda.next(at(0)), Some(at(3)));
        assert_eq!(agenda.pop(at(2), at(0)), None);
        assert_eq!(agenda.pop(at(3), at(0)), Some(task("a")));
        assert_eq!(agenda.pop(at(9), at(0)), None);
    }

    #[test]
    fn what_may_wait_comes_after_what_is_urgent_but_does_not_wait_for_ever() {
        let bind = Task::Bind(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, "s")));
        for (urgent, first) in [(1, task("a")), (3, task("a")), (4, bind.clone()), (9, bind.clone())] {
            for now in [9, 100] {
                let mut agenda = Agenda::default();
                agenda.schedule(bind.clone(), at(1));
                agenda.schedule(task("a"), at(urgent));
                assert_eq!(agenda.next(at(0)), Some(at(1)));
                assert_eq!(agenda.pop(at(now), at(0)), Some(first.clone()), "an urgent one of {urgent} s");
                assert!(agenda.pop(at(now), at(0)).is_some(), "and then the other one");
                assert_eq!((agenda.pop(at(now), at(0)), agenda.next(at(0))), (None, None));
            }
        }
    }

    #[test]
    fn slow_tasks_leave_room_for_others() {
        let restore =
            |name: String| Task::Restore(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, name)));
        let mut agenda = Agenda::default();
        for number in 0..2 * MOST_SLOW {
            agenda.schedule(restore(format!("s{number}")), at(1));
        }
        agenda.schedule(task("a"), at(2));
        let slow: Vec<_> = (0..MOST_SLOW).map(|_| agenda.pop(at(3), at(0)).unwrap()).collect();
        assert!(slow.iter().all(Task::is_slow));
        assert_eq!(agenda.pop(at(3), at(0)), Some(task("a")));
        assert_eq!((agenda.pop(at(3), at(0)), agenda.next(at(0))), (None, None));
        agenda.done(&slow[0]);
        assert!(agenda.pop(at(3), at(0)).is_some_and(|task| task.is_slow()));
        agenda.failed(slow[1].clone(), at(3));
        assert!(agenda.pop(at(3), at(0)).is_some());
    }

    #[test]
    fn rolls_wait_for_their_rate_where_they_stand_and_hold_nothing_else_up() {
        let roll = |name: &str| {
            let [namespace, name] = ["ns", name].map(std::sync::Arc::from);
            Task::Roll(WorkloadKey { kind: 0, namespace, name })
        };
        let mut agenda = Agenda::default();
        agenda.schedule(roll("b"), at(1));
        agenda.schedule(roll("a"), at(2));
        agenda.schedule(task("c"), at(3));
        assert_eq!(agenda.next(at(5)), Some(at(3)));
        assert_eq!(agenda.pop(at(4), at(5)), Some(task("c")));
        assert_eq!((agenda.pop(at(4), at(5)), agenda.next(at(5))), (None, Some(at(5))));
        agenda.schedule(task("c"), at(0));
        agenda.done(&task("c"));
        assert_eq!(agenda.pop(at(5), at(5)), Some(task("c")), "who has waited longer");
        assert_eq!(agenda.pop(at(5), at(5)), Some(roll("b")), "the first that was due");
        assert_eq!((agenda.pop(at(5), at(6)), agenda.next(at(6))), (None, Some(at(6))));
        assert_eq!((agenda.pop(at(6), at(6)), agenda.next(at(6))), (Some(roll("a")), None));
    }

    #[test]
    fn a_task_in_work_is_not_handed_out_again_until_it_is_done() {
        let mut agenda = Agenda::default();
        agenda.schedule(task("a"), at(1));
        assert!(agenda.pop(at(1), at(0)).is_some());
        agenda.schedule(task("a"), at(1));
        assert_eq!(agenda.pop(at(1), at(0)), None);
        assert_eq!(agenda.next(at(0)), None);
        agenda.done(&task("a"));
        assert_eq!(agenda.pop(at(1), at(0)), Some(task("a")));
    }

    #[test]
    fn a_task_that_fails_rests_also_where_it_was_entered_while_it_was_worked_on() {
        let mut agenda = Agenda::default();
        agenda.schedule(task("a"), at(1));
        let popped = agenda.pop(at(1), at(0)).unwrap();
        agenda.schedule(task("a"), at(1));
        let pause = agenda.failed(popped, at(1));
        assert_eq!(agenda.next(at(0)), Some(at(1) + pause));
        assert_eq!(agenda.pop(at(1), at(0)), None);
    }

    #[test]
    fn pauses_after_failures_grow_to_a_limit_and_start_anew_after_success() {
        let mut agenda = Agenda::default();
        let mut pauses = Vec::new();
        for second in 0..10 {
            agenda.schedule(task("a"), at(0));
            assert_eq!(agenda.pop(at(second - 1), at(0)), None, "it rests, whatever is entered");
            let popped = agenda.pop(at(10_000 + second), at(0)).unwrap();
            pauses.push(agenda.failed(popped, at(second)).as_millis());
        }
        assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
        assert_eq!(pauses[9], LONGEST_BACKOFF.as_millis());
        let popped = agenda.pop(at(10_000), at(0)).unwrap();
        agenda.done(&popped);
        agenda.schedule(task("a"), at(0));
        let popped = agenda.pop(at(0), at(0)).unwrap();
        assert_eq!(agenda.failed(popped, at(0)), FIRST_BACKOFF);
    }
}
