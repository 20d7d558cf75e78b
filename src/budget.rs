//! The memory budget: the parts of the container's memory limit, in MiB. The chart has the same parts as values, and its limit
//! is their sum. `docs/evidence/security.md` describes each part. A test compares all three.

/// The program, with an empty index and without clients.
pub const PROGRAM: usize = 20;
/// Connections: their TLS state, and the heads of their requests.
pub const CONNECTIONS: usize = 16;
/// The index of all namespaces.
pub const INDEX: usize = 40;
/// The controller: pages of lists, contents that its tasks read, and contents that it remembers.
pub const CONTROLLER: usize = 64;
/// All reviews together: bodies, what bodies are parsed into, answers, and the objects that are read for them.
pub const REVIEWS: usize = 54;
/// One body beyond [`REVIEWS`], so that half-read bodies do not wait for each other.
pub const BODY: usize = 7;
/// Checks of schemas at once.
pub const CHECKS: usize = 2;
/// The memory of one check.
pub const CHECK: usize = 27;
/// Events that wait to be posted as notifications.
pub const NOTIFICATIONS: usize = 1;

/// The memory limit of the container.
pub const LIMIT: usize =
    PROGRAM + CONNECTIONS + INDEX + CONTROLLER + REVIEWS + BODY + CHECKS * CHECK + NOTIFICATIONS;
