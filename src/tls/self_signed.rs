//! `--self-signed`: an authority in a Secret that the replicas share, and a serving certificate for each of them.
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::SanType;

use super::authority::{self, Authority};
use super::changes::{Failure, changes, within};
use super::serving::Serving;
use super::shared::{Known, Shared, renewal_of_serving};
use super::trust::{Bundle, Trust};
use super::url::WebhookUrl;
use crate::telemetry::log::causes;
use crate::telemetry::{Condition, Metrics};

/// The name of the Secret.
pub(super) const SECRET: &str = "confrev-ca";

/// How often a write is tried again when somebody else was first.
const ATTEMPTS: u32 = 10;
/// The longest time between two looks at the Secret, whatever the watch says.
const LOOK: Duration = Duration::from_mins(1);

/// For whom certificates are made, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace of the Secret and of the Service `confrev`.
    pub namespace: String,
    /// `--webhook-url`, whose host the certificate names as well.
    pub webhook_url: Option<WebhookUrl>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
}

/// How long certificates live. The defaults serve; tests take seconds.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Of the authority; the next one is made after four fifths of it.
    pub authority: Duration,
    /// Of a serving certificate, renewed after two thirds of it. At most a fifth of the authority's.
    pub serving: Duration,
    /// How long an authority must have stood in the webhook configurations before anything is issued from it: time
    /// for every API server to hear of it.
    pub settle: Duration,
}

/// Why there is no authority to issue from.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Secret is there and is none.
    #[error(
        "Secret {namespace}/{SECRET} holds no usable authority: delete it (kubectl delete secret -n {namespace} {SECRET}) and another one is made"
    )]
    Garbage {
        /// Its namespace.
        namespace: String,
        /// What is wrong.
        #[source]
        source: authority::Error,
    },
    /// The Secret cannot be read or written.
    #[error("cannot {verb} Secret {namespace}/{SECRET}: {}", advice(source))]
    Api {
        /// What was tried.
        verb: &'static str,
        /// The Secret's namespace.
        namespace: String,
        /// What the API server said.
        #[source]
        source: Failure,
    },
    /// Somebody else wrote the Secret each time before this replica could.
    #[error("Secret {namespace}/{SECRET} was changed by others {ATTEMPTS} times in a row: see who writes it")]
    Contended {
        /// Its namespace.
        namespace: String,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[source] authority::Error),
}

/// The shared authority and this replica's own certificate.
pub(super) struct SelfSigned {
    secrets: Api<Secret>,
    client: Client,
    options: Options,
    names: Vec<SanType>,
    serving: Serving,
    trust: Trust,
    /// The authority of the certificate in use.
    own: Mutex<Arc<Authority>>,
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

impl SelfSigned {
    /// Reads or makes the shared authority, and issues the first certificate.
    pub(super) async fn start(
        client: Client,
        options: Options,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, Error> {
        let names =
            authority::names(&options.namespace, options.webhook_url.as_ref()).map_err(Error::Make)?;
        let secrets = Api::namespaced(client.clone(), &options.namespace);
        let shared = converge(&secrets, &options, &Known::default()).await?;
        let own = shared.current.clone();
        let pair = own.issue(&names, Timestamp::now(), options.lifetimes.serving).map_err(Error::Make)?;
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

    /// The bundle as the Secret has it at this moment, with the authority of this replica's own certificate in it.
    /// Another replica may have put an authority there that this one has not heard of yet, and writing the webhook
    /// configurations without it would undo that replica's work.
    pub(super) async fn fresh_bundle(&self) -> Result<Bundle, Error> {
        let bundle = converge(&self.secrets, &self.options, &self.known()).await?.bundle_pem();
        self.trust.want(Some(bundle.clone()));
        Ok(bundle)
    }

    /// Follows the Secret, the clock, and what the API servers trust. Never returns.
    pub(super) async fn run(&self) {
        let api = Api::namespaced(self.client.clone(), &self.options.namespace);
        let mut changed = pin!(changes::<Secret>(api, SECRET));
        let mut said = None;
        loop {
            let outcome = self.reconcile().await;
            self.serving.judge(Timestamp::now());
            self.tell(outcome, &mut said);
            tokio::select! {
                Some(()) = changed.next() => {}
                () = self.trust.published_changed() => {}
                () = tokio::time::sleep(self.pause()) => {}
            }
        }
    }

    /// One pass: the Secret as it should be, then the certificate as it should be.
    async fn reconcile(&self) -> Result<(), Error> {
        let known = self.known();
        let shared = converge(&self.secrets, &self.options, &known).await;
        let now = Timestamp::now();
        let serving = self.serving.validity();
        let issuer = match &shared {
            Ok(shared) => {
                self.trust.want(Some(shared.bundle_pem()));
                shared.issuer(&known, Some(serving), now)
            }
            // Without the Secret the certificate is still renewed, by the authority that is trusted already.
            Err(_) => (now >= renewal_of_serving(serving)).then(|| self.own()),
        };
        if let Some(issuer) = issuer {
            let pair = issuer.issue(&self.names, now, self.options.lifetimes.serving).map_err(Error::Make)?;
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = issuer;
            self.serving.replace(pair);
            tracing::info!(expires = %self.serving.expires(), "certificate renewed");
        }
        shared.map(|_| ())
    }

    /// Logs a failure once, not at each pass.
    fn tell(&self, outcome: Result<(), Error>, said: &mut Option<String>) {
        let garbage = matches!(outcome, Err(Error::Garbage { .. }));
        let now = outcome.err().map(|error| causes(&error));
        if let Some(error) = now.as_ref().filter(|_| *said != now) {
            if garbage {
                self.serving.refused();
            }
            tracing::error!(%error, until = %self.serving.expires(), "the certificate in use stays");
        }
        *said = now;
    }

    /// How long until the next look: soon enough for short lives, rarely for long ones.
    fn pause(&self) -> Duration {
        let Lifetimes { serving, settle, .. } = self.options.lifetimes;
        LOOK.min(serving / 12).min(settle.max(Duration::from_secs(1))).max(Duration::from_millis(200))
    }

    fn known(&self) -> Known {
        Known { own: Some(self.own()), settled: self.trust.settled(self.options.lifetimes.settle) }
    }

    fn own(&self) -> Arc<Authority> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for SelfSigned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SelfSigned").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Brings the Secret to what should follow, making it where it is not, and gives its content. All replicas do this
/// at once: a write is refused where another was first, and then that one's content is taken.
async fn converge(secrets: &Api<Secret>, options: &Options, known: &Known) -> Result<Shared, Error> {
    let Options { namespace, lifetimes, .. } = options;
    for attempt in 0..ATTEMPTS {
        let now = Timestamp::now();
        let Some(secret) = get(secrets, namespace).await? else {
            let shared = match known.own.clone() {
                Some(own) if now < own.validity().to => Shared::recreate(own, now, lifetimes),
                _ => Shared::create(now, lifetimes),
            };
            let shared = shared.map_err(Error::Make)?;
            let made = within(secrets.create(&PostParams::default(), &new_secret(&shared, namespace))).await;
            match made {
                Ok(_) => return Ok(shared),
                Err(Failure::Kube(kube::Error::Api(status))) if status.code == 409 => continue,
                Err(source) => {
                    return Err(Error::Api { verb: "create", namespace: namespace.clone(), source });
                }
            }
        };
        let shared = parse(&secret, namespace)?;
        let Some(followed) = shared.follow(known, now, lifetimes).map_err(Error::Make)? else {
            return Ok(shared);
        };
        // With the resourceVersion that was read: of several replicas one wins.
        let next = Secret { data: Some(followed.data()), ..secret };
        match within(secrets.replace(SECRET, &PostParams::default(), &next)).await {
            Ok(_) => {
                tracing::info!(namespace, authorities = followed.bundle.len(), "Secret {SECRET} updated");
                return Ok(followed);
            }
            Err(failure) if failure.stale() => {}
            Err(source) => return Err(Error::Api { verb: "update", namespace: namespace.clone(), source }),
        }
        tokio::time::sleep(Duration::from_millis(20) * (attempt + 1)).await;
    }
    Err(Error::Contended { namespace: namespace.clone() })
}

async fn get(secrets: &Api<Secret>, namespace: &str) -> Result<Option<Secret>, Error> {
    within(secrets.get_opt(SECRET)).await.map_err(|source| Error::Api {
        verb: "read",
        namespace: namespace.to_owned(),
        source,
    })
}

fn parse(secret: &Secret, namespace: &str) -> Result<Shared, Error> {
    let empty = BTreeMap::new();
    Shared::parse(secret.data.as_ref().unwrap_or(&empty))
        .map_err(|source| Error::Garbage { namespace: namespace.to_owned(), source })
}

fn new_secret(shared: &Shared, namespace: &str) -> Secret {
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

fn advice(failure: &Failure) -> &'static str {
    match failure {
        failure if failure.forbidden() => "the account may not; apply the Role of manifests/self-signed.yaml",
        failure if failure.stale() => "is --namespace right, and manifests/self-signed.yaml applied?",
        _ => "is the API server well?",
    }
}
