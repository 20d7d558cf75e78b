//! Wrong values, which are refused by name before anything is rendered.

use serde_json::{Value, json};

use crate::helm::{Setting, template};

/// Settings, and the text that helm's error must contain.
fn wrong() -> Vec<(Vec<Setting<'static>>, &'static str)> {
    let one = |name, value: Value, named| (vec![(name, value)], named);
    vec![
        one("failurepolicy", json!("Ignore"), "'failurepolicy' not allowed"),
        one("image.tga", json!("1"), "'tga' not allowed"),
        one("certificates.certmanager", json!({}), "'certmanager' not allowed"),
        one("replicas", json!("two"), "/replicas"),
        one("replicas", json!(-1), "/replicas"),
        one("image.repository", json!(""), "/image/repository"),
        one("image.tag", json!("a b"), "/image/tag"),
        one("image.digest", json!("sha256:12"), "/image/digest"),
        one("image.pullPolicy", json!("Sometimes"), "/image/pullPolicy"),
        one("image.pullSecrets", json!([{"name": "a"}]), "/image/pullSecrets/0"),
        one("resources", json!({"limit": {}}), "'limit' not allowed"),
        one("resources.limits.memory", json!("255Mi"), "the parts in memory need 256Mi"),
        one("resources.limits.memory", json!(200_000_000), "the parts in memory need 256Mi"),
        one("memory.checks", json!(0), "/memory/checks"),
        one("memory.reviews", json!("54Mi"), "/memory/reviews"),
        one("memory.cheks", json!(1), "'cheks' not allowed"),
        one("certificates.mode", json!("selfsigned"), "/certificates/mode"),
        one("certificates.mode", json!("secret"), "/certificates/secret/name"),
        one("certificates.secret.caBundle", json!("LS0tLS1CRUdJTg=="), "/certificates/secret/caBundle"),
        one(
            "certificates.certManager.issuerRef",
            json!({"kind": "Issuer"}),
            "/certificates/certManager/issuerRef",
        ),
        one("certificates.clientCA", json!("clients"), "/certificates/clientCA"),
        one("certificates.clientCA.configmap", json!("clients"), "'configmap' not allowed"),
        one(
            "certificates.clientCA",
            json!({"configMap": "a", "secret": "b"}),
            "/certificates/clientCA/secret",
        ),
        one("certificates.clientNames", json!(["a"]), "/certificates/clientCA"),
        one("certificates.recordUsers", json!(true), "/certificates/clientCA"),
        one("certificates.recordUsers", json!("yes"), "/certificates/recordUsers"),
        (
            vec![("certificates.clientCA.secret", json!("a")), ("certificates.clientNames", json!(["a,b"]))],
            "/certificates/clientNames/0",
        ),
        one("outage", json!("ignore"), "/outage"),
        one("timeoutSeconds", json!(31), "/timeoutSeconds"),
        one("sourceTimeoutSeconds", json!(0), "/sourceTimeoutSeconds"),
        one("checkedSourceTimeoutSeconds", json!(0), "/checkedSourceTimeoutSeconds"),
        one("strategies", json!({"own": {"keep": 3}}), "/strategies/own"),
        one("strategy", json!("unknown"), "strategy: \"unknown\""),
        one("defaults", json!({"keep": 3}), "/defaults"),
        one("defaults", json!({"missing": "dney"}), "/defaults/missing"),
        one("excludedNamespaces", json!(["Prod"]), "/excludedNamespaces/0"),
        one("secrets.enabled", json!("yes"), "/secrets/enabled"),
        one("extraKinds", json!([{"group": "a.b", "version": "v1"}]), "/extraKinds/0"),
        one(
            "extraKinds",
            json!([{"group": "a.b", "version": "v1", "resource": "cs", "kind": "C", "path": "/spec/template"}]),
            "/extraKinds/0/path",
        ),
        one("rollRate", json!(0), "/rollRate"),
        one("settle", json!("1 second"), "/settle"),
        one("orphanGrace", json!(600), "/orphanGrace"),
        one("maxSnapshotBytes", json!(0), "/maxSnapshotBytes"),
        one("logFormat", json!("xml"), "/logFormat"),
        one("notify.url", json!("hooks.example.com"), "/notify/url"),
        one("notify.format", json!("teams"), "/notify/format"),
        one("notify", json!({"url": "https://a", "secret": "b"}), "/notify/secret"),
        one("extraArgs", json!(["listen"]), "/extraArgs/0"),
        one("webhookUrl", json!("http://127.0.0.1:8443"), "/webhookUrl"),
        one("namespace.create", json!("true"), "/namespace/create"),
        one("podDisruptionBudget.maxUnavailable", json!("many"), "/podDisruptionBudget/maxUnavailable"),
        one("webhookPort", json!(443), "/webhookPort"),
        one("webhookPort", json!(8080), "webhookPort and adminPort must differ"),
        one("adminPort", json!("http"), "/adminPort"),
        one("hostNetwork", json!("yes"), "/hostNetwork"),
        one("dnsPolicy", json!("first"), "/dnsPolicy"),
        one("webhookAnnotations", json!({"a": true}), "/webhookAnnotations/a"),
        one("priorityClassName", json!(1), "/priorityClassName"),
        one("topologySpreadConstraints", json!({}), "/topologySpreadConstraints"),
        one("affinity", json!({"podsAffinity": {}}), "'podsAffinity' not allowed"),
        one("nodeSelector", json!({"disk": true}), "/nodeSelector/disk"),
        one("tolerations", json!([{"effect": "None"}]), "/tolerations/0/effect"),
        one("podAnnotations", json!([]), "/podAnnotations"),
        one("podLabels", json!({"app.kubernetes.io/name": "other"}), "/podLabels"),
        one("serviceMonitor.interval", json!("often"), "/serviceMonitor/interval"),
        one("prometheusRule.label", json!({}), "'label' not allowed"),
        one("prometheusRule.enabled", json!("yes"), "/prometheusRule/enabled"),
        one("dashboard.labels", json!({"grafana_dashboard": 1}), "/dashboard/labels/grafana_dashboard"),
        one("dashboard.folder", json!("a"), "'folder' not allowed"),
        one("podMonitor.label", json!({}), "'label' not allowed"),
        one("networkPolicy.apiServerCIDRs", json!(["anywhere"]), "/networkPolicy/apiServerCIDRs/0"),
        one("networkPolicy.apiServerPorts", json!([]), "/networkPolicy/apiServerPorts"),
        one("networkPolicy.metricsFrom", json!([{"namespace": "a"}]), "'namespace' not allowed"),
    ]
}

/// The error names the value.
#[test]
fn wrong_values_and_unknown_names_are_refused() {
    for (settings, named) in wrong() {
        let complaint = template("confrev", &settings).refused();
        assert!(
            complaint.contains(named),
            "{settings:?} is refused, but the error lacks {named}: {complaint}"
        );
    }
}
