//! The cluster of a command, found by kubectl's own flags.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use http::Method;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    explain,
    failure::Failure,
    flags::{KindFlag, RotatedFlag, namespace_name},
    output,
    strategies::InstalledStrategies,
};
use crate::{
    cluster::{ApiError, KubeApi, Listed, connect},
    kinds::Kinds,
    resolve::Observed,
    snapshot::{Rotated, is_namespace_name},
    telemetry::Metrics,
};

/// The heading of these flags in the help.
pub(super) const HEADING: &str = "Cluster";

/// kubectl's flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct Flags {
    /// The namespace. Default: that of the context.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
    /// The context of the kubeconfig.
    #[arg(long, value_name = "CONTEXT")]
    pub(super) context: Option<String>,
    /// The kubeconfig file. Default: $KUBECONFIG.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The cluster of the kubeconfig.
    #[arg(long, value_name = "CLUSTER")]
    pub(super) cluster: Option<String>,
    /// The user of the kubeconfig.
    #[arg(long, value_name = "USER")]
    pub(super) user: Option<String>,
    /// The API server's address, instead of that of the kubeconfig.
    #[arg(short, long, value_name = "URL")]
    pub(super) server: Option<String>,
    /// The server name to check the API server's certificate against.
    #[arg(long, value_name = "NAME")]
    pub(super) tls_server_name: Option<String>,
    /// Accept any certificate of the API server.
    #[arg(long)]
    pub(super) insecure_skip_tls_verify: bool,
    /// The CA of the API server's certificate.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure_skip_tls_verify")]
    pub(super) certificate_authority: Option<PathBuf>,
    /// The certificate to log in with.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub(super) client_certificate: Option<String>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub(super) client_key: Option<String>,
    /// The bearer token to log in with.
    #[arg(long, value_name = "TOKEN")]
    pub(super) token: Option<String>,
    /// The timeout of one request, such as 10s. With 0, this flag sets no timeout.
    #[arg(long, value_name = "DURATION", default_value = "0", hide_default_value = true,
        value_parser = super::duration::duration)]
    pub(super) request_timeout: Duration,
    /// Act as this user.
    #[arg(long = "as", value_name = "USER")]
    pub(super) act_as: Option<String>,
    /// Act as a member of this group. Needs --as, and may be given more than once.
    #[arg(long = "as-group", value_name = "GROUP", requires = "act_as")]
    pub(super) act_as_groups: Vec<String>,
    /// The namespace in which confrev is installed.
    #[arg(long, default_value = "confrev", value_name = "NAMESPACE", value_parser = namespace_name)]
    pub(super) confrev_namespace: String,
    #[command(flatten)]
    pub(super) kinds: KindFlag,
    #[command(flatten)]
    pub(super) rotated: RotatedFlag,
}

impl Flags {
    /// Replaces settings of the kubeconfig by those of the flags.
    fn override_in(&self, config: &mut kube::Config) -> Result<(), Failure> {
        if let Some(server) = &self.server {
            config.cluster_url = server
                .parse()
                .map_err(|error| Failure::Usage(format!("invalid --server {server:?}: {error}")))?;
        }
        if let Some(file) = &self.certificate_authority {
            let wrong = |reason: String| {
                Failure::Kubeconfig(format!("--certificate-authority {}: {reason}", file.display()))
            };
            let pem = std::fs::read(file).map_err(|error| wrong(explain::io_error(&error)))?;
            let ders = x509_parser::pem::Pem::iter_from_buffer(&pem).map(|pem| pem.map(|pem| pem.contents));
            let ders: Vec<_> =
                ders.collect::<Result<_, _>>().map_err(|_| wrong("it is not valid PEM".to_owned()))?;
            if ders.is_empty() {
                return Err(wrong("it contains no certificate".to_owned()));
            }
            config.root_cert = Some(ders);
        }
        config.accept_invalid_certs |= self.insecure_skip_tls_verify;
        if self.tls_server_name.is_some() {
            config.tls_server_name.clone_from(&self.tls_server_name);
        }
        if !self.request_timeout.is_zero() {
            config.read_timeout = Some(self.request_timeout);
        }
        let login = &mut config.auth_info;
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            login.client_certificate = Some(certificate.clone());
            login.client_key = Some(key.clone());
            (login.client_certificate_data, login.client_key_data) = (None, None);
        }
        if let Some(token) = &self.token {
            // A token replaces all credentials of the kubeconfig.
            *login = kube::config::AuthInfo { token: Some(token.clone().into()), ..Default::default() };
        }
        Ok(())
    }
}

/// A connection, with the selected namespace.
#[derive(Clone)]
pub(super) struct Target {
    /// The calls.
    pub(super) api: KubeApi,
    /// The configured kinds.
    pub(super) kinds: Arc<Kinds>,
    /// The ConfigMaps that are never snapshotted.
    pub(super) rotated: Rotated,
    /// The selected namespace.
    pub(super) namespace: String,
    /// The namespace in which confrev is installed.
    pub(super) home: String,
    /// The strategies of the installation.
    pub(super) strategies: InstalledStrategies,
    /// The API server's address.
    pub(super) url: String,
    /// The time that decides; `None`: the present time.
    pub(super) now: Option<Timestamp>,
}

impl Target {
    /// Finds the cluster. No call is made yet.
    pub(super) async fn find(flags: &Flags) -> Result<Self, Failure> {
        let options = KubeConfigOptions {
            context: flags.context.clone(),
            cluster: flags.cluster.clone(),
            user: flags.user.clone(),
        };
        let named = flags.context.is_some() || flags.cluster.is_some() || flags.user.is_some();
        let no_config =
            |error: &(dyn std::error::Error + 'static)| Failure::Kubeconfig(explain::cause(error));
        let mut config = match &flags.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| no_config(&error))?;
                kube::Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .map_err(|error| no_config(&error))?
            }
            None if named => {
                kube::Config::from_kubeconfig(&options).await.map_err(|error| no_config(&error))?
            }
            None => kube::Config::infer().await.map_err(|error| no_config(&error))?,
        };
        config.connect_timeout = Some(Duration::from_secs(5));
        flags.override_in(&mut config)?;
        if !matches!(config.cluster_url.scheme_str(), Some("http" | "https")) {
            let url = config.cluster_url.to_string();
            return Err(Failure::Kubeconfig(format!(
                "invalid API server address {url:?}: give a URL such as https://HOST:6443"
            )));
        }
        if let Some(user) = &flags.act_as {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(flags.act_as_groups.clone());
        }
        let namespace = flags.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        if !is_namespace_name(&namespace) {
            return Err(Failure::Usage(format!("invalid namespace {namespace:?}")));
        }
        let url = config.cluster_url.to_string();
        let client = connect(config).map_err(|error| no_config(&error))?;
        let kinds = flags.kinds.in_force();
        let rotated = flags.rotated.in_force();
        let api = KubeApi::new(client, Arc::clone(&kinds), Metrics::new())
            .leaving(rotated.clone())
            .warning(output::warn_once);
        let home = flags.confrev_namespace.clone();
        let strategies = InstalledStrategies::of(&home);
        Ok(Self { api, kinds, rotated, namespace, home, strategies, url, now: None })
    }

    /// Fails if the selected namespace does not exist. Called when nothing was found in it. A user may lack the right to read it.
    pub(super) async fn require_namespace(&self) -> Result<(), Failure> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        match self.api.call("get", Method::GET, path, "", Vec::new()).await {
            Err(error) if error.is_not_found() => {
                Err(Failure::NotFound(format!("namespace {:?} does not exist", self.namespace)))
            }
            _ => Ok(()),
        }
    }

    /// Reads an object; `None` if it does not exist.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.api.call("get", Method::GET, path.to_owned(), "", Vec::new()).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.failure(error)),
            Ok(bytes) => parse(&bytes, path).map(Some),
        }
    }

    /// Lists objects by a label selector, in pages. A resource that is not installed has none. Adds the objects'
    /// `kind`, which the API server leaves out of lists. An object that cannot be read is left out, and named on
    /// standard error.
    pub(super) async fn list(
        &self,
        collection: &str,
        kind: &str,
        selector: &str,
    ) -> Result<Vec<Value>, Failure> {
        self.try_list(collection, kind, selector).await.map_err(|error| self.failure(error))
    }

    /// Like [`Self::list`], with the error of the call.
    pub(super) async fn try_list(
        &self,
        collection: &str,
        kind: &str,
        selector: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let of = Listed {
            collection: collection.to_owned(),
            selector: selector.to_owned(),
            only: None,
            metadata_only: false,
        };
        let (mut pages, mut found) = (self.api.pages(&of), Vec::new());
        loop {
            let page = match pages.next().await {
                Err(error) if error.is_not_found() => return Ok(found),
                other => other?,
            };
            let Some(page) = page else { return Ok(found) };
            for item in page.items() {
                match serde_json::from_str::<Value>(item) {
                    Ok(mut item) => {
                        item["kind"] = kind.into();
                        found.push(item);
                    }
                    Err(_) => output::note(&format!("skipped {kind}/{}: it cannot be read", name_in(item))),
                }
            }
        }
    }

    /// Writes a patch, and returns the updated object.
    pub(super) async fn patch(
        &self,
        path: &str,
        content_type: &str,
        body: &Value,
        dry_run: bool,
    ) -> Result<Value, Failure> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let full = format!("{path}?fieldManager=kubectl-confrev{dry_run}");
        let body = body.to_string().into_bytes();
        let bytes = self.api.call("patch", Method::PATCH, full, content_type, body).await;
        let failure = |error| match error {
            // The API server says no more if the test of a JSON patch fails.
            ApiError::Refused { code: 422, message, .. } if message.starts_with(REJECTED) => {
                Failure::Refused("the object was changed at the same time: try again".to_owned())
            }
            other => self.failure(other),
        };
        parse(&bytes.map_err(failure)?, path)
    }

    /// Creates an object, and returns it as the API server stored it.
    pub(super) async fn create(
        &self,
        collection: &str,
        body: &Value,
        dry_run: bool,
    ) -> Result<Value, Failure> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{collection}?fieldManager=kubectl-confrev{dry_run}");
        let body = body.to_string().into_bytes();
        let bytes = self.api.call("create", Method::POST, path, "application/json", body).await;
        parse(&bytes.map_err(|error| self.failure(error))?, collection)
    }

    /// The name that the API server has for the user; empty if it does not say.
    pub(super) async fn user(&self) -> String {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let answer = self.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review, false).await;
        answer.map_or(String::new(), |answer| {
            answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned()
        })
    }

    /// A source of this namespace under the strategy and the defaults that it inherits.
    pub(super) async fn under_strategies(
        &self,
        namespace: &str,
        source: Observed,
    ) -> Result<Observed, Failure> {
        self.strategies.apply(&self.api, namespace, source).await.map_err(|error| self.failure(error))
    }

    /// The error of a list by a label selector of the command line.
    pub(super) fn failure_of_selector(&self, error: ApiError, selector: &str) -> Failure {
        match error {
            ApiError::Refused { code: 400, message, .. } => {
                Failure::Usage(format!("invalid --selector {selector:?}: {message}"))
            }
            other => self.failure(other),
        }
    }

    /// Converts an error into one for the users of the command line.
    pub(super) fn failure(&self, error: ApiError) -> Failure {
        match error {
            ApiError::Unreachable { source, .. } => {
                let cause = explain::cause(&*source);
                let then = match cause.as_str() {
                    explain::UNTRUSTED => ": give --certificate-authority",
                    explain::OTHER_NAME => ": give --tls-server-name",
                    _ => "",
                };
                Failure::Unreachable { url: self.url.clone(), reason: cause + then }
            }
            ApiError::Refused { code: 401, .. } => Failure::Unauthorized { url: self.url.clone() },
            ApiError::Refused { message, .. } if is_unanswered(&message) => {
                Failure::Refused(message + UNANSWERED)
            }
            ApiError::Refused { message, .. } => Failure::Refused(message),
            other => Failure::Api(other),
        }
    }
}

/// The start of the API server's message about a request that it rejects without a reason.
const REJECTED: &str = "the server rejected our request";
/// What to do if the API server could not call confrev.
pub(super) const UNANSWERED: &str = ": is confrev running? see kubectl confrev check";

/// Whether the API server could not call one of confrev's webhooks.
pub(super) fn is_unanswered(message: &str) -> bool {
    let called = message.split_once("failed calling webhook \"").map(|(_, rest)| rest);
    called.and_then(|rest| rest.split('"').next()).is_some_and(|name| name.ends_with(".confrev.dev"))
}

/// The name and namespace of an object, whatever its other fields.
fn name_in(item: &str) -> String {
    #[derive(Default, Deserialize)]
    struct NamedItem {
        metadata: NamedItemMetadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct NamedItemMetadata {
        namespace: String,
        name: String,
    }
    let NamedItemMetadata { namespace, name } =
        serde_json::from_str::<NamedItem>(item).unwrap_or_default().metadata;
    format!("{name} in namespace {namespace:?}")
}

fn parse(bytes: &[u8], path: &str) -> Result<Value, Failure> {
    let what = path.split('?').next().unwrap_or_default().to_owned();
    serde_json::from_slice(bytes)
        .map_err(|error| Failure::Api(ApiError::Answer { what, reason: error.to_string() }))
}
