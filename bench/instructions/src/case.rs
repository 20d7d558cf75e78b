//! Counts one case, and its baseline.

use std::hint::black_box;

use serde_json::Value;

/// The only function that is counted: the counter runs during its calls, and writes its count at the end of each.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) -> bool {
    work();
    // Prevents a tail call, after which callgrind would not see the end of this function.
    black_box(true)
}

/// Counts a parse of `texts` into trees, then `work`, and prints a line with the name and the size. `size` is the value
/// that the case varies.
pub(crate) fn case<T>(name: &str, size: usize, texts: &[&[u8]], work: impl FnOnce() -> T) {
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
