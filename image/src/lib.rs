//! confrev's container image: one static binary, and what says how to run it, in the OCI's layout.
//!
//! Nothing but the binary, its architecture and a time goes into it, so equal input gives an equal image, byte by byte.

mod layout;
mod sbom;

pub use layout::{Image, Written};
pub use sbom::bill_of_materials;

/// The result of a step that can fail; the error is a sentence for people.
pub type Result<T> = std::result::Result<T, String>;
