//! The keys and the namespace that the digest of a Secret depends on, beside its name and content.

use std::{fmt, num::NonZeroU32, sync::Arc};

use ring::hmac;

/// The length of a key, in bytes.
pub const KEY_BYTES: usize = 32;

/// Names a key without revealing it: the first 32 bits of an HMAC under that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(super) NonZeroU32);

/// A key of the digests of Secrets. It is never printed.
#[derive(Clone)]
pub struct DigestKey {
    id: KeyId,
    hmac: hmac::Key,
}

impl DigestKey {
    /// The key of these bytes.
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let hmac = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let tag = hmac::sign(&hmac, b"confrev/v2/key-id\n");
        let id = tag.as_ref().iter().take(4).fold(0, |id, byte| (id << 8) | u32::from(*byte));
        Self { id: KeyId(NonZeroU32::new(id).unwrap_or(NonZeroU32::MIN)), hmac }
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Starts an HMAC under this key.
    pub(super) fn context(&self) -> hmac::Context {
        hmac::Context::with_key(&self.hmac)
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// How the contents of one namespace are digested. The default has no keys, and digests Secrets by plain SHA-256.
#[derive(Clone, Debug, Default)]
pub struct Keying {
    namespace: Arc<str>,
    keys: Arc<[DigestKey]>,
}

impl Keying {
    /// Uses these keys: digests are written under the first one, and recognised under all of them.
    pub fn new(namespace: impl Into<Arc<str>>, keys: Arc<[DigestKey]>) -> Self {
        Self { namespace: namespace.into(), keys }
    }

    /// The namespace of the objects that are read. It is part of every keyed digest, unless a snapshot records another one.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The keys, the current one first.
    pub(super) fn keys(&self) -> &[DigestKey] {
        &self.keys
    }
}
