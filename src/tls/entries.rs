//! The changes that a webhook configuration needs so that it points to this program, as a pure function on its JSON.
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Uri;
use serde_json::{Map, Value, json};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::trust::{certificates, same};
use super::url::WebhookUrl;

/// The name of the webhook's Service and of the webhook configurations.
pub(super) const CONFIGURATION: &str = "confrev";
/// The port of that Service.
const PORT: u16 = 443;
/// The annotations with which cert-manager's injector sets `caBundle`
/// (<https://cert-manager.io/docs/concepts/ca-injector/>).
const INJECTORS: [&str; 3] = [
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
];

/// The wanted address of the webhooks, and the CAs to trust there.
#[derive(Debug)]
pub(super) struct WantedWebhooks<'a> {
    /// The namespace of the Service.
    pub(super) namespace: &'a str,
    /// The URL to use instead of the Service.
    pub(super) url: Option<&'a WebhookUrl>,
    /// The `caBundle`, before base64; `None` leaves it as it is.
    pub(super) bundle: Option<&'a [u8]>,
    /// Whether the CA is confrev's own. Annotations for another injector then do not count.
    pub(super) owned: bool,
}

/// The result of comparing a webhook configuration with the wanted one.
#[derive(Debug, PartialEq)]
pub(super) enum WebhookState {
    /// The configuration is right.
    Right,
    /// Another injector has to write first.
    WaitsForInjector,
    /// These operations of a JSON patch correct it. They apply only to the state that was compared.
    Write(Vec<Value>),
}

/// Compares `configuration` with `wanted`.
pub(super) fn compare_configuration(configuration: &Value, wanted: &WantedWebhooks<'_>) -> WebhookState {
    let injected = !wanted.owned && has_injector(configuration);
    let bundle = wanted.bundle.filter(|_| !injected);
    let webhooks = configuration["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    let mut operations = Vec::new();
    let mut waits = false;
    for (index, webhook) in webhooks.iter().enumerate() {
        let Some(present) = webhook["clientConfig"].as_object() else { continue };
        let mut right = present.clone();
        set_address(&mut right, wanted);
        let carries = |bundle: &[u8]| decoded(present).is_some_and(|present| same(&present, bundle));
        if let Some(bundle) = bundle.filter(|bundle| !carries(bundle)) {
            right.insert("caBundle".to_owned(), BASE64.encode(bundle).into());
        }
        waits |= injected && decoded(present).is_none_or(|bundle| bundle.is_empty());
        if right != *present {
            let path = format!("/webhooks/{index}/clientConfig");
            operations.push(json!({ "op": "replace", "path": path, "value": right }));
        }
    }
    if !operations.is_empty() {
        let version = &configuration["metadata"]["resourceVersion"];
        let guard = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version });
        operations.insert(0, guard);
        return WebhookState::Write(operations);
    }
    if waits { WebhookState::WaitsForInjector } else { WebhookState::Right }
}

/// Whether another injector sets `caBundle`.
pub(super) fn has_injector(configuration: &Value) -> bool {
    let annotations = &configuration["metadata"]["annotations"];
    INJECTORS.iter().any(|name| annotations.get(name).is_some())
}

/// The certificates in each webhook's `caBundle`.
pub(super) fn carried(configuration: &Value) -> Vec<Vec<CertificateDer<'static>>> {
    let webhooks = configuration["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    let configs = webhooks.iter().filter_map(|webhook| webhook["clientConfig"].as_object());
    configs.map(|config| certificates(&decoded(config).unwrap_or_default())).collect()
}

fn decoded(client_config: &Map<String, Value>) -> Option<Vec<u8>> {
    BASE64.decode(client_config.get("caBundle")?.as_str()?).ok()
}

/// Points the webhook to the URL or to the Service, keeping its path.
fn set_address(client_config: &mut Map<String, Value>, wanted: &WantedWebhooks<'_>) {
    match (wanted.url, client_config.get("url").and_then(Value::as_str)) {
        (Some(url), present) => {
            let path = present.map_or_else(|| service_path(client_config), url_path);
            client_config.insert("url".to_owned(), url.with_path(&path).into());
            client_config.remove("service");
        }
        (None, Some(present)) => {
            let path = url_path(present);
            let mut service = json!({ "name": CONFIGURATION, "namespace": wanted.namespace, "port": PORT });
            if !path.is_empty() {
                service["path"] = path.into();
            }
            client_config.insert("service".to_owned(), service);
            client_config.remove("url");
        }
        (None, None) => {}
    }
}

fn service_path(client_config: &Map<String, Value>) -> String {
    let path = client_config.get("service").and_then(|service| service["path"].as_str());
    path.unwrap_or_default().to_owned()
}

fn url_path(url: &str) -> String {
    let path = url.parse::<Uri>().map(|uri| uri.path().to_owned()).unwrap_or_default();
    if path == "/" { String::new() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUNDLE: &[u8] = b"authority";

    fn by_service() -> Value {
        json!({
            "metadata": { "name": "confrev", "resourceVersion": "7" },
            "webhooks": [
                { "name": "workloads", "futureField": 1, "clientConfig": {
                    "service": { "name": "confrev", "namespace": "n", "path": "/mutate/workloads", "port": 443 } } },
                { "name": "configmaps", "clientConfig": {
                    "service": { "name": "confrev", "namespace": "n", "path": "/mutate/configmaps", "port": 443 } } },
            ],
        })
    }

    fn wanted(url: Option<&WebhookUrl>) -> WantedWebhooks<'_> {
        WantedWebhooks { namespace: "n", url, bundle: Some(BUNDLE), owned: true }
    }

    fn url(text: &str) -> WebhookUrl {
        text.parse().unwrap()
    }

    /// The configuration after the patch of the verdict.
    fn written(configuration: &Value, wanted: &WantedWebhooks<'_>) -> Value {
        let WebhookState::Write(operations) = compare_configuration(configuration, wanted) else {
            panic!("nothing to write")
        };
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        let mut after = configuration.clone();
        json_patch::patch(&mut after, &patch).unwrap();
        assert_eq!(
            compare_configuration(&after, wanted),
            WebhookState::Right,
            "the written configuration is correct"
        );
        after
    }

    #[test]
    fn writes_only_the_bundle_into_each_webhook() {
        let after = written(&by_service(), &wanted(None));
        let mut expected = by_service();
        for index in 0..2 {
            expected["webhooks"][index]["clientConfig"]["caBundle"] = BASE64.encode(BUNDLE).into();
        }
        assert_eq!(after, expected);
    }

    #[test]
    fn url_keeps_the_path_of_each_webhook() {
        let url = url("https://127.0.0.1:8443");
        let after = written(&by_service(), &wanted(Some(&url)));
        assert_eq!(after["webhooks"][0]["clientConfig"]["url"], "https://127.0.0.1:8443/mutate/workloads");
        assert_eq!(after["webhooks"][1]["clientConfig"]["url"], "https://127.0.0.1:8443/mutate/configmaps");
        assert!(after["webhooks"][0]["clientConfig"].get("service").is_none());
    }

    #[test]
    fn path_survives_changes_of_the_url() {
        let (one, two) = (url("https://127.0.0.1:8443"), url("https://example.com"));
        let first = written(&by_service(), &wanted(Some(&one)));
        let second = written(&first, &wanted(Some(&two)));
        assert_eq!(second["webhooks"][0]["clientConfig"]["url"], "https://example.com/mutate/workloads");
        let back = written(&second, &wanted(None));
        assert_eq!(back, written(&by_service(), &wanted(None)));
    }

    #[test]
    fn correct_webhook_configuration_is_not_written() {
        let right = written(&by_service(), &wanted(None));
        assert_eq!(compare_configuration(&right, &wanted(None)), WebhookState::Right);
    }

    #[test]
    fn webhook_write_is_conditional_on_resource_version() {
        let WebhookState::Write(operations) = compare_configuration(&by_service(), &wanted(None)) else {
            panic!()
        };
        assert_eq!(operations[0], json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" }));
    }

    #[test]
    fn existing_bundle_stays_if_none_is_given() {
        let mut configuration = by_service();
        configuration["webhooks"][0]["clientConfig"]["caBundle"] = "eHg=".into();
        let wanted = WantedWebhooks { bundle: None, owned: false, ..wanted(None) };
        assert_eq!(compare_configuration(&configuration, &wanted), WebhookState::Right);
    }

    #[test]
    fn waits_for_injector_unless_ca_is_own() {
        let mut configuration = by_service();
        configuration["metadata"]["annotations"] = json!({ "cert-manager.io/inject-ca-from": "n/confrev" });
        let foreign = WantedWebhooks { owned: false, ..wanted(None) };
        assert_eq!(compare_configuration(&configuration, &foreign), WebhookState::WaitsForInjector);
        for index in 0..2 {
            configuration["webhooks"][index]["clientConfig"]["caBundle"] = "eHg=".into();
        }
        assert_eq!(compare_configuration(&configuration, &foreign), WebhookState::Right);
        let own = wanted(None);
        assert!(
            matches!(compare_configuration(&configuration, &own), WebhookState::Write(_)),
            "the bundle must contain confrev's own CA"
        );
    }

    #[test]
    fn configuration_without_webhooks_is_correct() {
        assert_eq!(compare_configuration(&json!({ "metadata": {} }), &wanted(None)), WebhookState::Right);
        assert_eq!(compare_configuration(&json!({ "webhooks": null }), &wanted(None)), WebhookState::Right);
    }
}
