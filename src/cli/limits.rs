//! The options of `serve` that limit what clients may use. Each limit for all requests together is shared fairly
//! between source addresses and namespaces.

use std::time::Duration;

use clap::{Args, builder::RangedU64ValueParser};

use super::duration::positive_duration;
use crate::{admission::ReviewLimits, budget, server::ServerLimits};

/// One MiB.
const MIB: usize = 1 << 20;

/// The options. Each default is that of the part that it limits.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitOptions {
    /// MiB of one request's body; a larger body is answered with 413.
    #[arg(long, env = "CONFREV_MAX_BODY", default_value_t = ReviewLimits::default().body / MIB,
          value_name = "MIB", value_parser = count_up_to(1024))]
    max_body: usize,
    /// MiB of all bodies at once; further requests wait, and are answered with 503 at their deadline.
    #[arg(long, env = "CONFREV_MAX_BODIES", default_value_t = ReviewLimits::default().bodies / MIB,
          value_name = "MIB", value_parser = count_up_to(65536))]
    max_bodies: usize,
    /// MiB of all requests at once: bodies, what they are parsed into, answers, and objects that are read; further requests wait, as
    /// for --max-bodies.
    #[arg(long, env = "CONFREV_MAX_REVIEW_MEMORY", default_value_t = ReviewLimits::default().memory / MIB,
          value_name = "MIB", value_parser = count_up_to(65536))]
    max_review_memory: usize,
    /// Concurrent checks of schemas; further checks wait. Each may use 27 MiB.
    #[arg(long, env = "CONFREV_MAX_CHECKS", default_value_t = budget::CHECKS,
          value_name = "COUNT", value_parser = count_up_to(1000))]
    max_checks: usize,
    /// Concurrent decisions; further requests wait, and are answered with 503 at their deadline.
    #[arg(long, env = "CONFREV_MAX_DECISIONS", default_value_t = ReviewLimits::default().decisions,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_decisions: usize,
    /// Concurrent calls to the API server, for all requests; further calls wait.
    #[arg(long, env = "CONFREV_MAX_CALLS", default_value_t = ReviewLimits::default().calls,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_calls: usize,
    /// The most objects to read for one workload; beyond that, the workload is refused. A stored object that refers
    /// to more names is skipped.
    #[arg(long, env = "CONFREV_MAX_READS", default_value_t = ReviewLimits::default().reads,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_reads: usize,
    /// MiB of the objects that are read for all requests at once; beyond that, a request must be retried. One
    /// workload may need half.
    #[arg(long, env = "CONFREV_MAX_READ_BYTES", default_value_t = ReviewLimits::default().read_bytes / MIB,
          value_name = "MIB", value_parser = count_up_to(65536))]
    max_read_bytes: usize,
    /// Snapshots of one source; beyond this limit, new content gets a snapshot only once a workload resolves to it.
    #[arg(long, env = "CONFREV_MAX_SNAPSHOTS", default_value_t = ReviewLimits::default().snapshots,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_snapshots: usize,
    /// MiB of the unused snapshots of one source; beyond this limit, the oldest are deleted, whatever its annotation keep
    /// says. The newest one always stays.
    #[arg(long, env = "CONFREV_MAX_SNAPSHOT_BYTES", default_value_t = 16,
          value_name = "MIB", value_parser = count_up_to(65536))]
    max_snapshot_bytes: usize,
    /// Open connections; beyond this limit, a new connection replaces an idle one.
    #[arg(long, env = "CONFREV_MAX_CONNECTIONS", default_value_t = ServerLimits::default().connections,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_connections: usize,
    /// Open connections from one source address; beyond this limit, a new connection replaces an idle one of that address, or
    /// is closed.
    #[arg(long, env = "CONFREV_MAX_CONNECTIONS_PER_ADDRESS",
          default_value_t = ServerLimits::default().connections_per_address,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_connections_per_address: usize,
    /// Concurrent requests; further requests are answered with 503.
    #[arg(long, env = "CONFREV_MAX_REQUESTS", default_value_t = ServerLimits::default().requests,
          value_name = "COUNT", value_parser = count_up_to(1_000_000))]
    max_requests: usize,
    /// The timeout of a TLS handshake.
    #[arg(long, env = "CONFREV_HANDSHAKE_TIMEOUT", default_value = "5s", value_name = "DURATION",
          value_parser = positive_duration)]
    handshake_timeout: Duration,
    /// The timeout of a request's head, from its first byte.
    #[arg(long, env = "CONFREV_HEADER_TIMEOUT", default_value = "5s", value_name = "DURATION",
          value_parser = positive_duration)]
    header_timeout: Duration,
    /// The timeout of a request, from the first byte of its head to its answer. A review also ends before the timeout
    /// of its webhook.
    #[arg(long, env = "CONFREV_REQUEST_TIMEOUT", default_value = "10s", value_name = "DURATION",
          value_parser = positive_duration)]
    request_timeout: Duration,
}

/// A count from 1 to `max`.
fn count_up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

impl LimitOptions {
    /// The limits of reviews.
    pub(super) fn of_reviews(&self) -> ReviewLimits {
        ReviewLimits {
            body: self.max_body * MIB,
            bodies: self.max_bodies * MIB,
            memory: self.max_review_memory * MIB,
            decisions: self.max_decisions,
            calls: self.max_calls,
            reads: self.max_reads,
            read_bytes: self.max_read_bytes * MIB,
            snapshots: self.max_snapshots,
            review: self.request_timeout,
        }
    }

    /// The most bytes of a source's unused snapshots.
    pub(super) fn snapshot_bytes(&self) -> u64 {
        (self.max_snapshot_bytes as u64) << 20
    }

    /// The checks of schemas at once.
    pub(super) fn checks(&self) -> usize {
        self.max_checks
    }

    /// The limits of connections.
    pub(super) fn of_connections(&self) -> ServerLimits {
        ServerLimits {
            connections: self.max_connections,
            connections_per_address: self.max_connections_per_address,
            requests: self.max_requests,
            handshake: self.handshake_timeout,
            header: self.header_timeout,
            request: self.request_timeout,
            ..ServerLimits::default()
        }
    }

    /// The limits of connections to the admin port, which few clients use: an eighth of those of admission.
    pub(super) fn of_admin(&self) -> ServerLimits {
        let eighth = |count: usize| count.div_ceil(8).max(8);
        let limits = self.of_connections();
        ServerLimits {
            connections: eighth(limits.connections),
            connections_per_address: eighth(limits.connections_per_address),
            requests: eighth(limits.requests),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitOptions,
    }

    fn parse(arguments: &[&str]) -> Result<LimitOptions, String> {
        let line = Line::try_parse_from([&["confrev"], arguments].concat());
        line.map(|line| line.limits).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_have_the_defaults_of_each_part() {
        let limits = parse(&[]).unwrap();
        assert_eq!(limits.of_reviews(), ReviewLimits::default());
        assert_eq!(limits.checks(), budget::CHECKS);
        assert_eq!(format!("{:?}", limits.of_connections()), format!("{:?}", ServerLimits::default()));
    }

    /// The error names the option.
    #[test]
    fn rejects_limit_of_zero() {
        let counts = [
            "body",
            "bodies",
            "review-memory",
            "checks",
            "decisions",
            "calls",
            "reads",
            "read-bytes",
            "snapshots",
            "connections",
            "connections-per-address",
            "requests",
        ];
        for option in counts.map(|name| format!("--max-{name}")) {
            let option = option.as_str();
            assert!(parse(&[option, "0"]).unwrap_err().contains(option), "{option}");
            assert!(parse(&[option, "1"]).is_ok(), "{option}");
        }
        for option in ["--handshake-timeout", "--header-timeout", "--request-timeout"] {
            assert!(parse(&[option, "0s"]).unwrap_err().contains(option), "{option}");
            assert_eq!(parse(&[option, "1s"]).map(|_| ()), Ok(()), "{option}");
        }
    }
}
