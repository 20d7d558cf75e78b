//! CAs that this replica does not want: no longer, or not yet. They stay in the webhook configurations for a while,
//! since another replica may serve a certificate of theirs. Files arrive at different times on different nodes, and a
//! replica that has just started knows nothing of the others.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::pair::Validity;
use super::trust::{Bundle, certificates, union};

/// The unwanted CAs in the configurations, and since when each was found.
#[derive(Debug)]
pub(super) struct Lingering {
    limit: Duration,
    since: BTreeMap<Vec<u8>, Instant>,
}

impl Lingering {
    /// Keeps each unwanted CA for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: BTreeMap::new() }
    }

    /// `wanted`, and the other CAs in `present` whose time is not over. A CA that has expired is removed at once.
    pub(super) fn keep(
        &mut self,
        wanted: &Bundle,
        present: &[CertificateDer<'static>],
        now: Instant,
        clock: Timestamp,
    ) -> Bundle {
        let wanted_ones = certificates(wanted);
        let alive = |one: &CertificateDer<'_>| Validity::of(one).is_ok_and(|validity| clock < validity.to);
        let others: Vec<_> =
            present.iter().filter(|one| !wanted_ones.contains(one) && alive(one)).cloned().collect();
        self.since.retain(|der, _| others.iter().any(|one| one.as_ref() == der));
        let mut kept = Vec::new();
        for one in others {
            let since = *self.since.entry(one.to_vec()).or_insert(now);
            if now.duration_since(since) < self.limit {
                kept.push(one);
            }
        }
        if kept.is_empty() { wanted.clone() } else { union(wanted, &kept) }
    }

    /// The time until the next CA has to be removed.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        let ages = self.since.values().map(|since| now.duration_since(*since));
        ages.filter_map(|age| self.limit.checked_sub(age)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    const LIMIT: Duration = Duration::from_mins(10);

    fn authority(until: i32) -> (String, CertificateDer<'static>) {
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        (certificate.pem(), certificate.der().clone())
    }

    /// Another writer that adds the CA again meanwhile does not restart the time.
    #[test]
    fn previous_ca_stays_for_a_limited_time() {
        let ((new, new_der), (_, old_der), (_, over)) = (authority(2100), authority(2100), authority(2001));
        let wanted: Bundle = new.into_bytes().into();
        let (start, clock) = (Instant::now(), Timestamp::now());
        let mut lingering = Lingering::new(LIMIT);
        let mut keep = |present: &[CertificateDer<'static>], after: Duration| {
            certificates(&lingering.keep(&wanted, present, start + after, clock))
        };
        let both = [new_der.clone(), old_der.clone()];
        let alone = &both[..1];
        assert_eq!(keep(&[old_der.clone(), over], Duration::ZERO), both);
        assert_eq!(keep(&both, LIMIT / 2), both);
        assert_eq!(keep(&both, LIMIT), alone);
        assert_eq!(
            keep(&both, LIMIT * 2),
            alone,
            "another writer that adds it again does not restart the time"
        );
        assert_eq!(keep(alone, LIMIT * 2), alone);
        assert_eq!(keep(&both, LIMIT * 3), both, "the time restarts if it was removed and added again");
        assert_eq!(lingering.next(start + LIMIT * 3 + LIMIT / 4), Some(LIMIT / 4 * 3));
    }

    #[test]
    fn bundle_is_unchanged_without_previous_cas() {
        let (pem, der) = authority(2100);
        let wanted: Bundle = format!("# a word\n{pem}").into_bytes().into();
        let mut lingering = Lingering::new(LIMIT);
        for present in [vec![], vec![der]] {
            assert_eq!(lingering.keep(&wanted, &present, Instant::now(), Timestamp::now()), wanted);
        }
        assert_eq!(lingering.next(Instant::now()), None);
    }
}
