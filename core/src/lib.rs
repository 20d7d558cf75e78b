//! confrev's decision, without I/O: names and kinds, snapshots, templates, and which snapshot each reference resolves to.
//!
//! Admission, the controller and the command line call it. It depends on no Kubernetes client, no runtime and no HTTP
//! library, so the compiler enforces that it does not call the API server.
pub mod compact;
pub mod json;
pub mod kinds;
pub mod names;
pub mod resolve;
pub mod snapshot;
pub mod template;
pub mod uid;
