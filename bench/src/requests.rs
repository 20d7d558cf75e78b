//! Requests to the API server by verb, beside the least that can do the same, which is counted by hand in
//! docs/performance.md.

use std::collections::BTreeSet;

use confrev_controlplane::Request;

use crate::row::{Reach, Row};
use crate::site::Requests;
use crate::stats::quantile;

/// Between two renewals of the Lease, in seconds.
const RENEWAL: f64 = 3.0;
/// Between two looks at the authority's Secret and at both webhook configurations, in seconds.
const LOOK: f64 = 60.0;
/// How long a watch lasts, in seconds.
const WATCH: f64 = 290.0;
/// Objects in one page of a list.
const PAGE: f64 = 100.0;
/// The watches that there are without any workload: of 6 kinds of workloads, of 3 kinds of revisions, of snapshots, of
/// labelled ConfigMaps, of namespaces, of both kinds of webhook configurations, and of the authority's Secret.
const WATCHES: f64 = 15.0;

/// What is asked for.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A change of one ConfigMap with so many workloads.
    Change { workloads: f64 },
    /// A start beside lists of so many objects.
    Restart { lists: Vec<f64>, sources: f64 },
    /// So many seconds in which nothing happens.
    Rest { seconds: f64 },
}

impl Kind {
    /// The least by verb.
    fn least(&self) -> Requests {
        let of =
            |verbs: &[(&str, f64)]| verbs.iter().map(|(verb, count)| ((*verb).to_owned(), *count)).collect();
        match self {
            Self::Change { workloads } => {
                of(&[("get", 1.0 + 2.0 * workloads), ("create", 2.0 + workloads), ("patch", 1.0 + workloads)])
            }
            Self::Restart { lists, sources } => {
                // Where the last page is full, the API server says that there may be more.
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
            // With few, the bindings count that come one by one, as the ReplicaSets do.
            Self::Change { workloads } if *workloads < 100.0 => Reach::Read,
            _ => Reach::Times(1.2),
        }
    }
}

/// Whether a request counts as confrev's work: the Lease is renewed all the time, and a watch's end is no request.
pub(crate) fn is_counted(request: &Request) -> bool {
    request.resource != "leases" && !request.ended
}

/// The middle of each verb.
pub(crate) fn middle<'a>(all: impl Iterator<Item = &'a Requests>) -> Requests {
    let all: Vec<_> = all.collect();
    let verbs: BTreeSet<_> = all.iter().flat_map(|requests| requests.keys()).collect();
    let count = |verb: &String| all.iter().map(|of| of.get(verb).copied().unwrap_or(0.0)).collect::<Vec<_>>();
    verbs.into_iter().map(|verb| (verb.clone(), quantile(&count(verb), 0.5))).collect()
}

/// All of them. (The sum of nothing would be a negative zero.)
pub(crate) fn sum(requests: &Requests) -> f64 {
    requests.values().fold(0.0, |sum, count| sum + count)
}

/// The rows: all together, and each verb for reading.
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
    fn the_middle_of_each_verb_counts_those_that_were_not_asked_as_none() {
        let of = |get: f64, list: Option<f64>| {
            let list = list.map(|list| ("list".to_owned(), list));
            [("get".to_owned(), get)].into_iter().chain(list).collect::<Requests>()
        };
        let all = [of(1.0, None), of(3.0, None), of(2.0, Some(5.0))];
        assert_eq!(middle(all.iter()), of(2.0, Some(0.0)));
    }
}
