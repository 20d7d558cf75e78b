//! Whether the user may make the writes of an action, by SelfSubjectAccessReviews.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::json;

use crate::{
    cli::{
        objects::{OptedIn, text},
        target::Target,
    },
    snapshot::ObjectName,
};

/// How long an answer is used.
const FRESH: Duration = Duration::from_secs(30);
/// The most answers that are kept.
const MAX: usize = 1000;
/// The collection of reviews.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// The user has it.
    Granted,
    /// The user lacks it, and why.
    Denied(String),
}

/// The verb, group, resource, namespace and name.
type AccessQuestion = [String; 5];

/// The answers of the API server.
#[derive(Debug, Default)]
pub(super) struct Rights(Mutex<HashMap<AccessQuestion, (Instant, Right)>>);

impl Rights {
    /// Whether the user may change a workload.
    pub(super) async fn patch_workload(&self, target: &Target, workload: &OptedIn) -> Right {
        let kind = &workload.kind;
        self.ask(target, ["patch", &kind.group, &kind.plural, workload.namespace(), workload.name()]).await
    }

    /// Whether the user may change a source.
    pub(super) async fn patch_source(&self, target: &Target, source: &ObjectName) -> Right {
        self.ask(target, ["patch", "", source.kind.plural(), &target.namespace, &source.name]).await
    }

    /// Whether the user may create a source.
    pub(super) async fn create_source(&self, target: &Target, source: &ObjectName) -> Right {
        self.ask(target, ["create", "", source.kind.plural(), &target.namespace, ""]).await
    }

    async fn ask(&self, target: &Target, asked: [&str; 5]) -> Right {
        let key = asked.map(str::to_owned);
        let now = Instant::now();
        {
            let mut known = self.0.lock();
            if known.len() >= MAX {
                known.clear();
            }
            if let Some((_, right)) = known.get(&key).filter(|(at, _)| now.duration_since(*at) < FRESH) {
                return right.clone();
            }
        }
        let right = review(target, asked).await;
        self.0.lock().insert(key, (now, right.clone()));
        right
    }
}

async fn review(target: &Target, [verb, group, resource, namespace, name]: [&str; 5]) -> Right {
    let attributes =
        json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name});
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes}});
    let dot = if group.is_empty() { "" } else { "." };
    match target.create(REVIEWS, &body, false).await {
        Ok(answer) if answer["status"]["allowed"] == true => Right::Granted,
        Ok(answer) => {
            let why = text(&answer, "/status/reason");
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            Right::Denied(format!("you may not {verb} {resource}{dot}{group} in namespace {namespace}{why}"))
        }
        Err(error) => Right::Denied(format!("your rights could not be checked: {error}")),
    }
}
