//! Properties that hold for any bytes, from any sender. The fuzz targets check them for hours, the tests for a second.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a broken property panics, which the fuzzer detects"
)]

pub mod annotations;
pub mod digest;
pub mod review;
pub mod seeds;
pub mod template;
pub mod world;
