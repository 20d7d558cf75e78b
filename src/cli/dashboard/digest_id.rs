//! Ids of elements: the same for the same text, and without characters that have a meaning in a page.

use crate::snapshot::Digest;

/// The id for a text.
pub(super) fn of(text: &str) -> String {
    format!("r{}", Digest::of_bytes(text.as_bytes()).hex(16))
}
