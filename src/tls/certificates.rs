//! Where the serving certificate comes from: files, or confrev's own CA.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_rustls::rustls::ServerConfig;

use super::clients::{Clients, ClientsError};
use super::files::{Files, FilesError, Transition};
use super::self_signed::{SelfSigned, SelfSignedError, SelfSignedOptions};
use super::serving::Serving;
use super::trust::{Bundle, Trust};
use crate::telemetry::{Condition, Metrics};

/// Where the serving certificate comes from. Cheap to clone; clones are the same source.
#[derive(Clone, Debug)]
pub struct CertificateSource(SourceImpl);

#[derive(Clone, Debug)]
enum SourceImpl {
    Files(Arc<Files>),
    SelfSigned(Arc<SelfSigned>),
}

/// Why there is no serving certificate to start with, or no CA to publish.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// An error of `--tls-dir`.
    #[error("--tls-dir holds no usable certificate")]
    Files(#[from] FilesError),
    /// An error of `--self-signed`.
    #[error("--self-signed has no usable CA")]
    SelfSigned(#[from] SelfSignedError),
    /// An error of `--client-ca`.
    #[error(transparent)]
    Clients(#[from] ClientsError),
}

impl CertificateSource {
    /// `--tls-dir`: the pair `tls.crt` and `tls.key` in `dir`, and `ca.crt` if it exists. `condition` holds while the
    /// certificate in use is valid.
    pub fn files(dir: impl Into<PathBuf>, metrics: Metrics, condition: Condition) -> Result<Self, TlsError> {
        Self::files_with(dir, Transition::default(), metrics, condition)
    }

    /// The same, with other times of the change from one CA to the next.
    pub fn files_with(
        dir: impl Into<PathBuf>,
        transition: Transition,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, TlsError> {
        let files = Files::open(dir.into(), transition, metrics, condition)?;
        Ok(Self(SourceImpl::Files(Arc::new(files))))
    }

    /// `--self-signed`: a CA in the Secret `confrev-ca`, shared by all replicas and created if it does not exist; and a
    /// serving certificate for each replica. `condition` holds while that certificate is valid.
    pub async fn self_signed(
        client: Client,
        options: SelfSignedOptions,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, TlsError> {
        let source = SelfSigned::start(client, options, metrics, condition).await?;
        Ok(Self(SourceImpl::SelfSigned(Arc::new(source))))
    }

    /// The settings for a listener. Each handshake presents the certificate in use at that time.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.serving().server_config(None)
    }

    /// The same for clients that need a certificate: without a valid one, the handshake fails.
    pub fn server_config_for(&self, clients: &Clients) -> Arc<ServerConfig> {
        self.serving().server_config(Some(clients))
    }

    /// The certificate in use.
    pub fn serving(&self) -> &Serving {
        match &self.0 {
            SourceImpl::Files(files) => files.serving(),
            SourceImpl::SelfSigned(source) => source.serving(),
        }
    }

    /// Keeps the certificate fresh. Never returns; may be dropped at any point.
    pub async fn run(&self) {
        match &self.0 {
            SourceImpl::Files(files) => files.run().await,
            SourceImpl::SelfSigned(source) => source.run().await,
        }
    }

    /// Whether the CA belongs to confrev, so that annotations for another injector of `caBundle` do not count.
    pub(super) fn owns_ca(&self) -> bool {
        matches!(self.0, SourceImpl::SelfSigned(_))
    }

    /// The CAs that clients should trust at this moment; `None` if the source knows none.
    pub(super) async fn bundle(&self) -> Result<Option<Bundle>, TlsError> {
        match &self.0 {
            SourceImpl::Files(files) => Ok(files.trust().wanted()),
            SourceImpl::SelfSigned(source) => Ok(Some(source.fresh_bundle().await?)),
        }
    }

    /// How long a CA that this source does not want stays in the webhook configurations.
    pub(super) fn linger(&self) -> Duration {
        match &self.0 {
            SourceImpl::Files(files) => files.transition().linger,
            SourceImpl::SelfSigned(source) => source.settle(),
        }
    }

    pub(super) fn trust(&self) -> &Trust {
        match &self.0 {
            SourceImpl::Files(files) => files.trust(),
            SourceImpl::SelfSigned(source) => source.trust(),
        }
    }
}
