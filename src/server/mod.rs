//! The HTTP server of the webhook and of the admin port: its own accept loop, with a limit on everything that
//! a client can hold.
//!
//! A connection is cheap until a request is complete: small windows, small buffers, and a time limit for a head that has
//! begun. One source address may hold only a part of the connections, and a fair share of the requests. At the limit, a new
//! connection replaces an idle connection of the address that holds most: one that never sent a request, else the one that
//! has been idle longest. A new connection waits only if none is idle. So thousands of idle connections block no client.
//!
//! The loop is not hyper-util's: its `GracefulShutdown` ends all connections at once, while this server also ends single
//! ones (idle, evicted, too slow) and counts those that are cut.

mod accept;
mod connections;
mod fair;
mod handle;
mod leaving;
mod limits;
mod listen;
mod pool;
mod until_sent;
mod watched;

pub use accept::{Drained, serve};
pub use fair::Client;
pub(crate) use fair::{FairSemaphore, Permit};
pub use handle::{Arrival, Transport};
pub use leaving::ask_to_leave;
pub use limits::ServerLimits;
pub use listen::listen;
pub(crate) use pool::{Pool, PoolPermit};
pub(crate) use until_sent::keep_until_sent;
