//! TLS for the webhook: where the serving certificate comes from, and which CA the API server trusts.
//!
//! [`CertificateSource`] hides where the certificate comes from. Every source can replace the certificate in use while
//! connections are open, and [`webhooks::Keeper`] sets the CAs that the API server trusts.
mod ca;
mod ca_secret;
mod certificates;
mod clients;
mod entries;
mod files;
mod lingering;
mod pair;
mod poll;
mod requests;
mod self_signed;
mod serving;
mod trust;
mod url;
pub mod webhooks;

pub use ca_secret::Lifetimes;
pub use certificates::{CertificateSource, TlsError};
pub use clients::{Clients, ClientsError};
pub use files::{FilesError, Transition};
pub use self_signed::{SelfSignedError, SelfSignedOptions};
pub use serving::Serving;
pub use trust::{Bundle, bundle_end};
pub use url::{NotAWebhookUrl, WebhookUrl};
