//! The client, under the identity that the guard of snapshots accepts.
//!
//! Outside the cluster, confrev often runs with an administrator's kubeconfig. The guard rejects administrators too, so
//! confrev then impersonates its own ServiceAccount, and has no more rights than in the cluster.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{Api, Client, Config, api::PostParams};

use super::connect::connect;

/// The header that asks the API server to act as another user.
/// Source: Kubernetes, "User impersonation".
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Why no client can be created.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No configuration was found.
    #[error("no cluster configured: set KUBECONFIG, or run in a pod with a ServiceAccount: {0}")]
    Config(#[from] Box<kube::config::InferConfigError>),
    /// The configuration cannot be used.
    #[error("the cluster's configuration cannot be used: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The API server does not answer.
    #[error("cannot determine the current user from {url}: {source}")]
    Whoami {
        /// The API server.
        url: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// The client for all calls: as the ServiceAccount `confrev` of `namespace`, whatever user the kubeconfig names, where
/// impersonation is allowed.
pub async fn client(namespace: &str) -> Result<Client, IdentityError> {
    let mut config = Config::infer().await.map_err(Box::new)?;
    config.connect_timeout = Some(Duration::from_secs(5));
    let client = connect(config.clone()).map_err(|error| IdentityError::Client(Box::new(error)))?;
    let wanted = format!("system:serviceaccount:{namespace}:confrev");
    let user = user_name(&client).await.map_err(|source| IdentityError::Whoami {
        url: config.cluster_url.to_string(),
        source: Box::new(source),
    })?;
    if user == wanted {
        return Ok(client);
    }
    if !may_impersonate(&client, namespace).await {
        tracing::warn!(
            user,
            wanted,
            "not running as confrev's ServiceAccount, and not allowed to impersonate it: the guard will refuse \
             writes that only confrev may make"
        );
        return Ok(client);
    }
    tracing::info!(user, acting_as = wanted, "impersonating confrev's ServiceAccount");
    if let Ok(value) = HeaderValue::from_str(&wanted) {
        config.headers.push((IMPERSONATE_USER, value));
    }
    connect(config).map_err(|error| IdentityError::Client(Box::new(error)))
}

async fn user_name(client: &Client) -> kube::Result<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(review.status.and_then(|status| status.user_info).and_then(|user| user.username).unwrap_or_default())
}

async fn may_impersonate(client: &Client, namespace: &str) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let attributes = ResourceAttributes {
        verb: Some("impersonate".to_owned()),
        resource: Some("serviceaccounts".to_owned()),
        name: Some("confrev".to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.ok().and_then(|review| review.status).is_some_and(|status| status.allowed)
}
