//! Signatures of notifications, as Standard Webhooks defines them: HMAC-SHA-256 over id, time and body.
//! Source: <https://www.standardwebhooks.com>, "Symmetric" scheme (`v1`).

use std::{fmt, path::PathBuf, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use ring::hmac;

/// The prefix of a key. Like the libraries of the specification, confrev accepts keys without it.
const PREFIX: &str = "whsec_";
/// The bytes that a key may have. Source: the specification's recommendation.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A key that signs notifications.
#[derive(Clone)]
pub struct NotifyKey(hmac::Key);

/// The key itself is never printed.
impl fmt::Debug for NotifyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotifyKey")
    }
}

/// A text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: use the base64 of 24 to 64 random bytes, with or without whsec_ before it")]
pub struct KeyFormatError;

impl FromStr for NotifyKey {
    type Err = KeyFormatError;

    fn from_str(text: &str) -> Result<Self, KeyFormatError> {
        let text = text.trim();
        let bytes =
            BASE64_STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).map_err(|_| KeyFormatError)?;
        if !BYTES.contains(&bytes.len()) {
            return Err(KeyFormatError);
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// Where the key comes from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// An option or a variable.
    Given(NotifyKey),
    /// A file with one key on each line. While a key is rotated, it has the new one and the old one.
    File(PathBuf),
}

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The file cannot be read.
    #[error("--notify-key-file {}: {reason}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
}

impl KeySource {
    /// The keys to sign with; at least one.
    pub async fn keys(&self) -> Result<Vec<NotifyKey>, KeySourceError> {
        match self {
            Self::Given(key) => Ok(vec![key.clone()]),
            Self::File(file) => {
                let wrong = |reason: String| KeySourceError::Unreadable { file: file.clone(), reason };
                let text = tokio::fs::read_to_string(file).await.map_err(|error| wrong(error.to_string()))?;
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let keys: Vec<NotifyKey> = lines
                    .map(str::parse)
                    .collect::<Result<_, KeyFormatError>>()
                    .map_err(|error| wrong(error.to_string()))?;
                if keys.is_empty() { Err(wrong("the file has no key".to_owned())) } else { Ok(keys) }
            }
        }
    }
}

/// The headers of a signed post. Each key makes one signature; a receiver accepts any of them.
pub(super) fn headers(
    keys: &[NotifyKey],
    id: &str,
    now: Timestamp,
    body: &[u8],
) -> [(&'static str, String); 3] {
    let time = now.as_second().to_string();
    let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
    let sign = |key: &NotifyKey| format!("v1,{}", BASE64_STANDARD.encode(hmac::sign(&key.0, &signed)));
    let signatures: Vec<_> = keys.iter().map(sign).collect();
    [("webhook-id", id.to_owned()), ("webhook-timestamp", time), ("webhook-signature", signatures.join(" "))]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's reference libraries.
    #[test]
    fn signature_equals_that_of_the_specification() {
        let key: NotifyKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let now = Timestamp::from_second(1_614_265_330).unwrap();
        let body = br#"{"test": 2432232314}"#;
        let [id, time, signature] = headers(&[key], "msg_p5jXN8AQM9LWM0D4loKWxJek", now, body);
        assert_eq!((id.1.as_str(), time.1.as_str()), ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"));
        assert_eq!(signature.1, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn rejects_texts_that_are_no_keys() {
        for text in ["", "whsec_", "whsec_AAAA", "secret", "whsec_%%%%"] {
            assert_eq!(text.parse::<NotifyKey>().err(), Some(KeyFormatError), "{text}");
        }
        for text in ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(text.parse::<NotifyKey>().is_ok());
        }
    }
}
