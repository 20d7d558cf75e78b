//! Client certificates, which `--client-ca` requires: they decide who may connect to the webhook.
//!
//! The file is polled and its content compared, like the files of `--tls-dir`.
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    self, CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use x509_parser::extensions::GeneralName;

use super::pair::provider;
use super::poll::{PolledContent, poll};
use super::trust::certificates;
use crate::telemetry::causes;

/// Why client certificates cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum ClientsError {
    /// The file cannot be read.
    #[error("--client-ca: cannot read {}: mount a ConfigMap or Secret with the CA certificate there", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file exists but cannot be used.
    #[error("--client-ca: {} holds no usable PEM certificate of a CA", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
    },
}

/// The result of a read of the file: its content, or the error.
type FileContent = Result<Vec<u8>, String>;

/// The CAs and names of accepted client certificates. Cheap to clone; clones share one state.
#[derive(Clone, Debug)]
pub struct Clients(Arc<ClientVerifier>);

#[derive(Debug)]
struct ClientVerifier {
    file: PathBuf,
    names: Vec<String>,
    /// The content that `open` loaded.
    first: Vec<u8>,
    authorities: ArcSwap<Arc<dyn ClientCertVerifier>>,
}

impl Clients {
    /// Accepts clients with a certificate of a CA in `file` (PEM) that has one of `names` as its common name or among
    /// its DNS names; with no names, any certificate of that CA. The file has to be valid.
    pub fn open(file: PathBuf, names: Vec<String>) -> Result<Self, ClientsError> {
        let first =
            std::fs::read(&file).map_err(|source| ClientsError::Read { path: file.clone(), source })?;
        let authorities = verifier(&file, &first)?;
        tracing::info!(file = %file.display(), ?names, "client certificates are required");
        Ok(Self(Arc::new(ClientVerifier {
            file,
            names,
            first,
            authorities: ArcSwap::from_pointee(authorities),
        })))
    }

    /// Loads each new valid content of the file, which applies from the next handshake on. Never returns.
    pub async fn run(&self) {
        let mut polled = PolledContent::new(Ok(self.0.first.clone()));
        let file = self.0.file.clone();
        let read = move || {
            std::fs::read(&file).map_err(|source| causes(&ClientsError::Read { path: file.clone(), source }))
        };
        poll(read, |content| self.0.check(&mut polled, content)).await;
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.0.clone()
    }
}

impl ClientVerifier {
    /// Handles one read of the file.
    fn check(&self, polled: &mut PolledContent<FileContent>, content: FileContent) {
        if polled.is_loaded(&content) || !polled.is_repeated(content.clone()) {
            return;
        }
        let read = content.clone().and_then(|content| {
            let authorities = verifier(&self.file, &content).map_err(|error| causes(&error))?;
            Ok((content, authorities))
        });
        match read {
            Ok((content, authorities)) => {
                self.authorities.store(Arc::new(authorities));
                *polled = PolledContent::new(Ok(content));
                tracing::info!(file = %self.file.display(), "new client CA in use");
            }
            Err(error) if polled.is_unreported(content) => {
                tracing::error!(%error, "new client CA refused; the previous one stays in use");
            }
            Err(_) => {}
        }
    }
}

/// The verifier of the chain of a client's certificate.
fn verifier(file: &Path, pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ClientsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(pem));
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|_| ClientsError::Authority { path: file.to_owned() })
}

impl ClientCertVerifier for ClientVerifier {
    /// None: the CAs change, and a client with one certificate sends that one.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.authorities.load().verify_client_cert(certificate, intermediates, now)?;
        if self.names.is_empty() || named(certificate, &self.names) {
            return Ok(verified);
        }
        tracing::debug!(wanted = ?self.names, "a client's certificate has another name");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Whether the common name or a DNS name of the certificate is one of `names`.
fn named(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let alternative = alternative.map_or(&[][..], |extension| &extension.value.general_names);
    let dns = alternative.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let mut common = common.filter(|name| names.iter().any(|wanted| wanted == name));
    let mut dns = dns.filter(|name| names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name)));
    common.next().is_some() || dns.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn named_by(common: &str, dns: &[&str], address: &str, names: &[&str]) -> bool {
        let mut params =
            CertificateParams::new(dns.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.subject_alt_names.push(SanType::IpAddress(address.parse().unwrap()));
        params.distinguished_name.push(DnType::CommonName, common);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        named(certificate.der(), &names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn certificate_matches_common_name_and_dns_names_only() {
        for (names, expected) in [
            (&["kube-apiserver"][..], true),
            (&["other", "kube-apiserver"], true),
            (&["API.example"], true),
            (&["second.example"], true),
            (&["Kube-apiserver"], false),
            (&["kube"], false),
            (&["kube-apiserver-2"], false),
            (&["x.second.example"], false),
            (&["*.example"], false),
            (&["192.0.2.1"], false),
            (&[""], false),
        ] {
            let dns = ["api.example", "second.example"];
            assert_eq!(named_by("kube-apiserver", &dns, "192.0.2.1", names), expected, "{names:?}");
        }
        assert!(!named_by("*.example", &[], "192.0.2.1", &["a.example"]), "no wildcards");
    }
}
