//! Real deployment tools on a real API server: kubectl with all its ways to apply, kustomize, helm, and the server-side
//! dry-run that shows GitOps tools the drift. Also the corpus of third-party workloads on the same API server.
//!
//! The confrev of these tests is that of `tests/e2e/kinds`: Secrets are on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../../repository/blocks.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod blocks;
#[path = "../../unit/documents.rs"]
mod documents;
#[path = "../chart/helm.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod helm;
#[path = "../kinds/setup.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod kinds;
#[path = "../kinds/load.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod load;
#[path = "../core/manifests.rs"]
mod manifests;
#[path = "../core/shared.rs"]
#[expect(dead_code, reason = "no test here stops confrev")]
mod shared;
#[path = "../core/world.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod world;

mod cast;
mod drift;
mod page;
#[expect(dead_code, reason = "some of it serves the tests of the chart")]
mod reader;
mod setup;
mod tools;

mod again;
mod by_hand;
mod corpus;
mod examples;
mod gitops;
mod migrating;
mod named_anew;
mod pages;
mod recording;
