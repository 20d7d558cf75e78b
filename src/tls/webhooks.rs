//! Keeps the webhook configurations right: the address that the API server calls, and the CAs that it trusts there.
use std::fmt;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::select;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;

use super::certificates::{CertificateSource, TlsError};
use super::entries::{
    CONFIGURATION, WantedWebhooks, WebhookState, carried, compare_configuration, has_injector,
};
use super::lingering::Lingering;
use super::requests::{RequestError, changes, within};
use super::trust::{Bundle, union};
use super::url::WebhookUrl;
use crate::telemetry::Condition;
use crate::telemetry::causes;

/// The longest time between two checks, whatever the watches report.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// The pause after a first write or failure; it doubles with each further one.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause: while another client keeps overwriting the configuration, or the API server is down.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Keeps `MutatingWebhookConfiguration/confrev` and, if it exists, `ValidatingWebhookConfiguration/confrev`.
pub struct Keeper {
    client: Client,
    namespace: String,
    url: Option<WebhookUrl>,
    source: CertificateSource,
    condition: Condition,
}

/// Why the webhook configurations are not known to be right.
#[derive(Debug, thiserror::Error)]
enum WebhookError {
    /// The configuration does not exist, so the API server calls no webhook.
    #[error(
        "MutatingWebhookConfiguration {CONFIGURATION} does not exist: kubectl apply -f manifests/self-signed.yaml (or manifests/cert-manager.yaml)"
    )]
    Missing,
    #[error(
        "{kind} {CONFIGURATION} waits for cert-manager to inject its caBundle: is cert-manager's cainjector running?"
    )]
    Injector { kind: &'static str },
    #[error("cannot {verb} {kind} {CONFIGURATION}{}", if source.forbidden() { ": apply the ClusterRole of manifests/self-signed.yaml" } else { "" })]
    Api {
        verb: &'static str,
        kind: &'static str,
        #[source]
        source: RequestError,
    },
    #[error("{kind} {CONFIGURATION} was changed concurrently; trying again")]
    Conflict { kind: &'static str },
    #[error("the CA for the webhook configurations is unknown")]
    Source(#[source] TlsError),
}

/// The two kinds.
#[derive(Clone, Copy)]
enum ConfigurationKind {
    Mutating,
    Validating,
}

impl Keeper {
    /// A keeper for the webhooks served from `namespace` or at `url`, which trust the CAs of `source`. `condition`
    /// holds while the configurations are right.
    pub fn new(
        client: Client,
        namespace: &str,
        url: Option<WebhookUrl>,
        source: CertificateSource,
        condition: Condition,
    ) -> Self {
        Self { client, namespace: namespace.to_owned(), url, source, condition }
    }

    /// Keeps the configurations right. Never returns; may be dropped at any point.
    pub async fn run(&self) {
        let mutating = changes::<MutatingWebhookConfiguration>(Api::all(self.client.clone()), CONFIGURATION);
        let validating =
            changes::<ValidatingWebhookConfiguration>(Api::all(self.client.clone()), CONFIGURATION);
        let mut changed = pin!(select(mutating, validating));
        let mut wanted = self.source.trust().wanted_changes();
        let mut pace = Backoff::default();
        let mut lingering = Lingering::new(self.source.linger());
        loop {
            let outcome = self.check(&mut lingering).await;
            // A configuration that is right or missing is checked when it changes; any other is checked again after a
            // pause.
            let again = match &outcome {
                Ok(wrote) => *wrote,
                Err(error) => !matches!(error, WebhookError::Missing | WebhookError::Injector { .. }),
            };
            self.report(outcome);
            if again {
                tokio::time::sleep(pace.pause(Instant::now())).await;
                continue;
            }
            let pause =
                lingering.next(Instant::now()).map_or(CHECK_INTERVAL, |next| next.min(CHECK_INTERVAL));
            tokio::select! {
                Some(()) = changed.next() => {}
                Ok(()) = wanted.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Checks both configurations and corrects them. Returns true if something was written.
    async fn check(&self, lingering: &mut Lingering) -> Result<bool, WebhookError> {
        let mutating = self.read(ConfigurationKind::Mutating).await?.ok_or(WebhookError::Missing)?;
        let validating = self.read(ConfigurationKind::Validating).await?;
        // Read after the configurations: what another replica wrote into them is in the Secret by now.
        let wanted = self.source.bundle().await.map_err(WebhookError::Source)?;
        let carried: Vec<_> =
            [Some(&mutating), validating.as_ref()].into_iter().flatten().flat_map(carried).collect();
        let present = carried.concat();
        let now = Instant::now();
        let bundle = wanted.map(|wanted| lingering.keep(&wanted, &present, now, Timestamp::now()));
        let mut wrote = self.correct(ConfigurationKind::Mutating, &mutating, bundle.as_ref()).await?;
        if let Some(validating) = validating {
            wrote |= self.correct(ConfigurationKind::Validating, &validating, bundle.as_ref()).await?;
        } else {
            tracing::warn!(
                "ValidatingWebhookConfiguration {CONFIGURATION} does not exist: sources are not checked when they are written"
            );
        }
        if !wrote {
            // With another injector, the CAs that it has written count, not those that it should write.
            let injected = !self.source.owns_ca() && has_injector(&mutating);
            let in_all = |one: &_| carried.iter().all(|webhook| webhook.contains(one));
            let published = present.into_iter().filter(in_all).collect::<Vec<_>>();
            self.source.trust().publish(if injected { Some(union(&[], &published)) } else { bundle });
        }
        Ok(wrote)
    }

    async fn correct(
        &self,
        kind: ConfigurationKind,
        present: &Value,
        bundle: Option<&Bundle>,
    ) -> Result<bool, WebhookError> {
        let wanted = WantedWebhooks {
            namespace: &self.namespace,
            url: self.url.as_ref(),
            bundle: bundle.map(|bundle| &**bundle),
            owned: self.source.owns_ca(),
        };
        let operations = match compare_configuration(present, &wanted) {
            WebhookState::Right => return Ok(false),
            WebhookState::WaitsForInjector => return Err(WebhookError::Injector { kind: kind.name() }),
            WebhookState::Write(operations) => operations,
        };
        self.source.trust().publish(None);
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap_or_default();
        let patch = Patch::Json::<()>(patch);
        let kind_name = kind.name();
        match within(self.api(kind).patch(CONFIGURATION, &PatchParams::default(), &patch)).await {
            Ok(_) => {
                tracing::info!(kind = kind_name, name = CONFIGURATION, "webhook configuration updated");
                Ok(true)
            }
            Err(failure) if failure.stale() => Err(WebhookError::Conflict { kind: kind_name }),
            Err(source) => Err(WebhookError::Api { verb: "patch", kind: kind_name, source }),
        }
    }

    async fn read(&self, kind: ConfigurationKind) -> Result<Option<Value>, WebhookError> {
        let failed = |source| WebhookError::Api { verb: "read", kind: kind.name(), source };
        let object = within(self.api(kind).get_opt(CONFIGURATION)).await.map_err(failed)?;
        Ok(object.and_then(|object| serde_json::to_value(object).ok()))
    }

    /// Untyped, so that fields of a newer API server survive.
    fn api(&self, kind: ConfigurationKind) -> Api<DynamicObject> {
        let resource = match kind {
            ConfigurationKind::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
            ConfigurationKind::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        };
        Api::all_with(self.client.clone(), &resource)
    }

    /// Updates the readiness condition. A failed read proves nothing about the configurations, so the condition stays:
    /// an API server that is down calls no webhook, and finds ready replicas when it is back.
    fn report(&self, outcome: Result<bool, WebhookError>) {
        match outcome {
            Ok(false) => self.condition.meet(),
            Ok(true) => {}
            Err(
                error @ (WebhookError::Api { .. } | WebhookError::Source(_) | WebhookError::Conflict { .. }),
            ) => {
                let error = causes(&error);
                tracing::warn!(%error, "webhook configurations not checked");
                self.condition.fail_unless_met(error);
            }
            Err(error) => {
                self.source.trust().publish(None);
                self.condition.fail(causes(&error));
            }
        }
    }
}

impl ConfigurationKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keeper").field("url", &self.url).finish_non_exhaustive()
    }
}

/// How long to wait after a write or failure: short after a quiet time, longer while writes or failures repeat.
#[derive(Debug, Default)]
struct Backoff {
    last: Option<(Instant, Duration)>,
}

impl Backoff {
    fn pause(&mut self, now: Instant) -> Duration {
        let pause = match self.last {
            Some((at, pause)) if now.duration_since(at) < pause + MAX_PAUSE => (pause * 2).min(MAX_PAUSE),
            _ => MIN_PAUSE,
        };
        self.last = Some((now, pause));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a quiet minute, the pause is short again.
    #[test]
    fn conflicting_webhook_writes_back_off() {
        let mut pace = Backoff::default();
        let mut now = Instant::now();
        assert_eq!(pace.pause(now), MIN_PAUSE);
        let mut last = MIN_PAUSE;
        for _ in 0..10 {
            now += last;
            last = pace.pause(now);
        }
        assert_eq!(last, MAX_PAUSE);
        assert_eq!(pace.pause(now + Duration::from_mins(1)), MIN_PAUSE);
    }
}
