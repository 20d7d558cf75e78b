//! The digest of a source's content: equal content has an equal digest.

use std::{fmt, num::NonZeroU32, str::FromStr};

use ring::hmac;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{DigestKey, KeyId, SourceKind};
use crate::compact::CompactSet;

/// The digest of a source's content under one scheme. Neither the metadata nor the order of keys affects it.
///
/// The scheme is part of the value, and of its text: `sha256:HEX`, or `hmac-sha256:KEYID:HEX` for a Secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    bytes: [u8; 32],
    /// The key; `None` for plain SHA-256.
    key: Option<KeyId>,
}

const SHA256: &str = "sha256:";
const HMAC_SHA256: &str = "hmac-sha256:";

impl Digest {
    /// The first `digits` (at most 64) lower-case hex digits, without the scheme.
    pub fn hex(&self, digits: usize) -> String {
        const HEX: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        let halves = self.bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves.take(digits).map(|half| HEX[usize::from(half)]).collect()
    }

    /// The bytes, without the scheme.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The key of a keyed digest; `None` for plain SHA-256.
    pub fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// Whether people may see it as the digest of a source of this kind: that of a Secret needs a key.
    pub fn may_be_shown(&self, kind: SourceKind) -> bool {
        kind == SourceKind::ConfigMap || self.key.is_some()
    }

    /// The SHA-256 of any bytes, for names that depend on more than content.
    pub fn of_bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self { bytes: Sha256::digest(bytes.as_ref()).into(), key: None }
    }

    /// The scheme as text, with its colon.
    fn scheme(&self) -> String {
        self.key.map_or_else(|| SHA256.to_owned(), |key| format!("{HMAC_SHA256}{key}:"))
    }

    /// The text with only the first hex digits, for people.
    pub fn short(&self, digits: usize) -> String {
        self.scheme() + &self.hex(digits)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short(64))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short(10))
    }
}

/// A text that is not a digest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a digest is `sha256:` and 64 lower-case hex digits, or `hmac-sha256:`, 8 hex digits of a key, `:` and 64 hex digits"
)]
pub struct DigestFormatError;

/// Whether the text is exactly `digits` lower-case hex digits.
pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl FromStr for Digest {
    type Err = DigestFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, hex) = if let Some(rest) = text.strip_prefix(HMAC_SHA256) {
            let (key, hex) = rest.split_once(':').ok_or(DigestFormatError)?;
            (Some(key.parse()?), hex)
        } else {
            (None, text.strip_prefix(SHA256).ok_or(DigestFormatError)?)
        };
        if !is_hex(hex, 64) {
            return Err(DigestFormatError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| DigestFormatError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| DigestFormatError)?;
        }
        Ok(Self { bytes, key })
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for KeyId {
    type Err = DigestFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !is_hex(text, 8) {
            return Err(DigestFormatError);
        }
        let number = u32::from_str_radix(text, 16).ok().and_then(NonZeroU32::new);
        number.map(Self).ok_or(DigestFormatError)
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

/// All digests of one content: the one that is written for it, and those of other keys, which older annotations may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    current: Digest,
    others: CompactSet<Digest>,
    /// The plain SHA-256 of the content of a Secret with a keyed digest. It is compared with that of other content that this
    /// program has read, and never with a digest that an object or a review states, nor is it written anywhere.
    plain: Option<Box<Digest>>,
}

impl Digests {
    /// The digest that is written for this content.
    pub fn current(&self) -> Digest {
        self.current
    }

    /// Every digest, the current one first.
    pub fn iter(&self) -> impl Iterator<Item = &Digest> {
        std::iter::once(&self.current).chain(&self.others)
    }

    /// Whether the content has this digest under any key.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.current == *digest || self.others.contains(digest)
    }

    /// Whether a digest that a review states is of this content; `None` if that cannot be determined.
    ///
    /// A plain SHA-256 of a Secret is never judged: anyone may send a review, and would learn whether a guess of the content
    /// is right.
    pub fn judge(&self, stated: &Digest) -> Option<bool> {
        if stated.key.is_none() && self.current.key.is_some() {
            return None;
        }
        self.iter().find(|known| known.key == stated.key).map(|known| known == stated)
    }

    /// Whether both are of the same content. Both must be computed by this program.
    pub fn same_content(&self, other: &Self) -> bool {
        self.current == other.current || self.plain() == other.plain()
    }

    fn plain(&self) -> &Digest {
        self.plain.as_deref().unwrap_or(&self.current)
    }

    /// The same digests, with the plain one to compare the content with other content.
    pub(super) fn with_plain(self, plain: Digest) -> Self {
        let is_keyed = self.current.key.is_some();
        Self { plain: is_keyed.then(|| Box::new(plain)), ..self }
    }

    /// Adds another digest of this content.
    pub fn insert(&mut self, digest: Digest) {
        if self.current != digest {
            self.others.insert(digest);
        }
    }
}

impl Extend<Digest> for Digests {
    fn extend<I: IntoIterator<Item = Digest>>(&mut self, digests: I) {
        digests.into_iter().for_each(|digest| self.insert(digest));
    }
}

impl From<Digest> for Digests {
    fn from(current: Digest) -> Self {
        Self { current, others: CompactSet::default(), plain: None }
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
pub struct Hasher(Function);

/// The function under construction, with the key's id.
enum Function {
    Plain(Sha256),
    Keyed(KeyId, Box<hmac::Context>),
}

impl Function {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(sha) => sha.update(bytes),
            Self::Keyed(_, hmac) => hmac.update(bytes),
        }
    }
}

impl Hasher {
    /// Starts a plain digest. `secret_type` is used for a Secret only.
    pub fn new(kind: SourceKind, secret_type: &str) -> Self {
        let mut hasher = Self(Function::Plain(Sha256::new()));
        match kind {
            SourceKind::ConfigMap => hasher.0.update(b"confrev/v1/configmap\n"),
            SourceKind::Secret => {
                hasher.0.update(b"confrev/v1/secret\n");
                hasher.text(secret_type);
            }
        }
        hasher
    }

    /// Starts a keyed digest of the Secret `source` in that namespace. Equal content has another digest under another name:
    /// otherwise, a user who may create Secrets could test guesses.
    pub fn keyed(key: &DigestKey, (namespace, source): (&str, &str), secret_type: &str) -> Self {
        let mut hasher = Self(Function::Keyed(key.id(), Box::new(key.context())));
        hasher.0.update(b"confrev/v2/secret\n");
        hasher.text(namespace);
        hasher.text(source);
        hasher.text(secret_type);
        hasher
    }

    /// Starts a digest under each key of the content of a source, by its namespace and name, and the plain one last. The first is
    /// the one that is written for the content.
    pub(super) fn all(
        keys: &[DigestKey],
        source: (&str, &str),
        kind: SourceKind,
        secret_type: &str,
    ) -> Vec<Self> {
        let keys = if kind == SourceKind::Secret { keys } else { &[] };
        let keyed = keys.iter().map(|key| Self::keyed(key, source, secret_type));
        keyed.chain([Self::new(kind, secret_type)]).collect()
    }

    /// Adds a text, preceded by its length.
    fn text(&mut self, text: &str) {
        self.0.update(&length32(text));
        self.0.update(text.as_bytes());
    }

    /// Adds one entry with its decoded value.
    pub fn entry(&mut self, tag: Tag, key: &str, value: &[u8]) {
        self.0.update(match tag {
            Tag::Text => b"d",
            Tag::Bytes => b"b",
        });
        self.text(key);
        self.0.update(&(value.len() as u64).to_be_bytes());
        self.0.update(value);
    }

    /// The digest of everything that was added.
    pub fn finish(self) -> Digest {
        match self.0 {
            Function::Plain(sha) => Digest { bytes: sha.finalize().into(), key: None },
            Function::Keyed(key, hmac) => {
                let mut bytes = [0; 32];
                bytes.copy_from_slice(hmac.sign().as_ref());
                Digest { bytes, key: Some(key) }
            }
        }
    }
}

/// The length of a name, key or type. The API server limits each to far less than 4 GiB.
fn length32(text: &str) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes()
}
