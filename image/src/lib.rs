//! confrev's container image in the OCI layout (one static binary, and the configuration to run it), its bill of materials, and
//! the provenance of a release.
//!
//! Its only input is the binary, the architecture and a time. So equal input gives an equal image, byte for byte.

mod join;
mod layout;
mod provenance;
mod sbom;

pub use join::join;
pub use layout::{Image, Written};
pub use provenance::{Build, statement};
pub use sbom::bill_of_materials;

/// The result of a step that can fail; the error is a sentence for people.
pub type Result<T> = std::result::Result<T, String>;
