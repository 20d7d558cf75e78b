//! The CAs that the API server should trust, and those that it is known to trust. The certificate source and the keeper
//! of the webhook configurations exchange them here.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::ca::to_pem;
use super::pair::Validity;

/// Certificates of CAs, in PEM: a `caBundle` before base64.
pub type Bundle = Arc<[u8]>;

/// The two bundles: wanted by the source, published by the keeper.
#[derive(Debug)]
pub(super) struct Trust {
    wanted: watch::Sender<Option<Bundle>>,
    published: watch::Sender<Option<Published>>,
}

#[derive(Clone, Debug)]
struct Published {
    bundle: Bundle,
    since: Instant,
}

impl Trust {
    pub(super) fn new(wanted: Option<Bundle>) -> Self {
        Self { wanted: watch::Sender::new(wanted), published: watch::Sender::new(None) }
    }

    pub(super) fn wanted(&self) -> Option<Bundle> {
        self.wanted.borrow().clone()
    }

    pub(super) fn want(&self, bundle: Option<Bundle>) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != bundle;
            *wanted = bundle;
            changed
        });
    }

    /// Signals when another bundle is wanted.
    pub(super) fn wanted_changes(&self) -> watch::Receiver<Option<Bundle>> {
        self.wanted.subscribe()
    }

    /// Records that the webhook configurations carry `bundle`, or, with `None`, that they are not right.
    pub(super) fn publish(&self, bundle: Option<Bundle>) {
        self.published.send_if_modified(|published| {
            let changed = published.as_ref().map(|published| &published.bundle) != bundle.as_ref();
            if changed {
                *published = bundle.map(|bundle| Published { bundle, since: Instant::now() });
            }
            changed
        });
    }

    /// Returns when another bundle is published.
    pub(super) async fn published_changed(&self) {
        let mut receiver = self.published.subscribe();
        // The sender lives in `self`, so the channel is open.
        let _ = receiver.changed().await;
    }

    /// The CAs that the webhook configurations are known to carry at this moment.
    pub(super) fn published(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.published.borrow().as_ref().map(|published| certificates(&published.bundle))
    }

    /// The CAs that every API server trusts by now: published for at least `settle` without a break. An API server
    /// learns of a changed webhook configuration from its own watch, a moment after the write.
    pub(super) fn settled(&self, settle: Duration) -> Vec<CertificateDer<'static>> {
        match &*self.published.borrow() {
            Some(published) if published.since.elapsed() >= settle => certificates(&published.bundle),
            _ => Vec::new(),
        }
    }
}

/// The certificates in a PEM text, up to the first unreadable one.
pub(super) fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map_while(Result::ok).collect()
}

/// `pem`, followed by the certificates of `more` that it lacks.
pub(super) fn union(pem: &[u8], more: &[CertificateDer<'static>]) -> Bundle {
    let mut there = certificates(pem);
    let mut pem = pem.to_vec();
    if pem.last().is_some_and(|last| *last != b'\n') {
        pem.push(b'\n');
    }
    for certificate in more {
        if !there.contains(certificate) {
            pem.extend(to_pem(certificate).into_bytes());
            there.push(certificate.clone());
        }
    }
    pem.into()
}

/// Whether both hold the same CAs, in any order and with any text between them.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    let set = |pem: &[u8]| certificates(pem).into_iter().map(|der| der.to_vec()).collect::<BTreeSet<_>>();
    one == other || (!set(one).is_empty() && set(one) == set(other))
}

/// When the last CA in a base64 `caBundle` expires; `None` if no certificate in it can be read.
pub fn bundle_end(ca_bundle: &str) -> Option<Timestamp> {
    let pem = BASE64.decode(ca_bundle).ok()?;
    let ends = certificates(&pem).into_iter().filter_map(|certificate| Validity::of(&certificate).ok());
    ends.map(|validity| validity.to).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_settles_after_uninterrupted_publication() {
        let trust = Trust::new(None);
        let pem = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
        let bundle: Bundle = pem.into_bytes().into();
        let day = Duration::from_hours(24);
        trust.publish(Some(bundle.clone()));
        assert_eq!(trust.settled(Duration::ZERO).len(), 1);
        assert_eq!(trust.settled(day).len(), 0, "the full time must pass");
        trust.publish(None);
        assert_eq!(
            trust.settled(Duration::ZERO).len(),
            0,
            "a bundle that is no longer published is not trusted"
        );
    }
}
