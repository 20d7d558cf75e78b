//! `--self-signed`: a CA in a Secret that the replicas share, and a serving certificate for each of them.
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use rcgen::SanType;

use super::ca::{self, CaError, CertificateAuthority};
use super::ca_secret::{CaSecret, Lifetimes, ReplicaCas, renewal_of_serving};
use super::requests::{RequestError, changes, within};
use super::serving::Serving;
use super::trust::{Bundle, Trust};
use super::url::WebhookUrl;
use crate::telemetry::causes;
use crate::telemetry::{Condition, Metrics};

/// The name of the Secret.
pub(super) const SECRET: &str = "confrev-ca";

/// How often a write is repeated when another client wrote first.
const MAX_ATTEMPTS: u32 = 10;
/// The longest time between two checks of the Secret, whatever the watch reports.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// The names in the certificates, and their lifetimes.
#[derive(Clone, Debug)]
pub struct SelfSignedOptions {
    /// The namespace of the Secret and of the Service `confrev`.
    pub namespace: String,
    /// `--webhook-url`; the certificate names its host too.
    pub webhook_url: Option<WebhookUrl>,
    /// The lifetimes of certificates.
    pub lifetimes: Lifetimes,
}

/// Why no CA is available to issue certificates.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// The Secret exists but holds no usable CA.
    #[error(
        "Secret {namespace}/{SECRET} holds no usable CA: delete it (kubectl delete secret -n {namespace} {SECRET}) to get a new CA"
    )]
    Unusable {
        /// Its namespace.
        namespace: String,
        /// What is wrong.
        #[source]
        source: CaError,
    },
    /// The Secret cannot be read or written.
    #[error("cannot {verb} Secret {namespace}/{SECRET}: {}", advice(source))]
    Api {
        /// The verb that failed.
        verb: &'static str,
        /// The Secret's namespace.
        namespace: String,
        /// The API server's answer.
        #[source]
        source: RequestError,
    },
    /// Another client changed the Secret before each write of this replica.
    #[error(
        "Secret {namespace}/{SECRET} was changed concurrently {MAX_ATTEMPTS} times in a row: find out what writes it"
    )]
    Contended {
        /// Its namespace.
        namespace: String,
    },
    /// A certificate cannot be made.
    #[error("cannot create a certificate")]
    Make(#[source] CaError),
}

/// The shared CA and this replica's own certificate.
pub(super) struct SelfSigned {
    secrets: Api<Secret>,
    client: Client,
    options: SelfSignedOptions,
    names: Vec<SanType>,
    serving: Serving,
    trust: Trust,
    /// The CA of the certificate in use.
    own: Mutex<Arc<CertificateAuthority>>,
}

impl SelfSigned {
    /// Reads or creates the shared CA, and issues the first certificate.
    pub(super) async fn start(
        client: Client,
        options: SelfSignedOptions,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, SelfSignedError> {
        let names = ca::certificate_names(&options.namespace, options.webhook_url.as_ref())
            .map_err(SelfSignedError::Make)?;
        let secrets = Api::namespaced(client.clone(), &options.namespace);
        let shared = converge(&secrets, &options, &ReplicaCas::default()).await?;
        let own = shared.current.clone();
        let pair =
            own.issue(&names, Timestamp::now(), options.lifetimes.serving).map_err(SelfSignedError::Make)?;
        let serving = Serving::new(pair, metrics, condition);
        let trust = Trust::new(Some(shared.bundle_pem()));
        tracing::info!(secret = SECRET, namespace = options.namespace, expires = %serving.expires(), "certificate issued");
        Ok(Self { secrets, client, options, names, serving, trust, own: Mutex::new(own) })
    }

    pub(super) fn serving(&self) -> &Serving {
        &self.serving
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(super) fn settle(&self) -> Duration {
        self.options.lifetimes.settle
    }

    /// The bundle of the Secret at this moment, including the CA of this replica's own certificate. Another replica may
    /// have just added a CA. Writing the webhook configurations without it would undo that replica's work.
    pub(super) async fn fresh_bundle(&self) -> Result<Bundle, SelfSignedError> {
        let bundle = converge(&self.secrets, &self.options, &self.known()).await?.bundle_pem();
        self.trust.want(Some(bundle.clone()));
        Ok(bundle)
    }

    /// Reacts to the Secret, the clock, and the CAs that the API servers trust. Never returns.
    pub(super) async fn run(&self) {
        let api = Api::namespaced(self.client.clone(), &self.options.namespace);
        let mut changed = pin!(changes::<Secret>(api, SECRET));
        let mut last_error = None;
        loop {
            let outcome = self.reconcile().await;
            self.serving.check(Timestamp::now());
            self.report(outcome, &mut last_error);
            tokio::select! {
                Some(()) = changed.next() => {}
                () = self.trust.published_changed() => {}
                () = tokio::time::sleep(self.pause()) => {}
            }
        }
    }

    /// Reconciles the Secret, then this replica's certificate.
    async fn reconcile(&self) -> Result<(), SelfSignedError> {
        let known = self.known();
        let shared = converge(&self.secrets, &self.options, &known).await;
        let now = Timestamp::now();
        let serving = self.serving.validity();
        let issuer = match &shared {
            Ok(shared) => {
                self.trust.want(Some(shared.bundle_pem()));
                shared.issuer(&known, Some(serving), now)
            }
            // If the Secret is unusable, the certificate is still renewed, by the CA that is already trusted.
            Err(_) => (now >= renewal_of_serving(serving)).then(|| self.own()),
        };
        if let Some(issuer) = issuer {
            let pair = issuer
                .issue(&self.names, now, self.options.lifetimes.serving)
                .map_err(SelfSignedError::Make)?;
            *self.own.lock() = issuer;
            self.serving.replace(pair);
            tracing::info!(expires = %self.serving.expires(), "certificate renewed");
        }
        shared.map(|_| ())
    }

    /// Logs a failure once, not at each pass.
    fn report(&self, outcome: Result<(), SelfSignedError>, last_error: &mut Option<String>) {
        let is_unusable = matches!(outcome, Err(SelfSignedError::Unusable { .. }));
        let now = outcome.err().map(|error| causes(&error));
        if let Some(error) = now.as_ref().filter(|_| *last_error != now) {
            if is_unusable {
                self.serving.refused();
            }
            tracing::error!(%error, until = %self.serving.expires(), "the current certificate stays in use");
        }
        *last_error = now;
    }

    /// The time until the next check: short if certificates have short lifetimes.
    fn pause(&self) -> Duration {
        let Lifetimes { serving, settle, .. } = self.options.lifetimes;
        CHECK_INTERVAL
            .min(serving / 12)
            .min(settle.max(Duration::from_secs(1)))
            .max(Duration::from_millis(200))
    }

    fn known(&self) -> ReplicaCas {
        ReplicaCas { own: Some(self.own()), settled: self.trust.settled(self.options.lifetimes.settle) }
    }

    fn own(&self) -> Arc<CertificateAuthority> {
        self.own.lock().clone()
    }
}

impl fmt::Debug for SelfSigned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SelfSigned").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Updates the Secret to its next content, creates it if it does not exist, and returns the content. All replicas do
/// this at the same time: if another replica writes first, the write is refused, and the replica continues from the
/// other's content.
async fn converge(
    secrets: &Api<Secret>,
    options: &SelfSignedOptions,
    known: &ReplicaCas,
) -> Result<CaSecret, SelfSignedError> {
    let SelfSignedOptions { namespace, lifetimes, .. } = options;
    for attempt in 0..MAX_ATTEMPTS {
        let now = Timestamp::now();
        let Some(secret) = get(secrets, namespace).await? else {
            let shared = match known.own.clone() {
                Some(own) if now < own.validity().to => CaSecret::recreate(own, now, lifetimes),
                _ => CaSecret::create(now, lifetimes),
            };
            let shared = shared.map_err(SelfSignedError::Make)?;
            let made = within(secrets.create(&PostParams::default(), &new_secret(&shared, namespace))).await;
            match made {
                Ok(_) => return Ok(shared),
                Err(RequestError::Kube(kube::Error::Api(status))) if status.code == 409 => continue,
                Err(source) => {
                    return Err(SelfSignedError::Api {
                        verb: "create",
                        namespace: namespace.clone(),
                        source,
                    });
                }
            }
        };
        let shared = parse(&secret, namespace)?;
        let Some(followed) = shared.follow(known, now, lifetimes).map_err(SelfSignedError::Make)? else {
            return Ok(shared);
        };
        // With the resourceVersion that was read, so of several replicas only one succeeds.
        let next = Secret { data: Some(followed.data()), ..secret };
        match within(secrets.replace(SECRET, &PostParams::default(), &next)).await {
            Ok(_) => {
                tracing::info!(namespace, authorities = followed.bundle.len(), "Secret {SECRET} updated");
                return Ok(followed);
            }
            Err(failure) if failure.stale() => {}
            Err(source) => {
                return Err(SelfSignedError::Api { verb: "update", namespace: namespace.clone(), source });
            }
        }
        tokio::time::sleep(Duration::from_millis(20) * (attempt + 1)).await;
    }
    Err(SelfSignedError::Contended { namespace: namespace.clone() })
}

async fn get(secrets: &Api<Secret>, namespace: &str) -> Result<Option<Secret>, SelfSignedError> {
    within(secrets.get_opt(SECRET)).await.map_err(|source| SelfSignedError::Api {
        verb: "read",
        namespace: namespace.to_owned(),
        source,
    })
}

fn parse(secret: &Secret, namespace: &str) -> Result<CaSecret, SelfSignedError> {
    let empty = BTreeMap::new();
    CaSecret::parse(secret.data.as_ref().unwrap_or(&empty))
        .map_err(|source| SelfSignedError::Unusable { namespace: namespace.to_owned(), source })
}

fn new_secret(shared: &CaSecret, namespace: &str) -> Secret {
    let labels = [("app.kubernetes.io/name", "confrev"), ("app.kubernetes.io/managed-by", "confrev-tls")];
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(shared.data()),
        ..Secret::default()
    }
}

fn advice(failure: &RequestError) -> &'static str {
    match failure {
        failure if failure.forbidden() => "permission denied; apply the Role of manifests/self-signed.yaml",
        failure if failure.stale() => "is --namespace right, and manifests/self-signed.yaml applied?",
        _ => "is the API server healthy?",
    }
}
