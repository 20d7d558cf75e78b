//! confrev's own CA, and the serving certificates that it issues.
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::pair::{CertifiedPair, PairError, Validity};
use super::url::WebhookUrl;

/// Certificates become valid a little before they are issued, for API servers whose clock is behind; less so if their
/// lifetime is short.
const SKEW: Duration = Duration::from_mins(5);

/// A CA: its certificate and its signing key.
pub(super) struct CertificateAuthority {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    validity: Validity,
}

/// Why a CA cannot be read, or cannot issue a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The certificate cannot be read.
    #[error("the certificate of the CA cannot be read")]
    Certificate(#[source] PairError),
    /// The key cannot be read.
    #[error("the key of the CA cannot be read")]
    Key(#[source] rcgen::Error),
    /// The certificate and the key belong to different CAs.
    #[error("the key of the CA does not belong to its certificate")]
    Mismatch,
    /// Clients do not accept the certificate as an issuer's.
    #[error("the certificate is not a CA certificate (basicConstraints CA:TRUE is missing)")]
    NoAuthority,
    /// No certificate can name this host.
    #[error("{0:?} cannot be a name in a certificate: give --webhook-url a DNS name or an IP address")]
    Name(String, #[source] rcgen::Error),
    /// Signing failed.
    #[error("cannot create a certificate")]
    Make(#[source] rcgen::Error),
    /// The issued certificate cannot be used.
    #[error("the issued certificate cannot be used")]
    Made(#[source] PairError),
}

impl CertificateAuthority {
    /// A new CA, valid from `now` on for `lifetime`.
    pub(super) fn generate(now: Timestamp, lifetime: Duration) -> Result<Self, CaError> {
        let key = KeyPair::generate().map_err(CaError::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "confrev");
        // The time distinguishes the subjects of an old and a new CA, for people who read a bundle.
        params.distinguished_name.push(DnType::CommonName, format!("confrev CA {now:.0}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, validity_start(now, lifetime), after(now, lifetime));
        let certificate = params.self_signed(&key).map_err(CaError::Make)?.der().clone();
        Self::new(certificate, key)
    }

    /// Reads a CA from `tls.crt` and `tls.key`.
    pub(super) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, CaError> {
        let certificate = CertificateDer::from_pem_slice(certificate)
            .map_err(|error| CaError::Certificate(PairError::Certificate(error.to_string())))?;
        let key = KeyPair::from_pem(&String::from_utf8_lossy(key)).map_err(CaError::Key)?;
        Self::new(certificate, key)
    }

    fn new(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self, CaError> {
        let validity = Validity::of(&certificate).map_err(CaError::Certificate)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|error| CaError::Certificate(PairError::Certificate(error.to_string())))?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(CaError::Mismatch);
        }
        if !parsed.is_ca() {
            return Err(CaError::NoAuthority);
        }
        Ok(Self { certificate, key, validity })
    }

    /// A serving certificate with a key of its own, valid from `now` on for `lifetime`, but no longer than the CA
    /// itself.
    pub(super) fn issue(
        &self,
        names: &[SanType],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<CertifiedPair, CaError> {
        let key = KeyPair::generate().map_err(CaError::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "confrev");
        params.subject_alt_names = names.to_vec();
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let from = validity_start(now, lifetime).max(self.validity.from);
        set_validity(&mut params, from, after(now, lifetime).min(self.validity.to));
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key).map_err(CaError::Make)?;
        let certificate = params.signed_by(&key, &issuer).map_err(CaError::Make)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| CaError::Mismatch)?;
        CertifiedPair::new(vec![certificate.der().clone()], key, now).map_err(CaError::Made)
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn validity(&self) -> Validity {
        self.validity
    }

    /// The signing key in PEM, for the shared Secret and nothing else.
    pub(super) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CertificateAuthority").field("validity", &self.validity).finish_non_exhaustive()
    }
}

/// The names in a serving certificate: the Service `confrev` in `namespace`, this machine, and the host of
/// `--webhook-url`.
pub(super) fn certificate_names(namespace: &str, url: Option<&WebhookUrl>) -> Result<Vec<SanType>, CaError> {
    let mut hosts = vec![
        format!("confrev.{namespace}.svc"),
        format!("confrev.{namespace}.svc.cluster.local"),
        "localhost".to_owned(),
        Ipv4Addr::LOCALHOST.to_string(),
        Ipv6Addr::LOCALHOST.to_string(),
    ];
    hosts.extend(url.map(|url| url.host().to_owned()).filter(|host| !hosts.contains(host)));
    hosts
        .into_iter()
        .map(|host| match host.parse::<IpAddr>() {
            Ok(address) => Ok(SanType::IpAddress(address)),
            Err(_) => match host.as_str().try_into() {
                Ok(name) => Ok(SanType::DnsName(name)),
                Err(error) => Err(CaError::Name(host, error)),
            },
        })
        .collect()
}

/// A certificate as a PEM block.
pub(super) fn to_pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// `lifetime` after `start`, or the latest timestamp if that is out of range.
pub(super) fn after(start: Timestamp, lifetime: Duration) -> Timestamp {
    start.checked_add(lifetime).unwrap_or(Timestamp::MAX)
}

/// The start of the validity of a certificate that is issued at `now` for `lifetime`.
fn validity_start(now: Timestamp, lifetime: Duration) -> Timestamp {
    now.checked_sub(SKEW.min(lifetime / 20)).unwrap_or(now)
}

fn set_validity(params: &mut CertificateParams, from: Timestamp, to: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |at: Timestamp| Duration::from_secs(at.as_second().try_into().unwrap_or(0));
    params.not_before = epoch + since(from);
    params.not_after = epoch + since(to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use jiff::SignedDuration;
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::client::WebPkiServerVerifier;
    use tokio_rustls::rustls::client::danger::ServerCertVerifier;
    use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> Timestamp {
        "2030-06-01T12:00:00Z".parse().unwrap()
    }

    fn verify(
        pair: &CertifiedPair,
        roots: &[&CertificateAuthority],
        name: &str,
        at: Timestamp,
    ) -> Result<(), String> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root.certificate().clone()).unwrap();
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(store), super::super::pair::provider())
                .build()
                .unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().unwrap()));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier
            .verify_server_cert(&pair.key.cert[0], &pair.key.cert[1..], &name, &[], at)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn serving_certificate_is_valid_for_its_names_only() {
        let authority = CertificateAuthority::generate(now(), DAY * 365).unwrap();
        let url: WebhookUrl = "https://192.0.2.7:8443".parse().unwrap();
        let names = certificate_names("tools", Some(&url)).unwrap();
        let pair = authority.issue(&names, now(), DAY).unwrap();
        for name in [
            "confrev.tools.svc",
            "confrev.tools.svc.cluster.local",
            "localhost",
            "127.0.0.1",
            "::1",
            "192.0.2.7",
        ] {
            verify(&pair, &[&authority], name, now()).unwrap();
        }
        verify(&pair, &[&authority], "confrev.other.svc", now()).unwrap_err();
    }

    /// It is invalid after its expiry.
    #[test]
    fn serving_certificate_tolerates_a_clock_that_lags() {
        let authority = CertificateAuthority::generate(now(), DAY * 365).unwrap();
        let pair = authority.issue(&certificate_names("n", None).unwrap(), now(), DAY).unwrap();
        verify(&pair, &[&authority], "localhost", now() - SignedDuration::from_mins(4)).unwrap();
        verify(&pair, &[&authority], "localhost", now() + SignedDuration::from_hours(25)).unwrap_err();
    }

    #[test]
    fn bundle_verifies_certificates_of_both_cas() {
        let (old, new) = (
            CertificateAuthority::generate(now(), DAY).unwrap(),
            CertificateAuthority::generate(now(), DAY).unwrap(),
        );
        let names = certificate_names("n", None).unwrap();
        let pairs = [old.issue(&names, now(), DAY).unwrap(), new.issue(&names, now(), DAY).unwrap()];
        for pair in &pairs {
            verify(pair, &[&old, &new], "localhost", now()).unwrap();
        }
        verify(&pairs[1], &[&old], "localhost", now()).unwrap_err();
    }

    #[test]
    fn serving_certificate_never_outlives_its_ca() {
        let authority = CertificateAuthority::generate(now(), DAY).unwrap();
        let pair = authority.issue(&certificate_names("n", None).unwrap(), now(), DAY * 30).unwrap();
        assert_eq!(pair.validity.to, authority.validity().to);
    }

    #[test]
    fn ca_survives_pem_round_trip() {
        let authority = CertificateAuthority::generate(now(), DAY).unwrap();
        let (certificate, key) = (to_pem(authority.certificate()), authority.key_pem());
        let again = CertificateAuthority::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let pair = again.issue(&certificate_names("n", None).unwrap(), now(), DAY).unwrap();
        verify(&pair, &[&authority], "localhost", now()).unwrap();
    }

    #[test]
    fn rejects_invalid_ca() {
        let (one, two) = (
            CertificateAuthority::generate(now(), DAY).unwrap(),
            CertificateAuthority::generate(now(), DAY).unwrap(),
        );
        let certificate = to_pem(one.certificate());
        let read = |certificate: &str, key: &str| {
            CertificateAuthority::from_pem(certificate.as_bytes(), key.as_bytes())
        };
        assert!(matches!(read(&certificate, &two.key_pem()), Err(CaError::Mismatch)));
        assert!(matches!(read("garbage", &one.key_pem()), Err(CaError::Certificate(_))));
        assert!(matches!(read(&certificate, "garbage"), Err(CaError::Key(_))));
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["x".to_owned()]).unwrap().self_signed(&key).unwrap();
        assert!(matches!(read(&leaf.pem(), &key.serialize_pem()), Err(CaError::NoAuthority)));
    }
}
