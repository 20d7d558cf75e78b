//! Certificates.

use serde_json::{Value, json};

use super::{CERTIFICATE, DEPLOYMENT, ROLE, Row, WEBHOOKS, row, with};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const PEM_BASE64: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn rows() -> Vec<Row> {
    let mode = |mode, object, at, becomes| row("certificates.mode", json!(mode), object, at, becomes);
    let cert_manager = [("certificates.mode", json!("cert-manager"))];
    let secret = [("certificates.mode", json!("secret")), ("certificates.secret.name", json!("pair"))];
    let issuer = json!({"name": "vault", "kind": "ClusterIssuer"});
    let clients = |kind: &'static str, at, becomes| row(kind, json!("clients"), DEPLOYMENT, at, becomes);
    let only_ca = json!([{"key": "ca.crt", "path": "ca.crt"}]);
    vec![
        clients(
            "certificates.clientCA.configMap",
            "/spec/template/spec/containers/0/args/3",
            json!("--client-ca=/client-ca/ca.crt"),
        ),
        clients(
            "certificates.clientCA.configMap",
            "/spec/template/spec/volumes/0/configMap",
            json!({"name": "clients", "items": only_ca}),
        ),
        clients(
            "certificates.clientCA.secret",
            "/spec/template/spec/volumes/0/secret",
            json!({"secretName": "clients", "items": only_ca}),
        ),
        with(
            clients(
                "certificates.clientCA.secret",
                "/spec/template/spec/containers/0/volumeMounts/1/mountPath",
                json!("/client-ca"),
            ),
            &secret,
        ),
        with(
            row(
                "certificates.clientNames",
                json!(["kube apiserver", "api.example"]),
                DEPLOYMENT,
                "/spec/template/spec/containers/0/args/4",
                json!("--client-name=kube apiserver"),
            ),
            &[("certificates.clientCA.configMap", json!("clients"))],
        ),
        with(
            row(
                "certificates.recordUsers",
                json!(true),
                DEPLOYMENT,
                "/spec/template/spec/containers/0/args/4",
                json!("--record-users"),
            ),
            &[("certificates.clientCA.secret", json!("clients"))],
        ),
        mode("cert-manager", CERTIFICATE, "/spec/issuerRef/name", json!("confrev-ca")),
        mode("cert-manager", "Issuer/confrev-root", "/spec", json!({"selfSigned": {}})),
        mode("cert-manager", DEPLOYMENT, "/spec/template/spec/containers/0/args/1", json!("--tls-dir=/tls")),
        mode(
            "cert-manager",
            DEPLOYMENT,
            "/spec/template/spec/volumes/0/secret/secretName",
            json!("confrev-tls"),
        ),
        mode("cert-manager", ROLE, "/rules/9/verbs", json!(["get", "list", "watch"])),
        mode("cert-manager", "Role/confrev", "/rules/2", Value::Null),
        mode(
            "cert-manager",
            WEBHOOKS,
            "/metadata/annotations",
            json!({"cert-manager.io/inject-ca-from": "confrev/confrev-tls"}),
        ),
        with(
            row(
                "certificates.certManager.issuerRef",
                issuer,
                CERTIFICATE,
                "/spec/issuerRef",
                json!({"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "vault"}),
            ),
            &cert_manager,
        ),
        with(
            row(
                "certificates.secret.name",
                json!("pair"),
                DEPLOYMENT,
                "/spec/template/spec/volumes/0/secret/secretName",
                json!("pair"),
            ),
            &secret,
        ),
        // confrev has nothing to write in the webhook configurations.
        with(
            row(
                "certificates.secret.caBundle",
                json!(PEM),
                ROLE,
                "/rules/9/verbs",
                json!(["get", "list", "watch"]),
            ),
            &secret,
        ),
        with(
            row(
                "certificates.secret.caBundle",
                json!(PEM),
                WEBHOOKS,
                "/webhooks/1/clientConfig/caBundle",
                json!(PEM_BASE64),
            ),
            &secret,
        ),
    ]
}
