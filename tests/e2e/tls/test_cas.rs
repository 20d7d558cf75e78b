//! CAs of the tests, and the certificates that they sign.
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A CA.
pub(crate) struct Authority {
    /// Its certificate.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
pub(crate) struct Identity {
    pub(crate) pem: String,
    pub(crate) key_pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::valid(2020, 2120).0
    }

    /// A CA in the last fifth of its lifetime, and its key.
    pub(crate) fn old() -> (Self, String) {
        let year = i32::from(jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year());
        Self::valid(year - 20, year + 2)
    }

    fn valid(from: i32, to: i32) -> (Self, String) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = format!("authority {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let (pem, text) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        (Self { pem, issuer: Issuer::new(params, key) }, text)
    }

    /// A client certificate with a common name and DNS names.
    pub(crate) fn client(&self, common: &str, dns: &[&str]) -> Identity {
        self.sign(common, dns, ExtendedKeyUsagePurpose::ClientAuth, 2120)
    }

    /// A certificate for a server on loopback, which is not valid for clients.
    pub(crate) fn server(&self, common: &str) -> Identity {
        self.sign(common, &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth, 2120)
    }

    pub(crate) fn expired(&self, common: &str) -> Identity {
        self.sign(common, &[], ExtendedKeyUsagePurpose::ClientAuth, 2021)
    }

    fn sign(&self, common: &str, dns: &[&str], usage: ExtendedKeyUsagePurpose, until: i32) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = params(common, dns);
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}

impl Identity {
    /// A self-signed certificate.
    pub(crate) fn alone(common: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params(common, &[]).self_signed(&key).unwrap();
        Self { pem: certificate.pem(), key_pem: key.serialize_pem() }
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap()
    }
}

fn params(common: &str, dns: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(dns.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, common);
    params
}
