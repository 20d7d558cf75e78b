//! The digest of a source's content: what makes two contents the same.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::SourceKind;

/// SHA-256 over a source's content. Metadata does not count, nor does the order of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The first `digits` (at most 64) lower-case hex digits.
    pub fn hex(&self, digits: usize) -> String {
        const HEX: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        let halves = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves.take(digits).map(|half| HEX[usize::from(half)]).collect()
    }

    /// The digest of any bytes, for names that are made of more than content.
    pub fn of_bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes.as_ref()).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex(64))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex(10))
    }
}

/// A text is no digest: it must be `sha256:` and 64 lower-case hex digits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `sha256:` and 64 lower-case hex digits")]
pub struct DigestFormatError;

impl FromStr for Digest {
    type Err = DigestFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix("sha256:").ok_or(DigestFormatError)?;
        if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(DigestFormatError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| DigestFormatError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| DigestFormatError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = crate::json::Str::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether an entry is text (`data` of a ConfigMap) or bytes (`binaryData`, and `data` of a Secret).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// `data` of a ConfigMap.
    Text,
    /// `binaryData` of a ConfigMap, `data` of a Secret.
    Bytes,
}

/// Builds a [`Digest`]; entries must come in ascending order of their key's bytes.
pub struct Hasher(Sha256);

impl Hasher {
    /// Starts a digest. `secret_type` counts for a Secret only.
    pub fn new(kind: SourceKind, secret_type: &str) -> Self {
        let mut sha = Sha256::new();
        match kind {
            SourceKind::ConfigMap => sha.update(b"confrev/v1/configmap\n"),
            SourceKind::Secret => {
                sha.update(b"confrev/v1/secret\n");
                sha.update(length32(secret_type));
                sha.update(secret_type.as_bytes());
            }
        }
        Self(sha)
    }

    /// Adds one entry, its value decoded.
    pub fn entry(&mut self, tag: Tag, key: &str, value: &[u8]) {
        self.0.update(match tag {
            Tag::Text => b"d",
            Tag::Bytes => b"b",
        });
        self.0.update(length32(key));
        self.0.update(key.as_bytes());
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
    }

    /// The digest of all that was added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// The length of a key or type. Both are bounded by the API server at far less than 4 GiB.
fn length32(text: &str) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes()
}
