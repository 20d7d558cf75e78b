//! The serving certificate in use: replaced while connections are open, presented from the next handshake on.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::clients::Clients;
use super::pair::{CertifiedPair, Validity, provider};
use crate::telemetry::metrics::Reload;
use crate::telemetry::{Condition, Metrics};

/// A certificate counts as unfit at most this long before its end, so that endpoints have time to change.
const EXPIRY_MARGIN: Duration = Duration::from_mins(1);

/// The serving certificate in use. Cheap to clone; clones share one state.
#[derive(Clone)]
pub struct Serving {
    slot: Arc<Slot>,
    metrics: Metrics,
    condition: Condition,
}

struct Slot(ArcSwap<CertifiedPair>);

impl Serving {
    /// Starts with `pair`.
    pub(super) fn new(pair: CertifiedPair, metrics: Metrics, condition: Condition) -> Self {
        metrics.set_certificate_expiry(pair.validity.to);
        let serving = Self { slot: Arc::new(Slot(ArcSwap::from_pointee(pair))), metrics, condition };
        serving.check(Timestamp::now());
        serving
    }

    /// Presents `pair` from the next handshake on. Open connections continue.
    pub(super) fn replace(&self, pair: CertifiedPair) {
        self.metrics.set_certificate_expiry(pair.validity.to);
        self.metrics.certificate_reload(Reload::Loaded);
        self.slot.0.store(Arc::new(pair));
        self.check(Timestamp::now());
    }

    /// Records that a new pair was broken; the pair in use stays.
    pub(super) fn refused(&self) {
        self.metrics.certificate_reload(Reload::Refused);
    }

    /// Updates the readiness condition with the validity of the certificate in use at `now`. Call this often.
    pub(super) fn check(&self, now: Timestamp) {
        let validity = self.validity();
        if fit(validity, now) {
            self.condition.meet();
        } else {
            self.condition.fail(format!("valid from {} to {} only", validity.from, validity.to));
        }
    }

    pub(super) fn validity(&self) -> Validity {
        self.slot.0.load().validity
    }

    /// When the certificate in use expires.
    pub fn expires(&self) -> Timestamp {
        self.validity().to
    }

    /// The settings for a listener: TLS 1.2 and 1.3, HTTP/1.1 and HTTP/2. With `clients`, every client needs a
    /// certificate.
    pub(super) fn server_config(&self, clients: Option<&Clients>) -> Arc<ServerConfig> {
        let versions = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        // ring has the cipher suites of both versions, so this cannot fail; a default builder is equivalent.
        let builder = versions.unwrap_or_else(|_| ServerConfig::builder());
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(clients.verifier()),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self.slot.clone());
        if clients.is_some() {
            // A resumed session is not verified again, and its certificate may no longer be valid.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        // In order of preference. API servers offer HTTP/2 to a loopback URL only, and that connection would be the one for all their
        // reviews: a replica that hangs would be found out by a ping after 45 s. With HTTP/1.1, a review that times out ends its
        // connection, as behind a Service (k8s.io/apiserver, webhook/client.go).
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
        Arc::new(config)
    }
}

/// Whether a certificate is fit to be presented at `now`. It becomes unfit shortly before its end, so that the replica
/// is unready before the certificate expires.
pub(super) fn fit(validity: Validity, now: Timestamp) -> bool {
    let lifetime = validity.from.duration_until(validity.to);
    let margin = SignedDuration::try_from(EXPIRY_MARGIN).unwrap_or(SignedDuration::ZERO).min(lifetime / 20);
    validity.from <= now && now.duration_until(validity.to) > margin
}

impl ResolvesServerCert for Slot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().key.clone())
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load().fmt(out)
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Serving").field("slot", &self.slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn certificate_is_unfit_before_start_and_near_end() {
        let validity = Validity { from: at("2030-01-01T00:00:00Z"), to: at("2030-01-31T00:00:00Z") };
        assert!(!fit(validity, at("2029-12-31T23:59:59Z")));
        assert!(fit(validity, at("2030-01-01T00:00:00Z")));
        assert!(fit(validity, at("2030-01-30T23:58:59Z")));
        assert!(!fit(validity, at("2030-01-30T23:59:00Z")));
    }

    #[test]
    fn short_lived_certificate_is_fit_almost_until_expiry() {
        let validity = Validity { from: at("2030-01-01T00:00:00Z"), to: at("2030-01-01T00:00:10Z") };
        assert!(fit(validity, at("2030-01-01T00:00:09Z")));
        assert!(!fit(validity, at("2030-01-01T00:00:10Z")));
    }
}
