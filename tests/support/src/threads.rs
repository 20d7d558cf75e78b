//! The same steps for several items at once.

use std::thread;

/// Runs `body` for each item in a thread of its own, with the item's name: a panic's message begins with it. Returns the results
/// in the order of the items.
///
/// # Panics
/// If `body` panics for an item, after it has ended for all others.
pub fn in_threads<T: Send, R: Send>(
    items: impl IntoIterator<Item = (String, T)>,
    body: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let start = |(name, item)| {
            let body = &body;
            let named = thread::Builder::new().name(name);
            named.spawn_scoped(scope, move || body(item)).expect("a thread can be started")
        };
        let threads: Vec<_> = items.into_iter().map(start).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().expect("the thread's panic gives the reason"));
        ended.collect()
    })
}
