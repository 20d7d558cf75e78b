//! The task queue. A task only names an object to check; the action is decided when the task is due, from the state then.
//! Namespaces take turns: one with thousands of due tasks, or rolls, does not delay those of others.
//!
//! A snapshot or bound object has one task with several steps ([`ObjectStep`]), of which one at a time is worked on.

pub(crate) mod clock;
pub(crate) mod task;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

pub use self::task::{ObjectStep, Task};
use crate::turns::{Lanes, patient_comes_first};

/// Tasks by namespace. Events have a turn of their own.
type Tasks = Lanes<Option<Arc<str>>, Timestamp, Task>;

/// The first pause after a failure; it doubles with each further one.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_millis(500);
/// The longest pause after a failure.
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_secs(60);
/// The longest pause of a task whose object had changed.
const LONGEST_AFTER_CONFLICT: SignedDuration = SignedDuration::from_secs(10);

/// The capacity that the map of queued tasks keeps, however few tasks there are.
const MAX_ROOM: usize = 1024;

/// The longest pause after a write that admission did not see.
const LONGEST_IN_VAIN: SignedDuration = SignedDuration::from_hours(1);

/// The most tasks that are worked on at a time.
///
/// A namespace gets another one only while it has fewer than are free: half of them if it is alone, a third if there are two, and so on.
/// So up to four namespaces leave some to others, however long their tasks take.
pub(in crate::controller) const MAX_WORKING: usize = 16;

/// The most tasks at a time that may take seconds, such as those that list whole namespaces. A namespace full of objects, or of
/// references to nothing, must not delay the rolls of others.
const MAX_SLOW: usize = 4;

/// After so many urgent tasks, a low-priority task that waits too long comes first.
const MOST_URGENT: u32 = 8;

/// Tasks by namespace and time. Each task is queued at most once, and is never handed out while it, or another step of its object, is being
/// worked on: until then, only its time is known.
#[derive(Debug, Default)]
pub struct Queue {
    urgent: Tasks,
    /// Rolls, handed out one by one if there is a rate. The others keep their place.
    rolls: Tasks,
    /// Low-priority tasks, which may wait for urgent ones.
    patient: Tasks,
    /// Slow tasks, of which only a few are worked on at a time.
    slow: Tasks,
    /// Those of them that have a low priority.
    slow_patient: Tasks,
    slow_working: usize,
    /// How many urgent tasks were handed out since the last low-priority task.
    urgent_in_row: u32,
    at: HashMap<Task, Timestamp>,
    working: HashSet<Task>,
    /// How many of them each namespace has.
    working_of: HashMap<Option<Arc<str>>, usize>,
    /// How often a task failed in a row, and until when it pauses.
    failures: HashMap<Task, (u32, Timestamp)>,
}

impl Queue {
    /// Queues a task for `at`; if it is already queued, the earlier time applies. A failed task pauses first, however often
    /// it is queued: events on an object must not defeat the pause.
    pub fn schedule(&mut self, task: Task, at: Timestamp) {
        let at = self.failures.get(&task).map_or(at, |(_, rest)| at.max(*rest));
        if let Some(queued) = self.at.get(&task) {
            if *queued <= at {
                return;
            }
            let entry = (*queued, task.clone());
            self.remove(&entry);
        }
        self.at.insert(task.clone(), at);
        self.insert((at, task));
    }

    /// Removes a task.
    pub fn cancel(&mut self, task: &Task) {
        self.failures.remove(task);
        if let Some(at) = self.at.remove(task) {
            self.remove(&(at, task.clone()));
        }
    }

    /// The queued tasks that a task waits with.
    fn peers(&mut self, task: &Task) -> &mut Tasks {
        match (task, task.is_slow(), task.may_wait()) {
            (Task::Roll(_), ..) => &mut self.rolls,
            (_, true, true) => &mut self.slow_patient,
            (_, true, false) => &mut self.slow,
            (_, false, true) => &mut self.patient,
            (_, false, false) => &mut self.urgent,
        }
    }

    /// Puts a task into its queue, unless it or another step of its object is being worked on.
    fn insert(&mut self, (at, task): (Timestamp, Task)) {
        let working = &self.working;
        if !working.contains(&task) && !task.other_steps().any(|other| working.contains(&other)) {
            self.peers(&task).insert(&task.namespace().cloned(), (at, task), ());
        }
    }

    /// Takes a task out of its queue.
    fn remove(&mut self, entry: &(Timestamp, Task)) {
        self.peers(&entry.1).remove(&entry.1.namespace().cloned(), entry);
    }

    /// The next task that is due by `now` and not being worked on: that of the namespace that waits longest for its turn, and
    /// within it the task that is due longest. Low-priority tasks wait a little longer; while urgent tasks never end, they are
    /// one of a few. No roll is returned before `rolls_from`. The caller must call [`Queue::done`] for the task.
    pub fn pop(&mut self, now: Timestamp, rolls_from: Timestamp) -> Option<Task> {
        let Self { urgent, rolls, patient, slow, slow_patient, working, working_of, .. } = self;
        let working = working.len();
        let may = |namespace: &Option<Arc<str>>| may_work(working, working_of.get(namespace));
        let first =
            |tasks: &mut Tasks| tasks.first_where(now, may).map(|(since, entry)| (since, entry.clone()));
        let may_be_slow = self.slow_working < MAX_SLOW;
        let roll = Some(rolls).filter(|_| rolls_from <= now).and_then(first);
        let slow = Some(slow).filter(|_| may_be_slow).and_then(first);
        let slow_patient = Some(slow_patient).filter(|_| may_be_slow).and_then(first);
        let urgent = first(urgent).into_iter().chain(roll).chain(slow).min();
        let patient = first(patient).into_iter().chain(slow_patient).min();
        let is_patient = match (&urgent, &patient) {
            (Some((urgent, _)), Some((patient, (due, _)))) => {
                let is_late = patient_comes_first(*due, *urgent) && self.urgent_in_row >= MOST_URGENT;
                is_late || patient_comes_first(*patient, *urgent)
            }
            (urgent, _) => urgent.is_none(),
        };
        let (_, (_, task)) = if is_patient { patient } else { urgent }?;
        let namespace = task.namespace().cloned();
        self.peers(&task).pop_where(now, |key| *key == namespace);
        self.urgent_in_row = if is_patient { 0 } else { self.urgent_in_row.saturating_add(1) };
        self.at.remove(&task);
        for other in task.other_steps() {
            if let Some(at) = self.at.get(&other) {
                self.remove(&(*at, other));
            }
        }
        // After a start or a storm, the map has capacity for many more tasks than it holds.
        if self.at.capacity() > MAX_ROOM.max(4 * self.at.len()) {
            self.at.shrink_to_fit();
        }
        self.working.insert(task.clone());
        *self.working_of.entry(namespace).or_default() += 1;
        self.slow_working += usize::from(task.is_slow());
        Some(task)
    }

    /// Ends the work on a task that [`Queue::pop`] returned.
    pub fn done(&mut self, task: &Task) {
        self.leave(task);
        self.failures.remove(task);
    }

    /// Records that the task is no longer being worked on.
    fn leave(&mut self, task: &Task) {
        if self.working.remove(task) {
            self.slow_working -= usize::from(task.is_slow());
            if let Entry::Occupied(mut count) = self.working_of.entry(task.namespace().cloned()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            // It may have been queued again meanwhile, and other steps of its object have waited.
            for step in std::iter::once(task.clone()).chain(task.other_steps()) {
                if let Some(at) = self.at.get(&step) {
                    self.insert((*at, step));
                }
            }
        }
    }

    /// How often a task failed in a row.
    pub fn failures(&self, task: &Task) -> u32 {
        self.failures.get(task).map_or(0, |(failures, _)| *failures)
    }

    /// Lets a task forget its failures and their pause: what it is about to try is new.
    pub fn forgive(&mut self, task: &Task) {
        self.failures.remove(task);
    }

    /// Queues a task from [`Queue::pop`] again, for another time.
    pub fn postpone(&mut self, task: Task, at: Timestamp) {
        self.leave(&task);
        self.schedule(task, at);
    }

    /// Ends the work on a task that failed, and queues it after a pause that grows. Returns the pause.
    pub fn failed(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_BACKOFF, task, now)
    }

    /// Like [`Queue::failed`], for a task whose object had changed: the pause grows to a few seconds. While a watch is
    /// silent, every try fails.
    pub fn conflicted(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_AFTER_CONFLICT, task, now)
    }

    /// Like [`Queue::failed`], for a task whose writes have no effect: the pause grows to an hour.
    pub fn failed_in_vain(&mut self, task: Task, now: Timestamp) -> SignedDuration {
        self.failed_up_to(LONGEST_IN_VAIN, task, now)
    }

    fn failed_up_to(&mut self, longest: SignedDuration, task: Task, now: Timestamp) -> SignedDuration {
        self.leave(&task);
        let (failures, rest) = self.failures.entry(task.clone()).or_insert((0, now));
        let pause = FIRST_BACKOFF.checked_mul(1 << (*failures).min(20)).unwrap_or(longest).min(longest);
        *failures += 1;
        *rest = now + pause;
        // A task that was queued while it was worked on pauses as well.
        if let Some(at) = self.at.remove(&task) {
            self.remove(&(at, task.clone()));
        }
        self.schedule(task, now);
        pause
    }

    /// When the next task that may be worked on is due, if no roll starts before `rolls_from`.
    pub fn next(&self, rolls_from: Timestamp) -> Option<Timestamp> {
        let next = |tasks: &Tasks| {
            tasks.next_where(|namespace| may_work(self.working.len(), self.working_of.get(namespace)))
        };
        let roll = next(&self.rolls).map(|at| at.max(rolls_from));
        let slow = [&self.slow, &self.slow_patient].map(next);
        let slow = slow.into_iter().filter(|_| self.slow_working < MAX_SLOW);
        [next(&self.urgent), roll, next(&self.patient)].into_iter().chain(slow).flatten().min()
    }

    /// Removes every task that is not to be kept, except those being worked on.
    pub fn retain(&mut self, mut keep: impl FnMut(&Task) -> bool) {
        self.at.retain(|task, _| keep(task));
        let Self { at, urgent, rolls, patient, slow, slow_patient, failures, .. } = self;
        for tasks in [urgent, rolls, patient, slow, slow_patient] {
            tasks.retain(|task, ()| at.contains_key(task));
        }
        failures.retain(|task, _| at.contains_key(task));
    }

    /// Whether the task is queued or being worked on.
    pub fn has(&self, task: &Task) -> bool {
        self.at.contains_key(task) || self.working.contains(task)
    }

    /// Whether the task is queued, even if it is also being worked on.
    pub fn is_queued(&self, task: &Task) -> bool {
        self.at.contains_key(task)
    }

    /// Whether the task is being worked on.
    pub fn is_working(&self, task: &Task) -> bool {
        self.working.contains(task)
    }

    /// When a queued task is due.
    #[cfg(test)]
    pub(crate) fn due(&self, task: &Task) -> Option<Timestamp> {
        self.at.get(task).copied()
    }

    /// How many workloads wait to be rolled.
    pub fn pending_rolls(&self) -> usize {
        self.at.keys().chain(&self.working).filter(|task| matches!(task, Task::Roll(_))).count()
    }
}

/// Whether another task of a namespace may be worked on. `working`: how many are; `own`: how many of the namespace.
fn may_work(working: usize, own: Option<&usize>) -> bool {
    own.copied().unwrap_or(0) < MAX_WORKING.saturating_sub(working)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        snapshot::{ObjectName, SourceKind},
        world::{Name, WorkloadKey},
    };

    fn task(name: &str) -> Task {
        Task::Read(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, name)))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn task_is_queued_once_at_its_earliest_time() {
        let mut queue = Queue::default();
        queue.schedule(task("a"), at(5));
        queue.schedule(task("a"), at(3));
        queue.schedule(task("a"), at(9));
        assert_eq!(queue.next(at(0)), Some(at(3)));
        assert_eq!(queue.pop(at(2), at(0)), None);
        assert_eq!(queue.pop(at(3), at(0)), Some(task("a")));
        assert_eq!(queue.pop(at(9), at(0)), None);
    }

    #[test]
    fn low_priority_tasks_wait_for_a_limited_time() {
        let step = |step| Task::Object(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, "s")), step);
        let [namespace, workload] = ["ns", "w"].map(std::sync::Arc::from);
        let roll = Task::Roll(WorkloadKey { kind: 0, namespace, name: workload });
        let steps = [ObjectStep::Bind, ObjectStep::Unbind, ObjectStep::Sweep].map(step);
        for patient in steps.into_iter().chain([Task::WriteEvent]) {
            for urgent in [task("a"), roll.clone()] {
                for (due, is_first) in [(1, false), (3, false), (4, true), (9, true)] {
                    for now in [9, 100] {
                        let mut queue = Queue::default();
                        queue.schedule(patient.clone(), at(1));
                        queue.schedule(urgent.clone(), at(due));
                        assert_eq!(queue.next(at(0)), Some(at(1)));
                        let [first, second] =
                            if is_first { [&patient, &urgent] } else { [&urgent, &patient] };
                        let case = format!("{patient:?} due at 1 s, {urgent:?} due at {due} s");
                        assert_eq!(queue.pop(at(now), at(0)).as_ref(), Some(first), "{case}");
                        assert_eq!(queue.pop(at(now), at(0)).as_ref(), Some(second), "{case}");
                        assert_eq!((queue.pop(at(now), at(0)), queue.next(at(0))), (None, None));
                    }
                }
            }
        }
    }

    #[test]
    fn slow_tasks_leave_room_for_others() {
        let object = |name: String, step| {
            Task::Object(Name::new("ns", ObjectName::new(SourceKind::ConfigMap, name)), step)
        };
        let mut queue = Queue::default();
        for number in 0..2 * MAX_SLOW {
            let step = if number % 2 == 0 { ObjectStep::Restore } else { ObjectStep::Unbind };
            queue.schedule(object(format!("s{number}"), step), at(1));
        }
        assert_eq!(queue.next(at(0)), Some(at(1)));
        queue.schedule(task("a"), at(2));
        let mut slow: Vec<_> = (0..=MAX_SLOW).map(|_| queue.pop(at(3), at(0)).unwrap()).collect();
        slow.retain(Task::is_slow);
        assert_eq!(slow.len(), MAX_SLOW);
        assert!(queue.is_working(&task("a")));
        assert_eq!((queue.pop(at(3), at(0)), queue.next(at(0))), (None, None));
        queue.done(&slow[0]);
        assert!(queue.pop(at(3), at(0)).is_some_and(|task| task.is_slow()));
        queue.failed(slow[1].clone(), at(3));
        assert!(queue.pop(at(3), at(0)).is_some());
    }

    /// Tasks of one tenant may take minutes.
    #[test]
    fn namespaces_leave_tasks_to_others() {
        let mut queue = Queue::default();
        let working = |queue: &mut Queue| std::iter::from_fn(|| queue.pop(at(2), at(0))).collect::<Vec<_>>();
        let mut taken = Vec::new();
        for namespace in ["a", "b", "c", "d", "e"] {
            for number in 0..MAX_WORKING {
                let object = ObjectName::new(SourceKind::ConfigMap, format!("s{number}"));
                queue.schedule(Task::Read(Name::new(namespace, object)), at(1));
            }
            taken.push(working(&mut queue));
            assert_eq!(queue.next(at(0)), None, "an end of a task wakes the loop");
        }
        assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1, 1]);
        // Two stay free, for two further namespaces.
        for task in &taken[0] {
            queue.done(task);
        }
        let next = working(&mut queue);
        let of =
            |name: &str| next.iter().filter(|task| task.namespace().is_some_and(|of| **of == *name)).count();
        assert_eq!(["a", "b", "c", "d", "e"].map(of), [2, 1, 1, 1, 1]);
    }

    /// Neither a backlog of urgent tasks nor one of low-priority tasks keeps the others from their turns.
    #[test]
    fn backlogs_of_both_priorities_share() {
        let mut queue = Queue::default();
        let step = |number| {
            let name = Name::new("ns", ObjectName::new(SourceKind::ConfigMap, format!("s{number}")));
            Task::Object(name, ObjectStep::Bind)
        };
        for number in 0..400 {
            queue.schedule(task(&format!("a{number}")), at(1));
            queue.schedule(step(number), at(2));
        }
        let mut patient = 0;
        for _ in 0..200 {
            let task = queue.pop(at(60), at(0)).unwrap();
            queue.done(&task);
            patient += usize::from(task.may_wait());
        }
        assert!((20..=25).contains(&patient), "{patient} of 200");
    }

    /// A step that fails pauses alone: the others go on.
    #[test]
    fn steps_of_an_object_run_one_by_one() {
        let object = Name::new("ns", ObjectName::new(SourceKind::ConfigMap, "s"));
        let first = Task::Object(object, ObjectStep::Bind);
        let steps: Vec<_> = std::iter::once(first.clone()).chain(first.other_steps()).collect();
        for (one, other) in steps.iter().flat_map(|one| one.other_steps().map(move |other| (one, other))) {
            for is_queued_later in [false, true] {
                let mut queue = Queue::default();
                queue.schedule(one.clone(), at(1));
                if !is_queued_later {
                    queue.schedule(other.clone(), at(1));
                }
                let popped = queue.pop(at(9), at(0)).unwrap();
                queue.schedule(other.clone(), at(2));
                queue.schedule(one.clone(), at(2));
                assert_eq!(
                    (queue.pop(at(9), at(0)), queue.next(at(0))),
                    (None, None),
                    "{popped:?} is under way"
                );
                let pause = queue.failed(popped.clone(), at(9));
                let waited = queue.pop(at(9), at(0)).unwrap();
                assert!(waited != popped && steps.contains(&waited), "{waited:?} waited for {popped:?}");
                queue.done(&waited);
                assert_eq!(queue.next(at(0)), Some(at(9) + pause));
                assert_eq!(queue.pop(at(99), at(0)), Some(popped));
            }
        }
    }

    /// They keep their place in the queue.
    #[test]
    fn rate_limited_rolls_do_not_delay_other_tasks() {
        let roll = |name: &str| {
            let [namespace, name] = ["ns", name].map(std::sync::Arc::from);
            Task::Roll(WorkloadKey { kind: 0, namespace, name })
        };
        let mut queue = Queue::default();
        queue.schedule(roll("b"), at(1));
        queue.schedule(roll("a"), at(2));
        queue.schedule(task("c"), at(3));
        assert_eq!(queue.next(at(5)), Some(at(3)));
        assert_eq!(queue.pop(at(4), at(5)), Some(task("c")));
        assert_eq!((queue.pop(at(4), at(5)), queue.next(at(5))), (None, Some(at(5))));
        queue.schedule(task("c"), at(0));
        queue.done(&task("c"));
        assert_eq!(queue.pop(at(5), at(5)), Some(task("c")), "the task that is due longest");
        assert_eq!(queue.pop(at(5), at(5)), Some(roll("b")), "the roll that is due longest");
        assert_eq!((queue.pop(at(5), at(6)), queue.next(at(6))), (None, Some(at(6))));
        assert_eq!((queue.pop(at(6), at(6)), queue.next(at(6))), (Some(roll("a")), None));
    }

    #[test]
    fn running_task_is_not_started_again() {
        let mut queue = Queue::default();
        queue.schedule(task("a"), at(1));
        assert!(queue.pop(at(1), at(0)).is_some());
        queue.schedule(task("a"), at(1));
        assert_eq!(queue.pop(at(1), at(0)), None);
        assert_eq!(queue.next(at(0)), None);
        queue.done(&task("a"));
        assert_eq!(queue.pop(at(1), at(0)), Some(task("a")));
    }

    /// The task was scheduled again while it ran.
    #[test]
    fn failed_task_backs_off_even_if_rescheduled() {
        let mut queue = Queue::default();
        queue.schedule(task("a"), at(1));
        let popped = queue.pop(at(1), at(0)).unwrap();
        queue.schedule(task("a"), at(1));
        let pause = queue.failed(popped, at(1));
        assert_eq!(queue.next(at(0)), Some(at(1) + pause));
        assert_eq!(queue.pop(at(1), at(0)), None);
    }

    #[test]
    fn backoff_is_limited_and_resets_after_success() {
        let mut queue = Queue::default();
        let mut pauses = Vec::new();
        for second in 0..10 {
            queue.schedule(task("a"), at(0));
            assert_eq!(
                queue.pop(at(second - 1), at(0)),
                None,
                "the task backs off even if it is scheduled again"
            );
            let popped = queue.pop(at(10_000 + second), at(0)).unwrap();
            pauses.push(queue.failed(popped, at(second)).as_millis());
        }
        assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
        assert_eq!(pauses[9], LONGEST_BACKOFF.as_millis());
        let popped = queue.pop(at(10_000), at(0)).unwrap();
        queue.done(&popped);
        queue.schedule(task("a"), at(0));
        let popped = queue.pop(at(0), at(0)).unwrap();
        assert_eq!(queue.failed(popped, at(0)), FIRST_BACKOFF);
    }
}
