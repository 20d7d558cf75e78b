//! From the body of a request to the body of its answer.

use std::sync::Arc;

use axum::{Router, body::Body};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::{
    admission::{Context, MARKED_WORKLOADS, ReviewLimits, router},
    controller::{Config, Shared, State},
    kinds::Kinds,
    schema::Schemas,
    telemetry::{Metrics, Readiness},
};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::world::{self, World};

/// The webhooks, and one that is none.
pub const PATHS: [&str; 5] =
    ["/mutate/workloads", MARKED_WORKLOADS, "/validate/workloads", "/mutate/configmaps", "/mutate/secrets"];

struct Site {
    router: Router,
    world: World,
    runtime: tokio::runtime::Runtime,
}

impl Site {
    fn new() -> Self {
        let kinds = Arc::new(Kinds::default());
        let config = Config { rolls_per_second: 1, secrets: true, ..Config::default() };
        let world = World::default();
        let shared = Shared::new(State::new(kinds.clone(), config), Readiness::new().register("caches"));
        let (limits, metrics) = (ReviewLimits::default(), Metrics::new());
        let context = Context {
            api: world.clone(),
            kinds,
            secrets: true,
            limits,
            shared,
            metrics,
            schemas: Schemas::default(),
            users: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { router: router(context), world, runtime }
    }

    fn ask(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_vec()))
            .unwrap();
        self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await.unwrap();
            (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes().to_vec())
        })
    }
}

/// Checks a request: the first byte selects the webhook, the rest is the body.
pub fn check(bytes: &[u8]) {
    thread_local!(static SITE: Site = Site::new());
    let Some((&choice, body)) = bytes.split_first() else { return };
    let path = PATHS[usize::from(choice) % PATHS.len()];
    SITE.with(|site| {
        let (status, answer) = site.ask(path, body);
        let written = site.world.take_written();
        match status {
            400 => {
                assert!(
                    !answer.is_empty() && written.is_empty(),
                    "a refusal has a reason, and writes nothing"
                );
            }
            // Undecided: the policy `confrev-carry` decides.
            503 if path == MARKED_WORKLOADS => {
                assert!(written.is_empty(), "an undecided review writes nothing");
            }
            200 => check_answer(path, body, &answer, written.len()),
            other => panic!("{path}: status {other}"),
        }
    });
}

fn check_answer(path: &str, body: &[u8], answer: &[u8], written: usize) {
    let answer: Value = serde_json::from_slice(answer).expect("an answer is JSON");
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"]),
        (&"admission.k8s.io/v1".into(), &"AdmissionReview".into())
    );
    let response = &answer["response"];
    let warnings = response["warnings"].as_array().cloned().unwrap_or_default();
    let is_short = |warning: &Value| warning.as_str().is_some_and(|text| text.chars().count() <= 256);
    assert!(warnings.len() <= 5 && warnings.iter().all(is_short), "{warnings:?}");
    if response["allowed"] != true {
        let message = response["status"]["message"].as_str().unwrap_or_default();
        let is_impossible = message.starts_with("invalid ");
        assert!(path.ends_with("workloads") || is_impossible, "a source is never refused: {response}");
        assert!(["403", "503"].contains(&response["status"]["code"].to_string().as_str()), "{response}");
        assert!(response["status"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{response}");
        assert!(response["patch"].is_null(), "{response}");
    }
    // Numbers out of range and more than 128 levels pass confrev unchanged, but `Value` cannot parse them.
    let Ok(review) = serde_json::from_slice::<Value>(body) else { return };
    if !review.is_object() || !world::has_form(&review) {
        return;
    }
    let request = &review["request"];
    assert_eq!(response["uid"], request["uid"], "the answer has the request's uid");
    if request["dryRun"] == true || path == "/validate/workloads" {
        assert_eq!(written, 0, "{path}: a dry run or a validation writes");
    }
    if let Some(patch) = response["patch"].as_str() {
        assert_eq!(response["patchType"], "JSONPatch");
        assert!(["/mutate/workloads", MARKED_WORKLOADS].contains(&path), "{path} changes nothing");
        let patch = BASE64_STANDARD.decode(patch).expect("base64");
        let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a JSON patch");
        let mut object = request["object"].clone();
        if !world::is_object(&object) {
            return;
        }
        json_patch::patch(&mut object, &patch).unwrap_or_else(|error| panic!("{error}: {patch} on {object}"));
    }
}
