//! A queue in which namespaces take turns: a namespace with thousands of tasks does not delay those of others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;

use super::task::{Task, Tasks};

/// Tasks by namespace. Namespaces whose first task is due take turns; within a namespace, the task that is due longest comes
/// first. Every operation takes logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    namespaces: HashMap<Arc<str>, Lane>,
    /// The namespaces with a due task, by turn.
    due: BTreeMap<u64, Arc<str>>,
    /// The other namespaces, by the time of their first task.
    later: BTreeSet<(Timestamp, Arc<str>)>,
    /// The number of turns that were assigned so far.
    turns: u64,
}

/// The tasks of one namespace; never empty.
#[derive(Debug)]
struct Lane {
    tasks: Tasks,
    place: Place,
}

/// The place of a namespace among the others.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Its turn in `due`.
    Due(u64),
    /// Its time in `later`.
    Later(Timestamp),
}

impl Lanes {
    /// Adds a task.
    pub(crate) fn insert(&mut self, entry: (Timestamp, Task)) {
        let Some(namespace) = entry.1.namespace().cloned() else { return };
        let at = entry.0;
        if let Some(lane) = self.namespaces.get_mut(&namespace) {
            lane.tasks.insert(entry);
            // A due namespace keeps its turn.
            if let Place::Later(known) = lane.place
                && at < known
            {
                lane.place = Place::Later(at);
                self.later.remove(&(known, Arc::clone(&namespace)));
                self.later.insert((at, namespace));
            }
        } else {
            self.later.insert((at, Arc::clone(&namespace)));
            self.namespaces.insert(namespace, Lane { tasks: Tasks::from([entry]), place: Place::Later(at) });
        }
    }

    /// Removes a task.
    pub(crate) fn remove(&mut self, entry: &(Timestamp, Task)) {
        let Some(namespace) = entry.1.namespace() else { return };
        let Some(lane) = self.namespaces.get_mut(namespace) else { return };
        let was_first = lane.tasks.first() == Some(entry);
        if lane.tasks.remove(entry) && was_first {
            let namespace = Arc::clone(namespace);
            self.leave_place(&namespace);
            self.wait(&namespace);
        }
    }

    /// The task whose turn it is, if any is due by `now`.
    pub(crate) fn first_due(&mut self, now: Timestamp) -> Option<&(Timestamp, Task)> {
        while let Some((at, namespace)) = self.later.first()
            && *at <= now
        {
            let namespace = Arc::clone(namespace);
            self.leave_place(&namespace);
            self.take_turn(&namespace);
        }
        let (_, namespace) = self.due.first_key_value()?;
        self.namespaces.get(namespace)?.tasks.first().filter(|(at, _)| *at <= now)
    }

    /// Removes a task that [`Lanes::first_due`] returned for this `now`. Its namespace waits for another turn.
    pub(crate) fn pop(&mut self, entry: &(Timestamp, Task), now: Timestamp) {
        let Some(namespace) = entry.1.namespace() else { return };
        let Some(lane) = self.namespaces.get_mut(namespace) else { return };
        lane.tasks.remove(entry);
        let is_due = lane.tasks.first().is_some_and(|(at, _)| *at <= now);
        let namespace = Arc::clone(namespace);
        self.leave_place(&namespace);
        if is_due {
            self.take_turn(&namespace);
        } else {
            self.wait(&namespace);
        }
    }

    /// When the next task is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let due = self
            .due
            .first_key_value()
            .and_then(|(_, namespace)| self.namespaces.get(namespace)?.tasks.first());
        let later = self.later.first().map(|(at, _)| *at);
        due.map(|(at, _)| *at).into_iter().chain(later).min()
    }

    /// Removes every task that is not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Task) -> bool) {
        let lanes = std::mem::take(&mut self.namespaces);
        self.due.clear();
        self.later.clear();
        let tasks = lanes.into_values().flat_map(|lane| lane.tasks);
        for entry in tasks.filter(|(_, task)| keep(task)) {
            self.insert(entry);
        }
    }

    /// Takes the namespace out of `due` and `later`.
    fn leave_place(&mut self, namespace: &Arc<str>) {
        match self.namespaces.get(namespace).map(|lane| lane.place) {
            Some(Place::Due(turn)) => {
                self.due.remove(&turn);
            }
            Some(Place::Later(at)) => {
                self.later.remove(&(at, Arc::clone(namespace)));
            }
            None => {}
        }
    }

    /// Assigns the next turn to a namespace without a place.
    fn take_turn(&mut self, namespace: &Arc<str>) {
        if let Some(lane) = self.namespaces.get_mut(namespace) {
            self.turns += 1;
            lane.place = Place::Due(self.turns);
            self.due.insert(self.turns, Arc::clone(namespace));
        }
    }

    /// Lets a namespace without a place wait for its first task, or forgets it if it has none.
    fn wait(&mut self, namespace: &Arc<str>) {
        let Some(lane) = self.namespaces.get_mut(namespace) else { return };
        let Some((at, _)) = lane.tasks.first() else {
            self.namespaces.remove(namespace);
            return;
        };
        lane.place = Place::Later(*at);
        self.later.insert((*at, Arc::clone(namespace)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{name::Name, queue::ObjectStep},
        snapshot::{ObjectName, SourceKind},
    };

    #[test]
    fn cancelled_task_takes_no_turn_away() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let entry = |second, namespace: &str, name: &str| {
            let object = Name::new(namespace, ObjectName::new(SourceKind::ConfigMap, name));
            (at(second), Task::Object(object, ObjectStep::Restore))
        };
        let (first, second, other) = (entry(1, "a", "1"), entry(2, "a", "2"), entry(1, "b", "1"));
        let mut lanes = Lanes::default();
        for entry in [&first, &second, &other] {
            lanes.insert(entry.clone());
        }
        assert_eq!(lanes.first_due(at(5)), Some(&first));
        lanes.remove(&second);
        lanes.remove(&entry(3, "a", "1"));
        assert_eq!(lanes.first_due(at(5)), Some(&first), "both namespaces are due, and it is the turn of a");
        lanes.remove(&first);
        assert_eq!(lanes.first_due(at(5)), Some(&other));
        lanes.remove(&other);
        assert_eq!(lanes.first_due(at(5)), None);
        assert_eq!(lanes.next(), None);
    }
}
