//! The controller and admission, without a cluster. The tests of the decision itself are in `core/tests`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

mod actions;
mod admission_rounds;
mod analyses;
mod analysis_runs;
mod api_server;
mod bind_mode;
mod bind_mode_deletions;
mod bind_mode_first_owner;
mod bind_mode_owners;
mod controller;
mod corpus;
mod event_orders;
mod events;
mod fuzz_properties;
mod generated_sources;
mod groups;
mod health;
mod keep;
mod leader_election;
mod lint;
mod live_sources;
mod many_owners;
mod min_interval;
mod notifications;
mod partial_watches;
mod reference_limits;
mod retries;
mod reverts;
mod reviewer;
mod roll_queue;
mod roll_rate;
mod rotated_config_maps;
mod schema_limits;
mod schemas;
mod secret_digests;
mod site;
mod snapshot_bytes;
mod state_metrics;
mod terminating_objects;
mod turns;
mod unanswered_reviews;
mod undo_owners;
mod waves;
mod windows_and_sets;
mod wrong_inputs;

use confrev_core_test_support::{story, world};
use confrev_test_support::workload_corpus;
