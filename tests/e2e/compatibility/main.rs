//! The end-to-end tests of other projects, on two real nodes: once without confrev, and once with confrev in force for every
//! namespace that they create. The same tests must pass.
//!
//! `make compatibility` runs this suite as root. Under `make test`, all of its tests are ignored. `docs/evidence/compatibility.md` has
//! the results.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod argo;
mod argo_controller;
mod helm;
mod images;
mod in_force;
mod kubernetes;
mod kustomize;
mod results;
