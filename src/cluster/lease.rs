//! The Lease by which one replica leads. Expiry is judged by one's own clock alone: a holder is gone when its record has
//! not changed for as long as the lease lasts, whatever the times written in it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

/// How long a lease lasts after its last renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// The Lease's name, in confrev's namespace.
const NAME: &str = "confrev";

/// One replica's hold on the Lease.
pub struct Lease {
    api: Api<LeaseObject>,
    identity: String,
    observed: Option<LeaseRecord>,
}

/// A state of the Lease, and since when it is unchanged by this replica's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The resourceVersion that was read.
    pub resource_version: String,
    /// When it was first read.
    pub since: Instant,
}

impl LeaseRecord {
    /// Whether whoever holds this record lost it by `now`.
    pub fn expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= DURATION
    }

    /// The record after reading `resource_version` at `now`.
    pub fn observe(previous: Option<Self>, resource_version: &str, now: Instant) -> Self {
        match previous {
            Some(same) if same.resource_version == resource_version => same,
            _ => Self { resource_version: resource_version.to_owned(), since: now },
        }
    }
}

impl Lease {
    /// The Lease in that namespace, to be held as `identity`, which no other replica has.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self { api: Api::namespaced(client, namespace), identity, observed: None }
    }

    /// Takes or renews the Lease where it is free, expired or already held. Answers whether it is held now; the hold
    /// began before the call, so count its duration from then.
    pub async fn attempt(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(NAME).await? else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let lease = LeaseObject { metadata, spec: Some(self.spec(None)) };
            return outcome(self.api.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let record = LeaseRecord::observe(self.observed.take(), &version, Instant::now());
        let spec = lease.spec.take();
        let holder = spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let free = holder.is_empty() || holder == self.identity || record.expired(Instant::now());
        self.observed = Some(record);
        if !free {
            return Ok(false);
        }
        lease.spec = Some(self.spec(spec));
        outcome(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    /// Gives the Lease up, so that another replica need not wait for its expiry.
    pub async fn release(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(NAME).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        outcome(self.api.replace(NAME, &PostParams::default(), &lease).await).map(|_| ())
    }

    /// The record of this replica's hold, after `previous`.
    fn spec(&self, previous: Option<LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mut spec = previous.unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
            spec.acquire_time = Some(now.clone());
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = Some(now);
        spec
    }
}

/// Whether a conditional write took effect; that another replica was faster is no error.
fn outcome<T>(written: kube::Result<T>) -> kube::Result<bool> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_expires_by_the_readers_clock_only_when_its_record_stands_still() {
        let start = Instant::now();
        let first = LeaseRecord::observe(None, "1", start);
        let again = LeaseRecord::observe(Some(first.clone()), "1", start + DURATION / 2);
        assert_eq!(again, first, "an unchanged record keeps its age");
        assert!(!again.expired(start + DURATION - Duration::from_millis(1)));
        assert!(again.expired(start + DURATION));
        let renewed = LeaseRecord::observe(Some(again), "2", start + DURATION);
        assert!(!renewed.expired(start + DURATION), "a renewal makes it young again");
    }
}
