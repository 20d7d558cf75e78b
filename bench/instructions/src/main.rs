//! Runs every case once, each with its baseline, under `callgrind`: see `tests/instructions.rs`.
#![allow(clippy::expect_used, reason = "to panic is how a case fails")]

mod case;
mod cases;
mod decide;
mod objects;
mod spread;

fn main() {
    cases::decisions();
    cases::parts();
    spread::waves();
}
