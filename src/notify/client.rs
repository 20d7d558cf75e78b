//! The HTTP client of notifications. The URL may be a secret, as Slack's are: no error and no log line shows it.

use std::{fmt, io, path::Path, str::FromStr, sync::Arc, time::Duration};

use http::{Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, pki_types::CertificateDer};

/// The time limit of one post, answer included.
const POST_LIMIT: Duration = Duration::from_secs(10);

/// The address of the receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct NotifyUrl(Uri);

impl fmt::Debug for NotifyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotifyUrl")
    }
}

/// A text that is not an address of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a URL of a receiver: use http://HOST/PATH or https://HOST/PATH, without a user or a password")]
pub struct NotifyUrlError;

impl FromStr for NotifyUrl {
    type Err = NotifyUrlError;

    fn from_str(text: &str) -> Result<Self, NotifyUrlError> {
        let uri: Uri = text.trim().parse().map_err(|_| NotifyUrlError)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        // A port that is not a number is cut off by the parser of the host.
        let has_port = uri.authority().is_some_and(|authority| {
            let after = authority.as_str().rsplit(']').next().unwrap_or_default();
            !after.contains(':') || authority.port_u16().is_some_and(|port| port > 0)
        });
        if is_http && has_host && has_port && !has_user { Ok(Self(uri)) } else { Err(NotifyUrlError) }
    }
}

/// Why posts cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file of CA certificates cannot be used.
    #[error("--notify-ca {file}: {reason}")]
    Ca {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// The system has no CA certificates.
    #[error("--notify: no CA certificates were found for https: give --notify-ca FILE, or set SSL_CERT_FILE")]
    NoRoots,
    /// TLS cannot be set up.
    #[error("--notify: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why a post had no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    /// There was no answer in time.
    #[error("the receiver did not answer in {} seconds", POST_LIMIT.as_secs())]
    Late,
    /// The connection failed.
    #[error("the receiver cannot be reached: {0}")]
    Unreachable(String),
    /// A header has characters that HTTP does not allow.
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
}

/// Posts to one URL.
pub(super) struct Poster {
    url: Uri,
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Poster {
    pub(super) fn new(url: &NotifyUrl, ca: Option<&Path>) -> Result<Self, ClientError> {
        let url = url.0.clone();
        let mut roots = RootCertStore::empty();
        if let Some(file) = ca {
            let wrong = |reason: String| ClientError::Ca { file: file.display().to_string(), reason };
            let pem = std::fs::read(file).map_err(|error: io::Error| wrong(error.to_string()))?;
            for pem in x509_parser::pem::Pem::iter_from_buffer(&pem) {
                let pem = pem.map_err(|error| wrong(error.to_string()))?;
                roots.add(CertificateDer::from(pem.contents)).map_err(|error| wrong(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("the file has no certificate".to_owned()));
            }
        } else if url.scheme_str() == Some("https") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(ClientError::NoRoots);
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(POST_LIMIT / 2));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        // A connection is not kept: notifications are rare, and the receiver may move.
        let http = HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { url, http })
    }

    /// Posts a body. Returns the status, and for how long the receiver asks to wait. A redirect is not followed.
    pub(super) async fn post(
        &self,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Option<Duration>), PostError> {
        let mut request = Request::post(self.url.clone())
            .header(header::USER_AGENT, concat!("confrev/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let answer = tokio::time::timeout(POST_LIMIT, self.http.request(request)).await;
        let answer =
            answer.map_err(|_| PostError::Late)?.map_err(|error| PostError::Unreachable(root(&error)))?;
        let seconds =
            answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok((answer.status(), seconds.map(Duration::from_secs)))
    }
}

/// The innermost cause of an error: the outer ones only say that connecting failed.
fn root(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_receivers_are_accepted() {
        for text in [
            "http://a",
            "https://hooks.example.com/services/T/B/x?y=1",
            "http://127.0.0.1:9/x",
            "http://[::1]:8080/",
        ] {
            assert!(text.parse::<NotifyUrl>().is_ok(), "{text}");
        }
        for text in [
            "",
            "a",
            "a/b",
            "/a",
            "ftp://a",
            "http://",
            "http:///x",
            "http://u:p@a",
            "http://a:b/",
            "http://a:0",
            "http://a:99999",
            "https://a b",
        ] {
            assert_eq!(text.parse::<NotifyUrl>(), Err(NotifyUrlError), "{text}");
        }
        let url: NotifyUrl = "https://hooks.example.com/secret".parse().unwrap();
        assert!(!format!("{url:?}").contains("secret"));
    }
}
