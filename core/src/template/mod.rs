//! Pod templates: finding the references to ConfigMaps and Secrets, and rewriting their names. Pure: no I/O.

mod patch;
mod references;
mod sources;

pub use patch::Patch;
pub use references::{ContainerMounts, Reference, Template};
pub use sources::{SourceMap, revision_of};
