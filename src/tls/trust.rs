//! Which authorities the API server should trust, and which it is known to trust: the word between the source of
//! certificates and the keeper of the webhook configurations.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::authority::to_pem;
use super::pair::Validity;

/// Certificates of authorities, in PEM, as they belong into `caBundle` before base64.
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

    /// Fires when another bundle is wanted.
    pub(super) fn wanted_changes(&self) -> watch::Receiver<Option<Bundle>> {
        self.wanted.subscribe()
    }

    /// The webhook configurations were seen to carry `bundle`, or, with `None`, not to be right.
    pub(super) fn publish(&self, bundle: Option<Bundle>) {
        self.published.send_if_modified(|published| {
            let changed = published.as_ref().map(|published| &published.bundle) != bundle.as_ref();
            if changed {
                *published = bundle.map(|bundle| Published { bundle, since: Instant::now() });
            }
            changed
        });
    }

    /// Wakes when something else was published.
    pub(super) async fn published_changed(&self) {
        let mut receiver = self.published.subscribe();
        // The sender lives in `self`, so the channel is open.
        let _ = receiver.changed().await;
    }

    /// The authorities that the webhook configurations carry at this moment, as far as is known.
    pub(super) fn published(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.published.borrow().as_ref().map(|published| certificates(&published.bundle))
    }

    /// The authorities that every API server trusts by now: published for at least `settle` without a break. An API
    /// server learns of a changed webhook configuration from its own watch, a moment after the write.
    pub(super) fn settled(&self, settle: Duration) -> Vec<CertificateDer<'static>> {
        match &*self.published.borrow() {
            Some(published) if published.since.elapsed() >= settle => certificates(&published.bundle),
            _ => Vec::new(),
        }
    }
}

/// The certificates in a PEM text, as far as they can be read.
pub(super) fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map_while(Result::ok).collect()
}

/// `pem`, and after it what of `more` is not in it.
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

/// Whether both hold the same authorities, in whatever order and with whatever between them.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    let set = |pem: &[u8]| certificates(pem).into_iter().map(|der| der.to_vec()).collect::<BTreeSet<_>>();
    one == other || (!set(one).is_empty() && set(one) == set(other))
}

/// Until when some authority of a `caBundle`, in base64, is valid; `None` where it holds none that can be read.
pub fn bundle_end(ca_bundle: &str) -> Option<Timestamp> {
    let pem = BASE64.decode(ca_bundle).ok()?;
    let ends = certificates(&pem).into_iter().filter_map(|certificate| Validity::of(&certificate).ok());
    ends.map(|validity| validity.to).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_settles_only_after_its_time_and_without_a_break() {
        let trust = Trust::new(None);
        let pem = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
        let bundle: Bundle = pem.into_bytes().into();
        let day = Duration::from_hours(24);
        trust.publish(Some(bundle.clone()));
        assert_eq!(trust.settled(Duration::ZERO).len(), 1);
        assert_eq!(trust.settled(day).len(), 0, "it takes the whole time");
        trust.publish(None);
        assert_eq!(trust.settled(Duration::ZERO).len(), 0, "what is no longer published is not trusted");
    }
}
