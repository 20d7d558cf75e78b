//! A certificate chain and its private key: read from PEM, and checked to belong together and to be valid now.
use std::sync::Arc;

use jiff::Timestamp;
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

/// A chain (the server's own certificate first), its key, and the validity of that certificate.
#[derive(Clone)]
pub(super) struct CertifiedPair {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) validity: Validity,
}

/// The time in which a certificate is valid, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// Why a pair cannot be used. `tls.crt` and `tls.key` name both the files and the keys of the Secret.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// There is no PEM block of a certificate.
    #[error("tls.crt holds no PEM certificate (\"-----BEGIN CERTIFICATE-----\")")]
    NoCertificate,
    /// The PEM, or the DER in it, is damaged.
    #[error("tls.crt is damaged: {0}")]
    Certificate(String),
    /// There is no PEM block of a private key, or it is damaged.
    #[error("tls.key holds no readable PEM private key (PKCS#8, PKCS#1 or SEC1, not encrypted)")]
    Key(#[source] pem::Error),
    /// rustls does not sign with this kind of key.
    #[error(
        "the key in tls.key cannot be used: RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, or Ed25519 is needed"
    )]
    KeyKind(#[source] rustls::Error),
    /// The certificate belongs to another key.
    #[error("tls.key does not belong to the (first) certificate in tls.crt")]
    Mismatch(#[source] rustls::Error),
    /// The certificate has expired.
    #[error("the certificate in tls.crt expired at {0}: renew it")]
    Expired(Timestamp),
    /// The certificate is not valid yet.
    #[error("the certificate in tls.crt is not valid before {0}: check the clocks")]
    NotYet(Timestamp),
}

impl CertifiedPair {
    /// Reads and checks a pair as of `now`.
    pub(super) fn from_pem(chain: &[u8], key: &[u8], now: Timestamp) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(PairError::Key)?;
        Self::new(chain, key, now)
    }

    /// Checks a pair as of `now`.
    pub(super) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        now: Timestamp,
    ) -> Result<Self, PairError> {
        let validity = Validity::of(chain.first().ok_or(PairError::NoCertificate)?)?;
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => PairError::Mismatch(error),
            rustls::Error::InvalidCertificate(_) => PairError::Certificate(error.to_string()),
            _ => PairError::KeyKind(error),
        })?;
        if now > validity.to {
            return Err(PairError::Expired(validity.to));
        }
        if now < validity.from {
            return Err(PairError::NotYet(validity.from));
        }
        Ok(Self { key: Arc::new(key), validity })
    }
}

impl std::fmt::Debug for CertifiedPair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is left out.
        out.debug_struct("Pair").field("validity", &self.validity).finish_non_exhaustive()
    }
}

impl Validity {
    /// When `certificate` is valid.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, PairError> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let validity = parsed.validity();
        Ok(Self {
            from: timestamp(validity.not_before.timestamp(), Timestamp::MIN),
            to: timestamp(validity.not_after.timestamp(), Timestamp::MAX),
        })
    }
}

/// The cryptography of the whole program, passed explicitly: a process-wide default is ambiguous as soon as a
/// dependency compiles in a second provider.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// "No expiry" is written as the last second of the year 9999 (RFC 5280, 4.1.2.5), which is past jiff's range.
fn timestamp(second: i64, otherwise: Timestamp) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn now() -> Timestamp {
        "2030-01-01T00:00:00Z".parse().unwrap()
    }

    fn certificate(key: &KeyPair) -> String {
        CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(key).unwrap().pem()
    }

    fn refusal(chain: &str, key: &str, now: Timestamp) -> PairError {
        CertifiedPair::from_pem(chain.as_bytes(), key.as_bytes(), now).unwrap_err()
    }

    #[test]
    fn certificate_without_expiry_is_always_valid() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(9999, 12, 31) + std::time::Duration::from_secs(86_399);
        let pem = params.self_signed(&key).unwrap().pem();
        let pair = CertifiedPair::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes(), now()).unwrap();
        assert_eq!(pair.validity.to, Timestamp::MAX);
    }

    #[test]
    fn a_chain_keeps_its_order() {
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let chain = certificate(&own) + &certificate(&other);
        let pair = CertifiedPair::from_pem(chain.as_bytes(), own.serialize_pem().as_bytes(), now()).unwrap();
        assert_eq!(pair.key.cert.len(), 2);
        assert!(matches!(refusal(&chain, &other.serialize_pem(), now()), PairError::Mismatch(_)));
    }

    #[test]
    fn each_broken_pair_has_its_own_error() {
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let (pem, key) = (certificate(&own), own.serialize_pem());
        assert!(matches!(refusal(&pem, &other.serialize_pem(), now()), PairError::Mismatch(_)));
        assert!(matches!(refusal("", &key, now()), PairError::NoCertificate));
        assert!(matches!(refusal("garbage", &key, now()), PairError::NoCertificate));
        assert!(matches!(refusal(&key, &key, now()), PairError::NoCertificate));
        assert!(matches!(refusal(&pem[..pem.len() / 2], &key, now()), PairError::Certificate(_)));
        assert!(matches!(refusal(&pem, "", now()), PairError::Key(_)));
        assert!(matches!(refusal(&pem, &pem, now()), PairError::Key(_)));
        assert!(matches!(refusal(&pem, &key[..key.len() / 2], now()), PairError::Key(_)));
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(refusal(damaged, &key, now()), PairError::Certificate(_)));
    }

    #[test]
    fn rejects_certificate_outside_its_validity() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2031, 1, 1);
        let early = params.self_signed(&key).unwrap().pem();
        assert!(matches!(refusal(&early, &key.serialize_pem(), now()), PairError::NotYet(_)));
        params.not_before = rcgen::date_time_ymd(2028, 1, 1);
        params.not_after = rcgen::date_time_ymd(2029, 1, 1);
        let late = params.self_signed(&key).unwrap().pem();
        assert!(matches!(refusal(&late, &key.serialize_pem(), now()), PairError::Expired(_)));
    }
}
