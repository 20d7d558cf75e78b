//! Every scenario with replicas that know only a part of each namespace: every promise holds at each rest.

use confrev::world::ShareLimits;

use super::{Run, Scenario, recorded, run_sharing, side_by_side};

/// No revision is known, one or two are, and all but some are.
const REVISIONS: [usize; 3] = [0, 1500, 5000];

fn held(scenario: &Scenario, revisions: usize) -> Result<(), String> {
    let shares = ShareLimits { revisions, ..ShareLimits::default() };
    let Run { outcome, .. } = run_sharing(scenario, &[], None, shares);
    outcome.map_err(|broken| format!("{} with {revisions} bytes of revisions: {broken}", scenario.name))
}

#[test]
fn every_promise_holds_in_partly_known_namespaces() {
    let all: Vec<_> = recorded()
        .iter()
        .flat_map(|recorded| REVISIONS.map(|revisions| (recorded.scenario, revisions)))
        .collect();
    let broken: Vec<_> = side_by_side(&all, |(scenario, revisions)| held(scenario, *revisions))
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(broken.is_empty(), "{} of {}: {broken:#?}", broken.len(), all.len());
}
