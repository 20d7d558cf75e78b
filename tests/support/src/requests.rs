//! What an API server has measured of its own requests.

use std::collections::BTreeMap;
use std::fmt;

use confrev_controlplane::ControlPlane;

/// The requests that an API server has answered since it started, without those that last.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// By verb and resource.
    counts: BTreeMap<String, Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    /// Those that took no more than a second.
    in_time: u64,
}

impl Requests {
    /// The requests until now.
    pub fn of(cluster: &ControlPlane) -> Self {
        let (_, metrics) = cluster.api().get("/metrics");
        let mut requests = Self::default();
        for line in metrics.as_str().expect("metrics are text").lines() {
            let Some(bucket) = line.strip_prefix("apiserver_request_duration_seconds_bucket{") else {
                continue;
            };
            let Some((labels, count)) = bucket.rsplit_once("} ") else { continue };
            let label = |name: &str| {
                let value = labels.split_once(&format!("{name}=\""))?.1;
                Some(value.split_once('"')?.0)
            };
            let verb = label("verb").unwrap_or_default();
            if ["WATCH", "CONNECT"].contains(&verb) {
                continue;
            }
            // A large count has an exponent.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let count = count.parse::<f64>().expect("a count") as u64;
            let resource = [label("resource"), label("subresource")].map(Option::unwrap_or_default).join("/");
            let of = requests.counts.entry(format!("{verb} {}", resource.trim_end_matches('/'))).or_default();
            match label(",le") {
                Some("+Inf") => of.all += count,
                Some("1") => of.in_time += count,
                _ => {}
            }
        }
        requests
    }

    /// Those after the earlier ones.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.counts {
            let before = before.counts.get(name).copied().unwrap_or_default();
            count.all = count.all.saturating_sub(before.all);
            count.in_time = count.in_time.saturating_sub(before.in_time);
        }
        self
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = |count: &Count| count.all.saturating_sub(count.in_time);
        let all: u64 = self.counts.values().map(|count| count.all).sum();
        let sum: u64 = self.counts.values().map(late).sum();
        write!(f, "{sum} of {all} requests to the API server took more than a second")?;
        let mut slow: Vec<_> = self.counts.iter().filter(|(_, count)| late(count) > 0).collect();
        slow.sort_by_key(|(_, count)| std::cmp::Reverse(late(count)));
        for (index, (name, count)) in slow.iter().take(8).enumerate() {
            write!(f, "{}{} of {} {name}", if index == 0 { ": " } else { ", " }, late(count), count.all)?;
        }
        Ok(())
    }
}
