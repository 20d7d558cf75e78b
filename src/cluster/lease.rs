//! The Lease that elects the leading replica. Each replica judges expiry by its own clock alone. A holder has lost the
//! Lease when the record is unchanged for the Lease's duration, whatever times it contains.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

use crate::annotations;

/// How long a lease lasts after its last renewal. A leader that is cut off is replaced within ten seconds: the next one sees a
/// renewal up to two seconds late.
pub const DURATION: Duration = Duration::from_secs(8);
/// The Lease's name, in confrev's namespace.
pub(super) const NAME: &str = "confrev";
/// The most partly known namespaces that the Lease states.
const MOST_STATED: usize = 50;

/// One replica's hold on the Lease.
pub struct Lease {
    api: Api<LeaseObject>,
    identity: String,
    observed: Option<LeaseRecord>,
    /// The Lease as this replica last wrote it, while it holds it.
    held: Option<LeaseObject>,
    /// The namespaces that this replica knows only partly.
    partly_known: Box<dyn Fn() -> Vec<Arc<str>> + Send + Sync>,
}

/// A state of the Lease, and since when it is unchanged, by this replica's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The resourceVersion that was read.
    pub resource_version: String,
    /// When it was first read.
    pub since: Instant,
}

impl LeaseRecord {
    /// Whether the holder of this record has lost the Lease by `now`.
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
    /// The Lease in this namespace, held as `identity`, which is unique among replicas.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        let partly_known = Box::new(Vec::new);
        Self { api: Api::namespaced(client, namespace), identity, observed: None, held: None, partly_known }
    }

    /// Also states on the Lease which namespaces the holder knows only partly.
    #[must_use]
    pub fn stating(self, partly_known: impl Fn() -> Vec<Arc<str>> + Send + Sync + 'static) -> Self {
        Self { partly_known: Box::new(partly_known), ..self }
    }

    /// Takes or renews the Lease if it is free, expired or already held. Returns whether this replica holds it now. The
    /// hold begins before the call, so count its duration from then.
    pub async fn attempt(&mut self) -> kube::Result<bool> {
        // The holder knows the Lease's state, unless another client has written it since.
        // It stays if the call is given up, so that the next attempt is one call again.
        if let Some(held) = self.held.clone() {
            if self.write(held).await? {
                return Ok(true);
            }
            self.held = None;
        }
        let Some(lease) = self.api.get_opt(NAME).await? else {
            let mut metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            self.state_on(&mut metadata);
            let lease = LeaseObject { metadata, spec: Some(self.spec(None)) };
            let created = self.api.create(&PostParams::default(), &lease).await;
            return self.outcome(created);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let record = LeaseRecord::observe(self.observed.take(), &version, Instant::now());
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let free = holder.is_empty() || holder == self.identity || record.expired(Instant::now());
        self.observed = Some(record);
        if !free {
            return Ok(false);
        }
        self.write(lease).await
    }

    /// When the Lease of another replica is free, unless that renews it.
    pub fn expires(&self) -> Option<Instant> {
        let observed = self.observed.as_ref().filter(|_| self.held.is_none())?;
        Some(observed.since + DURATION)
    }

    /// Writes this replica's hold if the Lease is unchanged since it was read.
    async fn write(&mut self, mut lease: LeaseObject) -> kube::Result<bool> {
        lease.spec = Some(self.spec(lease.spec.take()));
        self.state_on(&mut lease.metadata);
        let written = self.api.replace(NAME, &PostParams::default(), &lease).await;
        self.outcome(written)
    }

    /// Whether a conditional write took effect. It is not an error if another replica was faster.
    fn outcome(&mut self, written: kube::Result<LeaseObject>) -> kube::Result<bool> {
        match written {
            Ok(lease) => {
                self.held = Some(lease);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease, so that another replica need not wait for its expiry.
    pub async fn release(&mut self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(NAME).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        self.held = None;
        match self.api.replace(NAME, &PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            written => written.map(|_| ()),
        }
    }

    /// States the partly known namespaces: the first ones, and a mark if there are more.
    fn state_on(&self, metadata: &mut ObjectMeta) {
        let names = (self.partly_known)();
        let stated = metadata.annotations.get_or_insert_default();
        if names.is_empty() {
            stated.remove(annotations::PARTLY_KNOWN);
            return;
        }
        let mut text = names.iter().take(MOST_STATED).map(|name| &**name).collect::<Vec<_>>().join(",");
        if names.len() > MOST_STATED {
            text.push_str(",...");
        }
        stated.insert(annotations::PARTLY_KNOWN.to_owned(), text);
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http_body_util::BodyExt as _;
    use kube::client::Body;

    use super::*;

    /// The reader's clock decides, not the timestamps of the Lease.
    #[test]
    fn lease_expires_when_its_record_stays_unchanged() {
        let start = Instant::now();
        let first = LeaseRecord::observe(None, "1", start);
        let again = LeaseRecord::observe(Some(first.clone()), "1", start + DURATION / 2);
        assert_eq!(again, first, "an unchanged record keeps its age");
        assert!(!again.expired(start + DURATION - Duration::from_millis(1)));
        assert!(again.expired(start + DURATION));
        let renewed = LeaseRecord::observe(Some(again), "2", start + DURATION);
        assert!(!renewed.expired(start + DURATION), "a renewal resets the age");
    }

    #[tokio::test]
    async fn lease_states_partly_known_namespaces() {
        for (count, expected) in [(0, None), (2, Some("n0,n1".to_owned()))] {
            let lease = lease_knowing(count);
            let mut metadata = ObjectMeta::default();
            metadata
                .annotations
                .get_or_insert_default()
                .insert(annotations::PARTLY_KNOWN.into(), "old".into());
            lease.state_on(&mut metadata);
            assert_eq!(metadata.annotations.unwrap().get(annotations::PARTLY_KNOWN).cloned(), expected);
        }
        let mut metadata = ObjectMeta::default();
        lease_knowing(MOST_STATED + 1).state_on(&mut metadata);
        let text = metadata.annotations.unwrap().remove(annotations::PARTLY_KNOWN).unwrap();
        assert!(text.ends_with(",n49,..."), "{text}");
    }

    /// A Lease of a replica that knows this many namespaces partly.
    fn lease_knowing(count: usize) -> Lease {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::ready(Ok::<_, Infallible>(http::Response::new(Body::empty())))
        });
        let lease = Lease::new(Client::new(service, "ns"), "ns", "me".to_owned());
        lease.stating(move || (0..count).map(|number| format!("n{number}").into()).collect())
    }

    /// A failed write, after another client has written the Lease, is followed by a read.
    #[tokio::test]
    async fn holder_renews_lease_without_reading_it() {
        let stored = Arc::new(Mutex::new((1, String::new())));
        let asked = Arc::new(Mutex::new(String::new()));
        let (server, log) = (Arc::clone(&stored), Arc::clone(&asked));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (server, log) = (Arc::clone(&server), Arc::clone(&log));
            async move {
                let is_write = request.method() == http::Method::PUT;
                log.lock().unwrap().push(if is_write { 'w' } else { 'r' });
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut stored = server.lock().unwrap();
                let mut status = 200;
                if is_write {
                    let lease: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    if lease["metadata"]["resourceVersion"].as_str() == Some(&stored.0.to_string()) {
                        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
                        *stored = (stored.0 + 1, holder.to_owned());
                    } else {
                        status = 409;
                    }
                }
                let lease = serde_json::json!({
                    "metadata": {"name": NAME, "resourceVersion": stored.0.to_string()},
                    "spec": {"holderIdentity": stored.1},
                });
                let failure =
                    serde_json::json!({"status": "Failure", "code": status, "message": "", "reason": ""});
                let body = if status == 200 { lease } else { failure };
                let response = http::Response::builder().status(status);
                Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        let mut lease = Lease::new(Client::new(service, "ns"), "ns", "me".to_owned());
        let asked = || std::mem::take(&mut *asked.lock().unwrap());
        assert!(lease.attempt().await.unwrap());
        assert_eq!(asked(), "rw", "the Lease is free");
        assert!(lease.attempt().await.unwrap() && lease.attempt().await.unwrap());
        assert_eq!(asked(), "ww", "the holder knows the Lease");
        *stored.lock().unwrap() = (9, "other".to_owned());
        assert!(!lease.attempt().await.unwrap());
        assert_eq!(asked(), "wr", "another replica holds the Lease");
        assert!(!lease.attempt().await.unwrap());
        assert_eq!(asked(), "r", "the Lease of another replica is not written");
    }
}
