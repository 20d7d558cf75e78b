//! The dashboard in a real browser: headless Chromium shows the pages of a real control plane, while the canary story runs.
//!
//! The tests judge by what a person sees: text, buttons, and whether they can be used. axe-core checks that all users can use each
//! page.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod attacks;
mod axe;
mod browser;
mod many;
mod means;
mod namespaces;
mod page;
mod pictures;
mod replaced;
mod report;
mod rights;
mod secrets;
mod shared;
mod states;
mod story;
mod waves;

use confrev_test_support::{chart_setup, manifests, world};
