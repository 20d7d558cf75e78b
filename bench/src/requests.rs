//! Requests to the API server by verb, compared with the minimum for the same result. docs/evidence/performance.md derives that
//! minimum.

use std::collections::BTreeSet;

use confrev_controlplane::Request;

use crate::environment::Requests;
use crate::row::{Reach, Row};
use crate::stats::quantile;

/// The interval of the Lease's renewals, in seconds.
const RENEWAL: f64 = 2.0;
/// The interval of the checks of the CA's Secret and of both webhook configurations, in seconds.
const LOOK: f64 = 60.0;
/// The duration of a watch, in seconds: each ends after a minute, so that a dead one is noticed.
const WATCH: f64 = 60.0;
/// The number of objects in one page of a list.
const PAGE: f64 = 100.0;
/// The watches without any workload: of 6 kinds of workloads, of 3 kinds of revisions, of snapshots, of labelled
/// ConfigMaps, of namespaces, of both kinds of webhook configurations, and of the CA's Secret.
const WATCHES: f64 = 15.0;

/// The cause of the requests.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A change of one ConfigMap with `workloads` workloads.
    Change { workloads: f64 },
    /// A start with lists of these lengths.
    Restart { lists: Vec<f64>, sources: f64 },
    /// A time of `seconds` seconds without any change.
    Rest { seconds: f64 },
}

impl Kind {
    /// The minimum by verb.
    fn least(&self) -> Requests {
        let of =
            |verbs: &[(&str, f64)]| verbs.iter().map(|(verb, count)| ((*verb).to_owned(), *count)).collect();
        match self {
            Self::Change { workloads } => {
                of(&[("get", 1.0 + 2.0 * workloads), ("create", 2.0 + workloads), ("patch", 1.0 + workloads)])
            }
            Self::Restart { lists, sources } => {
                // If the last page is full, the API server reports that there may be more.
                let more: f64 = lists.iter().map(|objects| (objects / PAGE).floor()).sum();
                of(&[("list", WATCHES + 1.0 + more), ("watch", WATCHES + 1.0), ("get", 3.0 + sources)])
            }
            Self::Rest { seconds } => of(&[
                ("update", seconds / RENEWAL),
                ("get", (seconds / LOOK).floor() * 3.0),
                ("watch", (seconds / WATCH).floor() * (WATCHES + 1.0)),
            ]),
        }
    }

    fn reach(&self) -> Reach {
        match self {
            // With few workloads, snapshots are bound one by one as the ReplicaSets appear, which weighs more.
            Self::Change { workloads } if *workloads < 100.0 => Reach::Read,
            _ => Reach::Times(1.2),
        }
    }
}

/// Whether a request counts as confrev's work. Renewals of the Lease do not, and neither do the log entries for the
/// ends of watches.
pub(crate) fn is_counted(request: &Request) -> bool {
    request.resource != "leases" && !request.ended
}

/// The median for each verb.
pub(crate) fn middle<'a>(all: impl Iterator<Item = &'a Requests>) -> Requests {
    let all: Vec<_> = all.collect();
    let verbs: BTreeSet<_> = all.iter().flat_map(|requests| requests.keys()).collect();
    let count = |verb: &String| all.iter().map(|of| of.get(verb).copied().unwrap_or(0.0)).collect::<Vec<_>>();
    verbs.into_iter().map(|verb| (verb.clone(), quantile(&count(verb), 0.5))).collect()
}

/// The sum of all verbs. (`Iterator::sum` of nothing would be negative zero.)
pub(crate) fn sum(requests: &Requests) -> f64 {
    requests.values().fold(0.0, |sum, count| sum + count)
}

/// The rows: the total, and each verb for information.
pub(crate) fn rows(what: &str, asked: &Requests, kind: &Kind) -> Vec<Row> {
    let least = kind.least();
    let row = |verb: &str, asked: f64, least: f64, reach| {
        Row::new(format!("API requests of {what}{verb}"), "requests", asked, least, reach)
    };
    let mut rows = vec![row("", sum(asked), sum(&least), kind.reach())];
    let verbs: BTreeSet<_> = asked.keys().chain(least.keys()).collect();
    rows.extend(verbs.into_iter().map(|verb| {
        let count = |of: &Requests| of.get(verb).copied().unwrap_or(0.0);
        row(&format!(", {verb}"), count(asked), count(&least), Reach::Read)
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_counts_missing_verbs_as_zero() {
        let of = |get: f64, list: Option<f64>| {
            let list = list.map(|list| ("list".to_owned(), list));
            [("get".to_owned(), get)].into_iter().chain(list).collect::<Requests>()
        };
        let all = [of(1.0, None), of(3.0, None), of(2.0, Some(5.0))];
        assert_eq!(middle(all.iter()), of(2.0, Some(0.0)));
    }
}
