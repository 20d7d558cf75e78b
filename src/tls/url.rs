//! The URL at which the API server reaches the webhook when confrev runs outside the cluster.
use std::fmt;
use std::str::FromStr;

use http::Uri;

/// `--webhook-url`: `https://HOST` or `https://HOST:PORT`, to which the path of each webhook is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    base: String,
    host: String,
}

/// The value is not an `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid webhook URL {0:?}: use https://HOST or https://HOST:PORT (confrev appends the paths of the webhooks)"
)]
pub struct NotAWebhookUrl(String);

impl WebhookUrl {
    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The URL of the webhook at `path`, which is empty or starts with `/`.
    pub fn with_path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

impl FromStr for WebhookUrl {
    type Err = NotAWebhookUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || NotAWebhookUrl(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let authority = uri.authority().ok_or_else(refused)?;
        let plain = uri.scheme_str() == Some("https")
            && uri.path_and_query().is_none_or(|rest| rest == "/")
            && !authority.as_str().contains('@')
            && !text.contains('#')
            // `http` does not report an invalid port.
            && (authority.as_str() == authority.host() || authority.port_u16().is_some());
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if !plain || host.is_empty() {
            return Err(refused());
        }
        Ok(Self { base: format!("https://{authority}"), host: host.to_owned() })
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_host_with_or_without_port() {
        for (text, host, url) in [
            ("https://127.0.0.1:8443", "127.0.0.1", "https://127.0.0.1:8443/x"),
            ("https://127.0.0.1:8443/", "127.0.0.1", "https://127.0.0.1:8443/x"),
            ("https://confrev.example.com", "confrev.example.com", "https://confrev.example.com/x"),
            ("https://[::1]:8443", "::1", "https://[::1]:8443/x"),
        ] {
            let parsed: WebhookUrl = text.parse().unwrap();
            assert_eq!((parsed.host(), parsed.with_path("/x").as_str()), (host, url));
        }
    }

    #[test]
    fn rejects_other_webhook_urls() {
        for text in [
            "",
            "127.0.0.1:8443",
            "http://127.0.0.1:8443",
            "https://",
            "https://host/path",
            "https://host/?query",
            "https://host/#fragment",
            "https://user@host",
            "https://host:",
            "https://host:99999",
            "https://host:x",
        ] {
            assert!(text.parse::<WebhookUrl>().is_err(), "{text}");
        }
    }
}
