//! The content of the Secret `confrev-ca`, which the replicas share, and its next state, as pure functions.
//!
//! The next CA replaces the current one in three steps, so that no request fails:
//! 1. The next CA is made and added to the bundle; the current CA continues to sign.
//! 2. When every API server has had time to trust it, it becomes the current CA, and replicas issue from it.
//! 3. The old CA leaves the bundle when all its certificates must have expired.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::ca::{CaError, CertificateAuthority, after, to_pem};
use super::pair::Validity;
use super::trust::{Bundle, certificates};

const CERTIFICATE: &str = "tls.crt";
const SIGNING_KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// When `tls.crt` began to sign, RFC 3339.
const SINCE: &str = "since";

/// The lifetimes of certificates. The defaults are for production; tests use seconds.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// The lifetime of the CA; the next one is made after four fifths of it.
    pub authority: Duration,
    /// The lifetime of a serving certificate, which is renewed after two thirds of it. At most a fifth of the CA's.
    pub serving: Duration,
    /// How long a CA must have been in the webhook configurations before it issues anything: time for every API server
    /// to learn of it.
    pub settle: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: Duration::from_hours(3650 * 24),
            serving: Duration::from_hours(30 * 24),
            settle: Duration::from_secs(30),
        }
    }
}

/// The content of the Secret.
#[derive(Clone, Debug)]
pub(super) struct CaSecret {
    /// The CA that signs.
    pub(super) current: Arc<CertificateAuthority>,
    /// The CA that will sign once it is trusted everywhere.
    pub(super) next: Option<Arc<CertificateAuthority>>,
    /// The CAs that clients trust.
    pub(super) bundle: Vec<CertificateDer<'static>>,
    /// When `current` began to sign; `None` if another client wrote the Secret.
    since: Option<Timestamp>,
}

/// What a replica knows in addition to the Secret.
#[derive(Debug, Default)]
pub(super) struct ReplicaCas {
    /// The CA of its own serving certificate.
    pub(super) own: Option<Arc<CertificateAuthority>>,
    /// The CAs that every API server trusts by now.
    pub(super) settled: Vec<CertificateDer<'static>>,
}

impl CaSecret {
    /// The first content of the Secret.
    pub(super) fn create(now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, CaError> {
        let current = Arc::new(CertificateAuthority::generate(now, lifetimes.authority)?);
        let bundle = vec![current.certificate().clone()];
        Ok(Self { current, next: None, bundle, since: Some(now) })
    }

    /// The content after the Secret was deleted while replicas run. Deleting the Secret asks for another CA. `own`
    /// still signs the certificates in use, so the other CA follows by the usual steps.
    pub(super) fn recreate(
        own: Arc<CertificateAuthority>,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Self, CaError> {
        let bundle = vec![own.certificate().clone()];
        Self { current: own, next: None, bundle, since: Some(now) }.with_next(now, lifetimes)
    }

    /// Reads the data of the Secret.
    pub(super) fn parse(data: &BTreeMap<String, ByteString>) -> Result<Self, CaError> {
        let field = |name: &str| data.get(name).map_or(&[][..], |value| &value.0);
        let current = Arc::new(CertificateAuthority::from_pem(field(CERTIFICATE), field(SIGNING_KEY))?);
        // A broken next CA signs nothing yet, so nothing is lost: another one is made in time.
        let next =
            CertificateAuthority::from_pem(field(NEXT_CERTIFICATE), field(NEXT_KEY)).ok().map(Arc::new);
        let since = std::str::from_utf8(field(SINCE)).ok().and_then(|text| text.parse().ok());
        Ok(Self { current, next, bundle: certificates(field(BUNDLE)), since })
    }

    /// The data of the Secret.
    pub(super) fn data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::from([
            (CERTIFICATE, to_pem(self.current.certificate())),
            (SIGNING_KEY, self.current.key_pem()),
            (BUNDLE, self.bundle.iter().map(to_pem).collect()),
        ]);
        data.extend(self.since.map(|since| (SINCE, since.to_string())));
        if let Some(next) = &self.next {
            data.insert(NEXT_CERTIFICATE, to_pem(next.certificate()));
            data.insert(NEXT_KEY, next.key_pem());
        }
        data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
    }

    /// The bundle in PEM.
    pub(super) fn bundle_pem(&self) -> Bundle {
        self.bundle.iter().map(to_pem).collect::<String>().into_bytes().into()
    }

    /// The next content at `now`; `None` if the content need not change.
    pub(super) fn follow(
        &self,
        known: &ReplicaCas,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Option<Self>, CaError> {
        let expired = now >= self.current.validity().to;
        let mut after = match &self.next {
            Some(next) if expired || known.settled.contains(next.certificate()) => self.promote(next, now),
            // The current CA has expired, so waiting for trust is pointless.
            None if expired => Self::create(now, lifetimes)?,
            None if now >= renewal(self.current.validity()) => self.clone().with_next(now, lifetimes)?,
            _ => self.clone(),
        };
        after.update_bundle(known, now, lifetimes);
        Ok((!after.same(self)).then_some(after))
    }

    fn with_next(mut self, now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, CaError> {
        let next = CertificateAuthority::generate(now, lifetimes.authority)?;
        self.bundle.push(next.certificate().clone());
        self.next = Some(Arc::new(next));
        Ok(self)
    }

    fn promote(&self, next: &Arc<CertificateAuthority>, now: Timestamp) -> Self {
        Self { current: next.clone(), next: None, bundle: self.bundle.clone(), since: Some(now) }
    }

    /// Sets the bundle to the CAs that sign, will sign, or have signed certificates that may still be served; no
    /// others.
    fn update_bundle(&mut self, known: &ReplicaCas, now: Timestamp, lifetimes: &Lifetimes) {
        let since = *self.since.get_or_insert(now);
        let mut wanted = vec![self.current.certificate().clone()];
        wanted.extend(self.next.iter().map(|next| next.certificate().clone()));
        if now < after(since, lifetimes.serving) {
            wanted.extend(self.bundle.iter().cloned());
            wanted.extend(known.own.iter().map(|own| own.certificate().clone()));
        }
        wanted.retain(|certificate| {
            certificate == self.current.certificate()
                || Validity::of(certificate).is_ok_and(|validity| now < validity.to)
        });
        // Existing CAs keep their order, so that equal content gives an equal bundle.
        self.bundle.retain(|certificate| wanted.contains(certificate));
        for certificate in wanted {
            if !self.bundle.contains(&certificate) {
                self.bundle.push(certificate);
            }
        }
    }

    fn same(&self, other: &Self) -> bool {
        let next = |shared: &Self| shared.next.as_ref().map(|next| next.certificate().clone());
        self.current.certificate() == other.current.certificate()
            && next(self) == next(other)
            && self.bundle == other.bundle
            && self.since == other.since
    }

    /// The CA from which a replica should issue a new serving certificate now. `None` if its certificate, issued by
    /// `known.own` with the validity `serving`, is still good.
    pub(super) fn issuer(
        &self,
        known: &ReplicaCas,
        serving: Option<Validity>,
        now: Timestamp,
    ) -> Option<Arc<CertificateAuthority>> {
        let (Some(own), Some(serving)) = (&known.own, serving) else { return Some(self.current.clone()) };
        let trusted = |authority: &CertificateAuthority| known.settled.contains(authority.certificate());
        let moved = own.certificate() != self.current.certificate();
        let own_trusted = self.bundle.contains(own.certificate());
        if moved && (trusted(&self.current) || !own_trusted || now >= own.validity().to) {
            return Some(self.current.clone());
        }
        // `own` continues to sign until the current CA is trusted everywhere.
        (now >= renewal_of_serving(serving)).then(|| own.clone())
    }
}

/// A CA is renewed after four fifths of its life: two years before the end of ten.
fn renewal(validity: Validity) -> Timestamp {
    fraction_of_life(validity, 4, 5)
}

/// A serving certificate is renewed after two thirds of its life.
pub(super) fn renewal_of_serving(validity: Validity) -> Timestamp {
    fraction_of_life(validity, 2, 3)
}

fn fraction_of_life(validity: Validity, of: i32, whole: i32) -> Timestamp {
    let life = validity.from.duration_until(validity.to);
    validity.from.checked_add(life / whole * of).unwrap_or(validity.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    const DAY: Duration = Duration::from_hours(24);
    const LIFETIMES: Lifetimes = Lifetimes {
        authority: Duration::from_hours(3650 * 24),
        serving: Duration::from_hours(30 * 24),
        settle: DAY,
    };

    fn start() -> Timestamp {
        "2030-01-01T00:00:00Z".parse().unwrap()
    }

    fn day(count: i64) -> Timestamp {
        start() + SignedDuration::from_hours(24 * count)
    }

    fn follow(shared: &CaSecret, known: &ReplicaCas, now: Timestamp) -> Option<CaSecret> {
        shared.follow(known, now, &LIFETIMES).unwrap()
    }

    fn serving(from: Timestamp) -> Validity {
        Validity { from, to: from + SignedDuration::from_hours(24 * 30) }
    }

    #[test]
    fn valid_ca_and_certificate_are_not_renewed() {
        let shared = CaSecret::create(start(), &LIFETIMES).unwrap();
        let known = ReplicaCas { own: Some(shared.current.clone()), ..ReplicaCas::default() };
        assert!(follow(&shared, &known, day(1)).is_none());
        assert!(follow(&shared, &known, day(2900)).is_none());
        assert!(shared.issuer(&known, Some(serving(day(0))), day(19)).is_none());
    }

    #[test]
    fn the_secret_is_read_as_it_was_written() {
        let shared = CaSecret::create(start(), &LIFETIMES).unwrap().with_next(start(), &LIFETIMES).unwrap();
        let again = CaSecret::parse(&shared.data()).unwrap();
        assert!(again.same(&shared));
        assert_eq!(again.bundle_pem(), shared.bundle_pem());
    }

    #[test]
    fn a_serving_certificate_is_renewed_after_two_thirds() {
        let shared = CaSecret::create(start(), &LIFETIMES).unwrap();
        let known = ReplicaCas { own: Some(shared.current.clone()), ..ReplicaCas::default() };
        assert!(shared.issuer(&known, Some(serving(day(0))), day(21)).is_some());
        assert!(
            shared.issuer(&ReplicaCas::default(), None, day(0)).is_some(),
            "the first certificate is issued immediately"
        );
    }

    #[test]
    fn next_ca_signs_only_after_it_is_trusted() {
        let first = CaSecret::create(start(), &LIFETIMES).unwrap();
        let mut known = ReplicaCas { own: Some(first.current.clone()), ..ReplicaCas::default() };

        let with_next = follow(&first, &known, day(2921)).expect("four fifths of 3650 days are over");
        assert_eq!(with_next.current.certificate(), first.current.certificate());
        assert_eq!(with_next.bundle.len(), 2);
        assert!(follow(&with_next, &known, day(2922)).is_none(), "the next CA is not trusted yet");
        assert!(with_next.issuer(&known, Some(serving(day(2921))), day(2922)).is_none());

        let next = with_next.next.clone().unwrap();
        known.settled = vec![first.current.certificate().clone()];
        assert!(follow(&with_next, &known, day(2922)).is_none(), "the old bundle is not enough");
        known.settled = with_next.bundle.clone();
        let promoted = follow(&with_next, &known, day(2922)).expect("trusted");
        assert_eq!(promoted.current.certificate(), next.certificate());
        assert_eq!(promoted.bundle.len(), 2, "other replicas may still serve certificates of the old CA");
        let issuer =
            promoted.issuer(&known, Some(serving(day(2921))), day(2922)).expect("issued immediately");
        assert_eq!(issuer.certificate(), next.certificate());

        known.own = Some(next.clone());
        assert!(
            follow(&promoted, &known, day(2951)).is_none(),
            "a certificate of 30 days may still be valid"
        );
        let trimmed = follow(&promoted, &known, day(2952)).expect("every certificate has expired");
        assert_eq!(trimmed.bundle, [next.certificate().clone()]);
        assert!(follow(&trimmed, &known, day(2953)).is_none());
    }

    #[test]
    fn expired_ca_is_replaced_without_waiting() {
        let first = CaSecret::create(start(), &LIFETIMES).unwrap();
        let late = day(3651);
        let fresh = follow(&first, &ReplicaCas::default(), late).expect("a new CA");
        assert_ne!(fresh.current.certificate(), first.current.certificate());
        assert_eq!(fresh.bundle, [fresh.current.certificate().clone()]);
        let staged = first.clone().with_next(day(2921), &LIFETIMES).unwrap();
        let promoted = follow(&staged, &ReplicaCas::default(), late).expect("the next CA");
        assert_eq!(promoted.current.certificate(), staged.next.unwrap().certificate());
    }

    #[test]
    fn recreated_secret_has_current_and_next_ca() {
        let first = CaSecret::create(start(), &LIFETIMES).unwrap();
        let again = CaSecret::recreate(first.current.clone(), day(5), &LIFETIMES).unwrap();
        assert_eq!(again.current.certificate(), first.current.certificate());
        let known = ReplicaCas { own: Some(first.current), settled: again.bundle.clone() };
        let promoted = follow(&again, &known, day(5)).expect("the next CA signs as soon as it is trusted");
        assert_ne!(promoted.current.certificate(), again.current.certificate());
    }

    #[test]
    fn other_ca_in_secret_signs_once_trusted() {
        let (mine, other) =
            (CaSecret::create(start(), &LIFETIMES).unwrap(), CaSecret::create(day(1), &LIFETIMES).unwrap());
        let mut known = ReplicaCas { own: Some(mine.current.clone()), settled: mine.bundle.clone() };
        let both =
            follow(&other, &known, day(1)).expect("the CA of the served certificate must stay trusted");
        assert_eq!(both.bundle.len(), 2);
        assert!(both.issuer(&known, Some(serving(day(0))), day(1)).is_none(), "not trusted yet");
        known.settled = both.bundle.clone();
        let issuer = both.issuer(&known, Some(serving(day(0))), day(1)).expect("trusted");
        assert_eq!(issuer.certificate(), other.current.certificate());
    }

    #[test]
    fn bundle_without_signing_ca_is_repaired() {
        let mut shared = CaSecret::create(start(), &LIFETIMES).unwrap();
        let whole = shared.bundle.clone();
        shared.bundle.clear();
        assert_eq!(follow(&shared, &ReplicaCas::default(), day(1)).expect("repaired").bundle, whole);
    }
}
