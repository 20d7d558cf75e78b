//! Keeps the key of the digests of Secrets: created once, and kept in a Secret that all replicas share.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Method;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Value, json};

use super::{error::ApiError, kube_api::KubeApi, path};
use crate::{
    snapshot::{KEY_BYTES, SourceKind},
    world::DigestKeys,
};

/// The name of the Secret.
const KEY_SECRET: &str = "confrev-digest-key";
/// The entry of the Secret that holds the key.
const ENTRY: &str = "key";
/// How often the Secret is read again.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How often the first read is repeated when another replica writes first.
const MAX_ATTEMPTS: u32 = 5;

/// What to do about an answer of the API server.
fn hint(error: &ApiError) -> &'static str {
    if error.is_missing_right() {
        ": --secrets needs the rights that the chart value secrets.enabled adds"
    } else {
        ""
    }
}

/// Why no key is available.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The Secret cannot be read or written.
    #[error("cannot {verb} Secret {namespace}/{KEY_SECRET}: {source}{}", hint(source))]
    Api {
        /// The verb that failed.
        verb: &'static str,
        /// The Secret's namespace.
        namespace: String,
        /// The API server's answer.
        #[source]
        source: ApiError,
    },
    /// The Secret holds no valid key.
    #[error(
        "Secret {namespace}/{KEY_SECRET} holds no key of {KEY_BYTES} bytes under {ENTRY:?}: restore it from a backup, or \
         delete it to get a new key"
    )]
    Malformed {
        /// The Secret's namespace.
        namespace: String,
    },
    /// Others create and delete the Secret repeatedly.
    #[error(
        "Secret {namespace}/{KEY_SECRET} was created and deleted {MAX_ATTEMPTS} times in a row: find out what deletes it"
    )]
    Contended {
        /// The Secret's namespace.
        namespace: String,
    },
    /// The system has no random bytes.
    #[error("cannot create a key: the system has no random bytes")]
    Random,
}

/// Keeps the key in its Secret, and adopts the key of a Secret that another client wrote.
pub struct KeyKeeper {
    api: KubeApi,
    namespace: String,
    keys: DigestKeys,
}

impl KeyKeeper {
    /// Reads the key, or creates it. The first replica to write decides.
    pub async fn start(api: KubeApi, namespace: &str, keys: DigestKeys) -> Result<Self, KeyError> {
        let keeper = Self { api, namespace: namespace.to_owned(), keys };
        keeper.converge().await?;
        Ok(keeper)
    }

    /// Reads the Secret regularly, and calls `changed` when it holds another key. Never returns.
    pub async fn run(&self, changed: impl Fn() + Send) {
        let mut failed = false;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            match self.converge().await {
                Ok(is_other) => {
                    failed = false;
                    if is_other {
                        changed();
                    }
                }
                // Logged once, not at each read.
                Err(error) if !failed => {
                    tracing::warn!(%error, "the key of the digests of Secrets could not be checked");
                    failed = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Makes the key in the Secret the current one. If the Secret does not exist, writes the current key to it, or a
    /// new one. Returns whether the key is another one than before.
    async fn converge(&self) -> Result<bool, KeyError> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(bytes) = self.read().await? {
                let is_other = self.keys.set(&bytes);
                if is_other {
                    tracing::info!(keys = ?self.keys, "the key of the digests of Secrets was read");
                }
                return Ok(is_other);
            }
            let known = self.keys.current();
            let bytes = match known {
                Some(bytes) => bytes,
                None => random()?,
            };
            if self.create(&bytes).await? {
                self.keys.set(&bytes);
                if known.is_some() {
                    tracing::warn!(
                        secret = KEY_SECRET,
                        "the key of the digests of Secrets was deleted and has been recreated"
                    );
                } else {
                    tracing::info!(secret = KEY_SECRET, keys = ?self.keys, "a key of the digests of Secrets was created");
                }
                return Ok(known.is_none());
            }
        }
        Err(KeyError::Contended { namespace: self.namespace.clone() })
    }

    /// The key in the Secret; `None` if the Secret does not exist.
    async fn read(&self) -> Result<Option<[u8; KEY_BYTES]>, KeyError> {
        let path = path::object("v1", &self.namespace, SourceKind::Secret.plural(), KEY_SECRET)
            .map_err(|source| self.error("read", source))?;
        let answer = match self.api.call("get", Method::GET, path, "", Vec::new()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer.map_err(|source| self.error("read", source))?,
        };
        let object: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let bytes = object["data"][ENTRY].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Some).ok_or_else(|| KeyError::Malformed { namespace: self.namespace.clone() })
    }

    /// Creates the Secret. Returns false if another replica created it first.
    async fn create(&self, bytes: &[u8; KEY_BYTES]) -> Result<bool, KeyError> {
        let path = path::collection("v1", &self.namespace, SourceKind::Secret.plural())
            .map_err(|source| self.error("create", source))?;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": self.namespace},
            "type": "Opaque",
            "data": {ENTRY: BASE64_STANDARD.encode(bytes)},
        });
        let body = body.to_string().into_bytes();
        match self.api.call("create", Method::POST, path, "application/json", body).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(source) => Err(self.error("create", source)),
        }
    }

    fn error(&self, verb: &'static str, source: ApiError) -> KeyError {
        KeyError::Api { verb, namespace: self.namespace.clone(), source }
    }
}

fn random() -> Result<[u8; KEY_BYTES], KeyError> {
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_right_names_its_chart_value() {
        let error = |message: &str| {
            let source =
                ApiError::Refused { what: "get Secret".to_owned(), code: 403, message: message.to_owned() };
            KeyError::Api { verb: "read", namespace: "confrev".to_owned(), source }.to_string()
        };
        let lacks = error(
            "secrets \"confrev-digest-key\" is forbidden: User \"confrev\" cannot get resource \"secrets\"",
        );
        assert!(lacks.ends_with("chart value secrets.enabled adds"), "{lacks}");
        let other = error("admission webhook \"a\" denied the request: no");
        assert!(!other.contains("secrets.enabled"), "{other}");
    }
}
