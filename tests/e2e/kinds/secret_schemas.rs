//! Secrets with a JSON Schema: the schema is a Secret too, and nothing but pass or fail leaves confrev.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::chart_setup::logs;
use crate::manifests::config_map;
use crate::shared::running;
use crate::world::{LIMIT, World, text};

/// All that a refusal says.
const SAID: &str = "it fails its schema (annotation confrev.dev/schema)";
/// A name in a content, and one in a schema, that do not occur elsewhere by chance.
const NAMES: [&str; 2] = ["qzkey7731", "qzrule7731"];

/// The object that holds a schema, as a Secret. The rule has a name of its own.
fn schemas(maximum: u32) -> Value {
    let rule = json!({"$ref": format!("#/$defs/{}", NAMES[1])});
    let app = json!({"additionalProperties": rule, "$defs": {NAMES[1]: {"maximum": maximum}}}).to_string();
    json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"app": app},
           "metadata": {"name": "schemas", "annotations": {"confrev.dev/schema-for": "own"}}})
}

fn source(number: u32) -> Value {
    let content = json!({NAMES[0]: number}).to_string();
    json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"app.json": content},
           "metadata": {"name": "demo", "annotations": {"confrev.dev/schema": "schemas/app"}}})
}

fn is_silent(said: &str) -> bool {
    NAMES.iter().all(|name| !said.contains(name)) && !said.contains("app.json") && !said.contains("maximum")
}

#[test]
fn refusals_of_secret_say_pass_or_fail() {
    let _confrev = running();
    let world = World::new("secret-schemas");
    // A person who may edit ConfigMaps does not change the schema of a Secret.
    let mut other = config_map("schemas", "");
    other["metadata"]["annotations"] = json!({"confrev.dev/schema-for": "*"});
    other["data"] = json!({"app": "true"});
    world.apply(&other).ok();
    let missing = world.apply(&source(1)).refused();
    assert!(
        missing.contains("has no Secret \"schemas\" whose annotation confrev.dev/schema-for"),
        "{missing}"
    );
    world.apply(&schemas(9)).ok();
    world.apply(&source(1)).ok();
    let mut elsewhere = source(1);
    elsewhere["metadata"]["annotations"]["confrev.dev/schema"] =
        json!(format!("{}/schemas/app", world.name()));
    assert!(world.apply(&elsewhere).refused().contains("write SECRET/KEY"));
    let refused = world.apply(&source(10)).refused();
    // kubectl prints the patch that it sent, too.
    let (_, answer) = refused.split_once("denied the request: ").expect("a webhook refuses it");
    assert!(answer.contains(&format!("Secret \"demo\": {SAID}")) && is_silent(answer), "{answer}");

    let mut web = Load::new("deployments", "web", &[]);
    web.manifest["metadata"]["annotations"] =
        json!({"confrev.dev/secrets": "true", "confrev.dev/track": "false", "confrev.dev/min-interval": "0"});
    web.manifest["spec"]["replicas"] = json!(0);
    web.manifest["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{"secretRef": {"name": "demo"}}]);
    web.apply(&world).ok();
    let resolved = || {
        let live = world.cluster.get("deployment", world.name(), "web").expect("the Deployment exists");
        text(&live["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"])
    };
    let first = resolved();
    assert!(first.starts_with("demo-"), "{first}");
    // The schema becomes stricter after the content was written.
    world.apply(&source(6)).ok();
    world.apply(&schemas(5)).ok();
    world.kubectl(&["annotate", "deployment/web", "confrev.dev/track=true", "--overwrite"]).ok();
    for about in ["Deployment/web", "Secret/demo"] {
        let said = wait_for(&format!("the Event RollRefused on {about}"), LIMIT, || {
            let events = world.cluster.list("events", world.name(), "");
            let is_it = |event: &&Value| {
                let of = &event["involvedObject"];
                event["reason"] == "RollRefused"
                    && about == format!("{}/{}", text(&of["kind"]), text(&of["name"]))
            };
            events.iter().find(is_it).map(|event| text(&event["message"])).ok_or("there is none".to_owned())
        });
        assert!(said.contains(SAID) && is_silent(&said), "{said}");
    }
    assert_eq!(resolved(), first);
    world.apply(&source(2)).ok();
    wait_for("the roll to the corrected content", LIMIT, || {
        let now = resolved();
        if now == first { Err(now) } else { Ok(()) }
    });
    let logs = logs();
    assert!(
        NAMES.iter().all(|name| !logs.contains(name)),
        "a log has a name of the content or of the schema"
    );
}
