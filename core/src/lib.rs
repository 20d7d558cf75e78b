//! confrev's decision, without I/O: names and kinds, snapshots, templates, and which snapshot each reference resolves to.
//!
//! Admission, the controller and the command line call it. It depends on no Kubernetes client, no runtime and no HTTP
//! library, so the compiler enforces that it does not call the API server.
//!
//! | entry point | purpose |
//! |---|---|
//! | [`kinds::Kinds`] | the kinds of workloads |
//! | [`resolve::Workload::parse`] | reads a workload, with the references in its template |
//! | [`resolve::Policy::read`] | reads the annotations of a workload |
//! | [`snapshot::Object`] | reads a ConfigMap or Secret, and computes its digest |
//! | [`snapshot::snapshot_json`] | builds a snapshot |
//! | [`resolve::decide`] | decides to which snapshot each reference resolves |
//! | [`gates::answer`] | whether a workload may move to a content now, and why not |
pub mod annotations;
pub mod compact;
pub mod gate_settings;
pub mod gates;
pub mod json;
pub mod json_values;
pub mod kinds;
pub mod resolve;
pub mod snapshot;
pub mod template;
pub mod tie;
pub mod uid;
mod wildcards;
