//! The keys of the digests of Secrets, as this replica knows them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use confrev_core::snapshot::{DigestKey, KEY_BYTES, KeyId, Keying};

/// The keys that this replica knows, the current one first. Clones share them.
#[derive(Clone)]
pub struct DigestKeys(Arc<ArcSwap<KnownKeys>>);

/// The keys, and the bytes of the current one.
#[derive(Default)]
struct KnownKeys {
    keys: Arc<[DigestKey]>,
    current: Option<[u8; KEY_BYTES]>,
}

impl Default for DigestKeys {
    fn default() -> Self {
        Self(Arc::new(ArcSwap::from_pointee(KnownKeys::default())))
    }
}

/// Ids only: a key is never printed.
impl std::fmt::Debug for DigestKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.load().keys.iter().map(DigestKey::id)).finish()
    }
}

impl DigestKeys {
    /// Whether digests under this key can be computed.
    pub fn knows(&self, id: KeyId) -> bool {
        self.0.load().keys.iter().any(|key| key.id() == id)
    }

    /// How the content of Secrets in a namespace is digested.
    pub fn keying(&self, namespace: &str) -> Keying {
        Keying::new(namespace, Arc::clone(&self.0.load().keys))
    }

    /// Makes this key the current one; the others are still recognised. Returns whether the current key changed.
    pub fn set(&self, bytes: &[u8; KEY_BYTES]) -> bool {
        let key = DigestKey::new(bytes);
        let known = self.0.load();
        if known.keys.first().is_some_and(|first| first.id() == key.id()) {
            return false;
        }
        let others: Vec<_> = known.keys.iter().filter(|known| known.id() != key.id()).cloned().collect();
        let keys = [key].into_iter().chain(others).collect();
        self.0.store(Arc::new(KnownKeys { keys, current: Some(*bytes) }));
        true
    }

    /// The bytes of the current key.
    pub fn current(&self) -> Option<[u8; KEY_BYTES]> {
        self.0.load().current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_key_comes_first_and_old_stays_known() {
        let keys = DigestKeys::default();
        assert!(keys.set(&[1; KEY_BYTES]) && !keys.set(&[1; KEY_BYTES]) && keys.set(&[2; KEY_BYTES]));
        let ids = [1, 2].map(|byte| DigestKey::new(&[byte; KEY_BYTES]).id());
        assert!(ids.iter().all(|id| keys.knows(*id)));
        assert_eq!(keys.current(), Some([2; KEY_BYTES]));
        assert!(!keys.knows(DigestKey::new(&[3; KEY_BYTES]).id()));
        assert_eq!(format!("{keys:?}"), format!("{:?}", [ids[1], ids[0]]), "only the ids are printed");
    }
}
