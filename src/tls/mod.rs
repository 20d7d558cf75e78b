//! TLS for the webhook: where the serving certificate comes from, and which CA the API server trusts.
//!
//! [`Source`] hides where the certificate comes from. Every source can replace the certificate in use while connections
//! are open, and [`webhooks::Keeper`] sets the CAs that the API server trusts.
mod authority;
mod changes;
mod clients;
mod entries;
mod files;
mod lingering;
mod pair;
mod self_signed;
mod serving;
mod shared;
mod trust;
mod url;
pub mod webhooks;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_rustls::rustls::ServerConfig;

use crate::telemetry::{Condition, Metrics};

pub use clients::{Clients, Error as ClientsError};
pub use files::{Error as FilesError, Transition};
pub use self_signed::{Error as SelfSignedError, Lifetimes, Options as SelfSignedOptions};
pub use serving::Serving;
pub use trust::{Bundle, bundle_end};
pub use url::{NotAWebhookUrl, WebhookUrl};

/// Where the serving certificate comes from. Cheap to clone; clones are the same source.
#[derive(Clone, Debug)]
pub struct Source(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Files(Arc<files::Files>),
    SelfSigned(Arc<self_signed::SelfSigned>),
}

/// Why there is no serving certificate to start with, or no CA to publish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of `--tls-dir`.
    #[error("--tls-dir holds no usable certificate")]
    Files(#[from] files::Error),
    /// An error of `--self-signed`.
    #[error("--self-signed has no usable CA")]
    SelfSigned(#[from] self_signed::Error),
    /// An error of `--client-ca`.
    #[error(transparent)]
    Clients(#[from] clients::Error),
}

impl Source {
    /// `--tls-dir`: the pair `tls.crt` and `tls.key` in `dir`, and `ca.crt` if it exists. `condition` holds while the
    /// certificate in use is valid.
    pub fn files(dir: impl Into<PathBuf>, metrics: Metrics, condition: Condition) -> Result<Self, Error> {
        Self::files_with(dir, Transition::default(), metrics, condition)
    }

    /// The same, with other times of the change from one CA to the next.
    pub fn files_with(
        dir: impl Into<PathBuf>,
        transition: Transition,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, Error> {
        let files = files::Files::open(dir.into(), transition, metrics, condition)?;
        Ok(Self(Kind::Files(Arc::new(files))))
    }

    /// `--self-signed`: a CA in the Secret `confrev-ca`, shared by all replicas and created if it does not exist; and a
    /// serving certificate for each replica. `condition` holds while that certificate is valid.
    pub async fn self_signed(
        client: Client,
        options: SelfSignedOptions,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, Error> {
        let source = self_signed::SelfSigned::start(client, options, metrics, condition).await?;
        Ok(Self(Kind::SelfSigned(Arc::new(source))))
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
            Kind::Files(files) => files.serving(),
            Kind::SelfSigned(source) => source.serving(),
        }
    }

    /// Keeps the certificate fresh. Never returns; may be dropped at any point.
    pub async fn run(&self) {
        match &self.0 {
            Kind::Files(files) => files.run().await,
            Kind::SelfSigned(source) => source.run().await,
        }
    }

    /// Whether the CA belongs to confrev, so that annotations for another injector of `caBundle` do not count.
    fn owns_authority(&self) -> bool {
        matches!(self.0, Kind::SelfSigned(_))
    }

    /// The CAs that clients should trust at this moment; `None` if the source knows none.
    async fn bundle(&self) -> Result<Option<Bundle>, Error> {
        match &self.0 {
            Kind::Files(files) => Ok(files.trust().wanted()),
            Kind::SelfSigned(source) => Ok(Some(source.fresh_bundle().await?)),
        }
    }

    /// How long a CA that this source does not want stays in the webhook configurations.
    fn linger(&self) -> Duration {
        match &self.0 {
            Kind::Files(files) => files.transition().linger,
            Kind::SelfSigned(source) => source.settle(),
        }
    }

    fn trust(&self) -> &trust::Trust {
        match &self.0 {
            Kind::Files(files) => files.trust(),
            Kind::SelfSigned(source) => source.trust(),
        }
    }
}
