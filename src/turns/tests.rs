//! Turns, lanes and bounds, as tables and against a plain model.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt as _;
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::server::Client;

/// Takes every item that is due, in turn.
fn drain(lanes: &mut BoundedLanes<char, u32, u32>, now: u32) -> Vec<(char, u32)> {
    std::iter::from_fn(|| lanes.pop(now).map(|ticket| (ticket.key, ticket.item))).collect()
}

fn bounded(each: usize, total: usize) -> BoundedLanes<char, u32, u32> {
    // The tens of an item are its rank.
    BoundedLanes::new(Bounds { each, total }, |item| u8::try_from(item / 10).unwrap())
}

#[test]
fn flood_delays_others_by_one_item() {
    let mut lanes = bounded(1000, 1000);
    for number in 0..9 {
        lanes.push(&'a', 1, number);
    }
    for (key, number) in [('b', 0), ('b', 1), ('c', 0)] {
        lanes.push(&key, 2, number);
    }
    let first: Vec<_> = drain(&mut lanes, 2).into_iter().take(6).collect();
    assert_eq!(first, [('a', 0), ('b', 0), ('c', 0), ('a', 1), ('b', 1), ('a', 2)]);
}

/// A key that has an item each time it is asked gets one turn of two, not all of them.
#[test]
fn key_that_returns_waits_for_another_turn() {
    let mut lanes = bounded(10, 10);
    for number in 0..3 {
        lanes.push(&'a', 1, number);
    }
    let mut order = String::new();
    for number in 0..6 {
        lanes.push(&'b', 1, number);
        order.extend(lanes.pop(1).map(|ticket| ticket.key));
    }
    assert_eq!(order, "ababab");
}

#[test]
fn removed_item_takes_no_turn_away() {
    let mut lanes = Lanes::default();
    for entry in [(1, "first"), (2, "second")] {
        lanes.insert(&'a', entry, ());
    }
    lanes.insert(&'b', (1, "other"), ());
    assert_eq!(lanes.first(5), Some((1, &(1, "first"))));
    assert_eq!(lanes.remove(&'a', &(1, "first")), Some(()));
    assert_eq!(lanes.remove(&'a', &(3, "unknown")), None);
    assert_eq!(lanes.first(5), Some((1, &(2, "second"))), "the key keeps its turn");
    lanes.insert(&'a', (9, "later"), ());
    lanes.remove(&'a', &(2, "second"));
    assert_eq!(lanes.first(5), Some((1, &(1, "other"))), "its next item is not due");
    assert_eq!((lanes.next(), lanes.len()), (Some(1), 2));
    lanes.remove(&'b', &(1, "other"));
    assert_eq!(lanes.first(5), None);
    assert_eq!(lanes.next(), Some(9));
    assert_eq!(lanes.pop(9), Some(('a', (9, "later"), ())));
    assert_eq!((lanes.next(), lanes.len()), (None, 0));
}

/// Its place among the keys of another queue shows since when a key waits for its turn, however old its items are.
#[test]
fn old_backlog_is_no_older_than_its_turn() {
    let mut lanes = Lanes::default();
    for number in 0..3 {
        lanes.insert(&'a', (1, number), ());
    }
    assert_eq!(lanes.first(50), Some((1, &(1, 0))));
    lanes.pop(50);
    assert_eq!(lanes.first(60), Some((50, &(1, 1))));
}

#[test]
fn failed_item_delays_its_own_key_alone() {
    let mut lanes = bounded(10, 10);
    for (key, number) in [('a', 0), ('a', 1), ('b', 0), ('b', 1)] {
        lanes.push(&key, 1, number);
    }
    let failed = lanes.pop(1).unwrap();
    assert_eq!((failed.key, failed.item), ('a', 0));
    lanes.put_back(failed, 7);
    assert_eq!(drain(&mut lanes, 6), [('b', 0), ('b', 1)]);
    assert_eq!(lanes.next(), Some(7));
    assert_eq!(drain(&mut lanes, 7), [('a', 0), ('a', 1)], "in their order");
}

#[test]
fn bounds_and_ranks_decide_what_is_dropped() {
    // The items that wait, the item that is added, what is dropped, and whose.
    type Case = (&'static str, &'static [(char, u32)], (char, u32), Option<u32>, Option<char>);
    let cases: [Case; 8] = [
        ("there is room", &[('a', 1)], ('a', 2), None, None),
        ("its key is full", &[('a', 1), ('a', 2), ('a', 3)], ('a', 4), Some(4), Some('a')),
        ("the lowest rank makes room", &[('a', 21), ('a', 12), ('a', 3)], ('a', 24), Some(3), Some('a')),
        ("the oldest of a rank makes room", &[('a', 11), ('a', 2), ('a', 3)], ('a', 14), Some(2), Some('a')),
        ("its own rank does not", &[('a', 11), ('a', 12), ('a', 13)], ('a', 14), Some(14), Some('a')),
        ("another key has most", &[('a', 11), ('a', 12), ('a', 3), ('b', 1)], ('b', 2), Some(3), Some('a')),
        ("of whatever rank", &[('a', 11), ('a', 12), ('a', 13), ('c', 1)], ('b', 2), Some(11), Some('a')),
        ("no key has more", &[('a', 1), ('a', 2), ('b', 1), ('b', 2)], ('b', 3), Some(3), Some('b')),
    ];
    for (case, waiting, (key, item), dropped, whose) in cases {
        let mut lanes = bounded(3, 4);
        for (key, item) in waiting {
            assert_eq!(lanes.push(key, 1, *item), None, "{case}");
        }
        assert_eq!(lanes.push(&key, 1, item), dropped, "{case}");
        let counted: Vec<_> = lanes.take_dropped().into_iter().collect();
        assert_eq!(counted, whose.map(|key| (key, 1)).into_iter().collect::<Vec<_>>(), "{case}");
        assert!(lanes.take_dropped().is_empty(), "{case}");
        let left = drain(&mut lanes, 1);
        assert_eq!(left.contains(&(key, item)), dropped != Some(item), "{case}: {left:?}");
    }
}

/// A step of the test against a model.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push { key: usize, after: u32 },
    Pop,
    PutBack { after: u32 },
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..4_usize, 0..5_u32).prop_map(|(key, after)| Step::Push { key: key * key / 4, after }),
        4 => Just(Step::Pop),
        1 => (1..5_u32).prop_map(|after| Step::PutBack { after }),
        2 => (0..4_u32).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// No item is lost without a count, early, or out of its key's order. A key with due items is passed over at most once
    /// by each other key before its turn. No bound is exceeded.
    #[test]
    fn items_come_in_turns_and_order(steps in prop::collection::vec(step(), 1..120)) {
        const EACH: usize = 5;
        const TOTAL: usize = 8;
        let mut lanes: BoundedLanes<usize, u32, u32> = BoundedLanes::new(Bounds { each: EACH, total: TOTAL }, |_| 0);
        // By key, the items that wait, with the time when each is due.
        let mut model: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
        let mut rests: BTreeMap<usize, u32> = BTreeMap::new();
        // How often each key had a turn since each key with due items waits.
        let mut passed: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        let (mut now, mut number, mut dropped, mut last) = (0, 0, 0, None);
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Push { key, after } => {
                    number += 1;
                    model.entry(key).or_default().push((now + after, number));
                    if let Some(lost) = lanes.push(&key, now + after, number) {
                        dropped += 1;
                        for (key, items) in &mut model {
                            let before = items.len();
                            items.retain(|(_, number)| *number != lost);
                            // If its next item is due later, it loses its turn.
                            if items.len() < before {
                                passed.remove(key);
                            }
                        }
                    }
                }
                Step::PutBack { after } => if let Some((ticket, at)) = last.take() {
                    let ticket: Ticket<usize, u32, u32> = ticket;
                    model.entry(ticket.key).or_default().push((at, ticket.item));
                    rests.insert(ticket.key, now + after);
                    // It loses its turn.
                    passed.remove(&ticket.key);
                    lanes.put_back(ticket, now + after);
                },
                Step::Pop => {
                    let is_due = |key: &usize, items: &[(u32, u32)]| {
                        rests.get(key).is_none_or(|until| *until <= now) && items.iter().any(|(at, _)| *at <= now)
                    };
                    let due: Vec<_> =
                        model.iter().filter(|(key, items)| is_due(key, items)).map(|(key, _)| *key).collect();
                    let Some(ticket) = lanes.pop(now) else {
                        prop_assert!(due.is_empty(), "{due:?}");
                        continue;
                    };
                    prop_assert!(due.contains(&ticket.key), "{} of {due:?}", ticket.key);
                    let items = model.get_mut(&ticket.key).unwrap();
                    let first = *items.iter().min().unwrap();
                    prop_assert_eq!(first.1, ticket.item);
                    items.retain(|item| *item != first);
                    if items.is_empty() {
                        rests.remove(&ticket.key);
                    }
                    passed.retain(|key, _| due.contains(key));
                    passed.remove(&ticket.key);
                    for key in due.into_iter().filter(|key| *key != ticket.key) {
                        let times = passed.entry(key).or_default().entry(ticket.key).or_default();
                        *times += 1;
                        prop_assert!(*times <= 2, "{} came twice before {key}", ticket.key);
                    }
                    last = Some((ticket, first.0));
                }
            }
            model.retain(|_, items| !items.is_empty());
            rests.retain(|key, _| model.contains_key(key));
            prop_assert_eq!(lanes.len(), model.values().map(Vec::len).sum::<usize>());
            prop_assert!(lanes.len() <= TOTAL + 1, "an item that was put back may exceed the bound by one");
        }
        prop_assert_eq!(lanes.take_dropped().values().sum::<u64>(), dropped);
    }
}

fn address(last: u8) -> Client {
    Client::new([10, 0, 0, last].into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(4)
}

#[tokio::test(start_paused = true)]
async fn clients_leave_a_place_to_others() {
    for (places, of_namespace, of_address) in [(1, 1, 1), (2, 1, 1), (4, 2, 3), (8, 6, 7)] {
        let free = Places::new(places);
        let take = |client: Client| {
            let free = free.clone();
            async move { free.take(&client, Instant::now()).await }
        };
        let mut taken = Vec::new();
        for (name, most) in [("one", of_namespace), ("two", of_address - of_namespace)] {
            let client = address(1).of_namespace(name);
            for number in 0..=most {
                let place = take(client.clone()).await;
                assert_eq!(place.is_some(), number < most, "{number} of {name}, of {places} places");
                taken.extend(place);
            }
        }
        let other = take(address(2).of_namespace("one")).await;
        assert_eq!(other.is_some(), places > of_address, "of {places} places");
        drop((taken, other));
        assert!(take(address(3)).await.is_some(), "all places are free again");
    }
}

/// Requests that wait for the one place, and those that gave up.
#[tokio::test(start_paused = true)]
async fn addresses_and_namespaces_take_turns_with_places() {
    let places = Places::new(1);
    let held = places.take(&address(9), soon()).await;
    let mut waiting = Vec::new();
    for (host, namespace) in [(1, "a"), (1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "a")] {
        let client = address(host).of_namespace(namespace);
        let mut request = Box::pin({
            let (places, client) = (places.clone(), client);
            async move { places.take(&client, soon()).await.map(|_place| format!("{host}{namespace}")) }
        });
        assert!((&mut request).now_or_never().is_none(), "it waits");
        waiting.push(request);
    }
    // The second request of the first namespace gives up.
    drop(waiting.remove(1));
    drop(held);
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let (served, _, rest) = futures::future::select_all(waiting).await;
        order.extend(served);
        waiting = rest;
    }
    assert_eq!(order, ["1a", "2a", "1b", "2a", "1a"]);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_bound_are_refused_at_once() {
    let places = Places::new(1);
    let held = places.take(&address(9), soon()).await;
    let mut waiting = Vec::new();
    let refused = (0..40).filter(|_| {
        let places = places.clone();
        let mut request =
            Box::pin(async move { places.take(&address(1).of_namespace("a"), soon()).await.is_some() });
        let ended = (&mut request).now_or_never();
        waiting.push(request);
        ended == Some(false)
    });
    assert_eq!(refused.count(), 8);
    drop(held);
    drop(waiting);
    assert!(places.take(&address(1).of_namespace("a"), soon()).await.is_some(), "the others gave up");
}
