//! The answers of the webhook port to valid and invalid requests.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use confrev_controlplane::wait_for;
use serde_json::{Value, json};
use ureq::http::{Method, Request};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::manifests::{Kind, Workload};
use crate::shared::{Running, running};
use crate::world::{LIMIT, World, text};

/// A client that trusts the CA in the Secret, as the API server does.
pub(crate) struct Client {
    agent: ureq::Agent,
    confrev: Running,
}

impl Client {
    pub(crate) fn new() -> Self {
        let confrev = running();
        let cluster = confrev_controlplane::ControlPlane::shared();
        let secret = cluster.get("secret", "confrev", "confrev-ca").expect("the CA's Secret");
        let bundle = BASE64_STANDARD.decode(text(&secret["data"]["ca.crt"])).unwrap();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&[Certificate::from_pem(&bundle).unwrap()]))
            .build();
        let config = ureq::Agent::config_builder().tls_config(tls).http_status_as_error(false).proxy(None);
        // Each request has its own connection: confrev closes a connection whose body it did not read completely.
        let config = config.max_idle_connections(0).build();
        Self { agent: config.new_agent(), confrev }
    }

    fn send(&self, method: Method, path: &str, content_type: &str, body: &[u8]) -> (u16, String) {
        let uri = format!("{}{path}", self.confrev.webhook_url());
        let request = Request::builder().method(method).uri(uri).header("Content-Type", content_type);
        let request = request.body(body).expect("a request");
        let mut answer = self.agent.run(request).unwrap_or_else(|e| panic!("{path}: {e}"));
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("text"))
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        self.send(Method::POST, path, "application/json", body)
    }
}

const WORKLOADS: &str = "/mutate/workloads";

/// An AdmissionReview of a new Deployment.
fn review(namespace: &str) -> Value {
    let workload = Workload::new(Kind::Deployment, "web", &["demo"]);
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "name": "web",
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": "test"},
        "object": workload.manifest(),
        "oldObject": null,
        "dryRun": true,
    }})
}

/// The server then answers valid requests.
#[test]
fn invalid_requests_get_a_status_and_a_message() {
    let client = Client::new();
    let world = World::new("http");
    world.set_config("demo", "A");
    let good = review(world.name());
    let without = |field: &str| {
        let mut review = good.clone();
        review.as_object_mut().unwrap().remove(field);
        review.to_string()
    };
    let mut other_kind = good.clone();
    other_kind["kind"] = json!("ConversionReview");
    let mut other_version = good.clone();
    other_version["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut no_uid = good.clone();
    no_uid["request"]["uid"] = json!("");

    for path in [WORKLOADS, "/mutate/configmaps"] {
        let json = "application/json";
        for method in [Method::PUT, Method::DELETE, Method::GET] {
            let (code, message) = client.send(method, path, json, b"");
            assert_eq!((code, message.is_empty()), (405, false), "{path}: {message}");
        }
        for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
            let (code, message) = client.send(Method::POST, path, content_type, good.to_string().as_bytes());
            assert_eq!((code, message.is_empty()), (415, false), "{path}: {message}");
        }
        for body in [
            "",
            "{",
            "[]",
            "null",
            "\u{fffd}",
            &without("request"),
            &without("kind"),
            &without("apiVersion"),
            &other_kind.to_string(),
            &other_version.to_string(),
            &no_uid.to_string(),
        ] {
            let (code, message) = client.post(path, body.as_bytes());
            assert_eq!((code, message.is_empty()), (400, false), "{path}: {body}: {message}");
        }
        let (code, message) = client.post(path, b"{\"kind\": \"\xff\"}");
        assert_eq!(code, 400, "{message}");
    }
    for path in ["/", "/mutate", "/mutate/workloads/", "/validate/nothing", "/healthz"] {
        let (code, message) = client.post(path, good.to_string().as_bytes());
        assert_eq!((code, message.is_empty()), (404, false), "{path}: {message}");
    }
    assert_eq!(client.post(WORKLOADS, good.to_string().as_bytes()).0, 200);
}

/// A body of 6 MiB is accepted.
#[test]
fn body_of_8_mib_is_too_large() {
    let client = Client::new();
    let world = World::new("http-size");
    world.set_config("demo", "A");
    let sized = |mib: usize| {
        let mut review = review(world.name());
        review["request"]["object"]["metadata"]["annotations"]["large"] = json!("x".repeat(mib << 20));
        review.to_string()
    };
    assert_eq!(client.post(WORKLOADS, sized(6).as_bytes()).0, 200);
    let (code, message) = client.post(WORKLOADS, sized(8).as_bytes());
    assert_eq!(code, 413, "{message}");
    assert!(message.contains("larger than"), "{message}");
    assert_eq!(client.post(WORKLOADS, sized(1).as_bytes()).0, 200, "the server continues");
}

/// The patch is encoded in base64.
#[test]
fn answer_echoes_uid_and_has_a_json_patch() {
    let client = Client::new();
    let world = World::new("http-answer");
    world.set_config("demo", "A");
    let review = review(world.name());
    let ask = || -> Value {
        let (code, answer) = client.post(WORKLOADS, review.to_string().as_bytes());
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str(&answer).expect("JSON")
    };
    let answer = ask();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!(response["uid"], review["request"]["uid"]);
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = BASE64_STANDARD.decode(text(&response["patch"])).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a JSON patch");
    let mut object = review["request"]["object"].clone();
    json_patch::patch(&mut object, &patch).expect("the patch applies to the object");
    let name =
        crate::world::snapshot_of(&object["spec"]["template"], "demo").expect("the reference is resolved");
    assert_eq!(object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"], name);

    assert_eq!(ask(), answer, "equal reviews get equal answers");
    assert_eq!(world.snapshots(), [] as [Value; 0], "a dry-run writes nothing");
}

/// A ConfigMap without a namespace is allowed.
#[test]
fn workload_without_namespace_is_denied_with_the_reason() {
    let client = Client::new();
    let mut request = review("");
    request["request"]["object"]["metadata"]["annotations"] = json!({"confrev.dev/missing": "deny"});
    for absent in [false, true] {
        if absent {
            request["request"].as_object_mut().unwrap().remove("namespace");
        }
        for path in [WORKLOADS, "/validate/workloads"] {
            let (code, answer) = client.post(path, request.to_string().as_bytes());
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let (response, status) = (&answer["response"], &answer["response"]["status"]);
            assert_eq!(
                (code, &response["allowed"], &status["code"]),
                (200, &json!(false), &json!(403)),
                "{path}"
            );
            assert!(text(&status["message"]).contains("no namespace"), "{answer}");
        }
    }
    request["request"]["resource"] = json!({"group": "", "version": "v1", "resource": "configmaps"});
    request["request"]["object"] = json!({"metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}}, "data": {"text": "A"}});
    request["request"]["dryRun"] = json!(false);
    let (code, answer) = client.post("/mutate/configmaps", request.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((code, &answer["response"]["allowed"]), (200, &json!(true)), "{answer}");
    assert!(answer["response"]["warnings"].is_null(), "{answer}");
}

/// It never returns a patch.
#[test]
fn validation_refuses_the_same_workloads_as_mutation() {
    let client = Client::new();
    let world = World::new("http-validate");
    world.set_config("demo", "A");
    let ask = |source: &str, annotation: (&str, &str)| -> Value {
        let mut review = review(world.name());
        let object = &mut review["request"]["object"];
        object["metadata"]["annotations"] = json!({annotation.0: annotation.1});
        object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(source);
        let (code, answer) = client.post("/validate/workloads", review.to_string().as_bytes());
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).expect("JSON")["response"].take()
    };
    for (source, annotation, refused) in [
        ("demo", ("confrev.dev/missing", "deny"), None),
        ("nothing", ("confrev.dev/missing", "warn"), None),
        ("nothing", ("confrev.dev/missing", "deny"), Some(["nothing", "confrev.dev/missing"])),
        ("demo", ("confrev.dev/track", "yes"), Some(["\"yes\"", "confrev.dev/track"])),
    ] {
        let response = ask(source, annotation);
        assert_eq!(response["allowed"], refused.is_none(), "{response}");
        assert!(response["patch"].is_null(), "{response}");
        for part in refused.iter().flatten() {
            assert!(text(&response["status"]["message"]).contains(part), "{response}");
        }
    }
    assert_eq!(world.snapshots(), [] as [Value; 0]);
}

/// Workloads with other settings are not sent.
#[test]
fn api_server_validates_workloads_with_checked_settings() {
    let client = Client::new();
    let world = World::new("http-validated");
    let asked = || {
        let uri = format!("{}/metrics", client.confrev.admin_url());
        let mut answer = client.agent.get(uri).call().expect("metrics");
        let metrics = answer.body_mut().read_to_string().expect("text");
        let of_path = metrics.lines().filter(|line| line.contains("path=\"/validate/workloads\""));
        let counts =
            of_path.filter(|line| line.contains("_total{")).filter_map(|line| line.rsplit(' ').next());
        counts.map(|count| count.parse::<f64>().expect("a number")).sum::<f64>()
    };
    let before = asked();
    let mut workload = Workload::new(Kind::Deployment, "web", &["demo"]).manifest();
    workload["metadata"]["annotations"] = json!({"confrev.dev/missing": "deny"});
    world.set_config("demo", "A");
    // A hold of no snapshot would be refused before the other webhook is asked.
    world.apply(&Workload::new(Kind::Deployment, "other", &["demo"]).manifest()).ok();
    let snapshot = world.snapshots()[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    // The API server calls a confrev that has just started as soon as it knows the new address.
    wait_for("the API server to call the webhook", LIMIT, || {
        world.with_file(&["apply", "--dry-run=server"], &workload).ok();
        let asked = asked();
        if asked > before { Ok(()) } else { Err(asked) }
    });
    // A webhook with the same conditions and no server: the API server refuses the writes that match.
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let (_, configuration) = world.cluster.api().get(&format!("{configurations}/confrev"));
    let mut webhook = configuration["webhooks"][0].clone();
    webhook["name"] = json!("nobody.example.com");
    webhook["clientConfig"] = json!({"url": "https://127.0.0.1:1/"});
    webhook["failurePolicy"] = json!("Fail");
    webhook["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": world.name()}});
    let name = world.name();
    world.cluster.api().post(configurations, &json!({"metadata": {"name": name}, "webhooks": [webhook]}));
    let mut is_asked = |setting: &str, value: &str| {
        workload["metadata"]["annotations"] = json!({setting: value});
        world.with_file(&["apply", "--dry-run=server"], &workload).stderr.contains("nobody.example.com")
    };
    wait_for("the API server to know the webhook", LIMIT, || {
        is_asked("confrev.dev/missing", "deny").then_some(())
    });
    for (setting, value, asked) in [
        ("confrev.dev/exclude", "other", true),
        ("confrev.dev/mount", "demo", true),
        ("confrev.dev/hold", &snapshot, true),
        ("confrev.dev/on-undo", "hold", false),
        ("confrev.dev/min-interval", "1m30s", true),
        ("confrev.dev/min-interval", "90s", false),
        ("confrev.dev/missing", "allow", false),
        ("confrev.dev/secrets", "false", false),
        ("confrev.dev/track", "false", false),
        ("example.com/note", "any", false),
    ] {
        assert_eq!(is_asked(setting, value), asked, "{setting}: {value}");
    }
    world.cluster.api().delete(&format!("{configurations}/{name}"));
}
