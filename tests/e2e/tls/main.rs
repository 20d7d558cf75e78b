//! TLS over real sockets: rotation, kinds of keys, limits of the server, client certificates. On a real control plane:
//! the CA that replicas share, rotation under load, and the trace of a request.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod client;
mod client_certificates;
mod control_plane;
mod limits;
mod notifications;
mod paused;
mod processes;
mod recorded_users;
mod replica;
mod rotation;
mod schemas;
mod self_signed;
mod test_cas;
mod tls_dir;
mod traces;
mod write_load;

use confrev_test_support::{mounted_secret, trace_collector};

use std::time::Duration;

/// A time limit that no step should reach, even on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until `look` returns a value; `what` describes it.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("waited {LIMIT:?} for: {what}"))
}

/// The value of a metric in OpenMetrics text, by its name with labels.
fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}
