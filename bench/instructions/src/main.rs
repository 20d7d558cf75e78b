//! Runs every case once, each beside its baseline, for `callgrind` to count: see `tests/instructions.rs`.
#![allow(clippy::expect_used, reason = "to panic is how a case fails")]

mod cases;
mod decide;
mod objects;

use std::hint::black_box;

use serde_json::Value;

/// What is counted, and nothing else: the counter runs while this function does, and writes down its count at the end.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) -> bool {
    work();
    // So that the call above is no jump, after which this function would not be seen to end.
    black_box(true)
}

/// Counts parsing `texts` into trees, then `work`, and says so by a line of output. `size` is what the case varies.
fn case<T>(name: &str, size: usize, texts: &[&[u8]], work: impl FnOnce() -> T) {
    let mut trees: Vec<Value> = Vec::with_capacity(texts.len());
    counted(&mut || {
        trees.extend(texts.iter().map(|text| serde_json::from_slice::<Value>(text).unwrap_or_default()));
    });
    drop(black_box(trees));
    let (mut work, mut done) = (Some(work), None);
    counted(&mut || done = work.take().map(|work| work()));
    black_box(done);
    println!("{name} {size}");
}

fn main() {
    cases::decisions();
    cases::parts();
}
