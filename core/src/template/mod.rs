//! Pod templates: finding the references to ConfigMaps and Secrets, and rewriting their names. Pure: no I/O.

mod patch;
mod quantity;
mod references;
mod sources;

pub use patch::Patch;
pub(crate) use quantity::nano_units;
pub use references::{ContainerMounts, Reference, Template};
pub use sources::{SourceMap, revision_of};
