//! Random suffixes of names.

use std::hash::{BuildHasher as _, RandomState};

/// Six random characters that are valid in a name.
pub(crate) fn suffix() -> String {
    const CHARACTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let bytes = RandomState::new().hash_one(0).to_le_bytes();
    bytes
        .into_iter()
        .take(6)
        .map(|byte| char::from(CHARACTERS[usize::from(byte) % CHARACTERS.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_differ() {
        assert_ne!(suffix(), suffix());
        assert_eq!(suffix().len(), 6);
    }
}
