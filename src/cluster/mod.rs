//! Calls to the API server. Every call but a watch is counted, limited in time, and conditional or idempotent if it
//! writes.

mod api;
mod connect;
mod error;
mod event;
pub(crate) mod facts;
mod identity;
mod joined_owners;
mod key_keeper;
mod kube_api;
pub mod lease;
mod meter;
mod objects;
mod owners;
mod pages;
mod patch;
pub(crate) mod path;
mod reach;
mod shared_calls;
mod usage;
mod watch;

pub use api::{Api, CALL_LIMIT, ensure_snapshot};
pub use connect::connect;
pub use error::ApiError;
pub use event::{Event, ObjectRef, REPEAT_AFTER};
pub use identity::{IdentityError, client};
pub use key_keeper::{KeyError, KeyKeeper};
pub use kube_api::KubeApi;
pub use lease::{Lease, LeaseRecord};
pub use meter::{Call, Meter};
pub use objects::{Candidate, Created, LiveWorkload, Usage};
pub use owners::{own_owners, owners_but_our_own, owners_of_others};
pub use pages::{ListPage, Listed, Pages};
pub use reach::Reach;
pub(crate) use watch::OPEN;
