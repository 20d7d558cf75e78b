//! confrev's container image in the OCI layout: one static binary, and the configuration to run it.
//!
//! Its only input is the binary, the architecture and a time. So equal input gives an equal image, byte for byte.

mod layout;
mod sbom;

pub use layout::{Image, Written};
pub use sbom::bill_of_materials;

/// The result of a step that can fail; the error is a sentence for people.
pub type Result<T> = std::result::Result<T, String>;
