//! Kubeconfig files. They are written as JSON, which is YAML too.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::Result;
use crate::certs::Identity;

/// The credentials of a client.
#[derive(Debug, Clone)]
pub(crate) enum Credentials {
    Certificate(Identity),
    Token(String),
}

/// The content of a kubeconfig: the API server and how to connect to it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) url: String,
    /// The CA of the server's certificate, PEM.
    pub(crate) authority: String,
    pub(crate) credentials: Credentials,
}

impl Connection {
    /// Writes a kubeconfig that only this user may read.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let user = match &self.credentials {
            Credentials::Certificate(identity) => json!({
                "client-certificate-data": STANDARD.encode(&identity.certificate),
                "client-key-data": STANDARD.encode(&identity.key),
            }),
            Credentials::Token(token) => json!({ "token": token }),
        };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "controlplane", "cluster": {
                "server": self.url,
                "certificate-authority-data": STANDARD.encode(&self.authority),
            }}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "controlplane", "context": {"cluster": "controlplane", "user": "user"}}],
            "current-context": "controlplane",
        });
        write_private(path, &config.to_string())
    }

    /// Reads a kubeconfig in JSON with one cluster and one user, and with all data in the file itself.
    pub(crate) fn parse(config: &str) -> Result<Self> {
        let config: Value =
            serde_json::from_str(config).map_err(|e| format!("cannot read the kubeconfig: {e}"))?;
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let url = cluster["server"].as_str().ok_or("the kubeconfig names no server")?.trim_end_matches('/');
        let credentials = match user["token"].as_str() {
            Some(token) => Credentials::Token(token.to_owned()),
            None => Credentials::Certificate(Identity {
                certificate: decode(user, "client-certificate-data")?,
                key: decode(user, "client-key-data")?,
            }),
        };
        let authority = decode(cluster, "certificate-authority-data")?;
        Ok(Self { url: url.to_owned(), authority, credentials })
    }
}

/// Writes a file that only this user may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let problem = |e| format!("cannot write {}: {e}", path.display());
    let mut file = options.open(path).map_err(problem)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(problem)
}

fn decode(section: &Value, field: &str) -> Result<String> {
    let text = section[field].as_str().ok_or_else(|| {
        format!(
            "the kubeconfig has no {field}: the tests can use client certificates and tokens that are in it"
        )
    })?;
    let bytes = STANDARD.decode(text).map_err(|e| format!("{field} of the kubeconfig: {e}"))?;
    String::from_utf8(bytes).map_err(|e| format!("{field} of the kubeconfig: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_survives_write_and_read() {
        let path = std::env::temp_dir().join(format!("confrev-kubeconfig-{}", std::process::id()));
        let identity = Identity { certificate: "certificate".into(), key: "key".into() };
        let connection = Connection {
            url: "https://127.0.0.1:1".into(),
            authority: "authority".into(),
            credentials: Credentials::Certificate(identity),
        };
        connection.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();

        let read = Connection::parse(&text).unwrap();
        assert_eq!(format!("{read:?}"), format!("{connection:?}"));
    }

    #[test]
    fn rejects_kubeconfig_without_credentials() {
        let config =
            json!({"clusters": [{"cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"user": {}}]});
        let refusal = Connection::parse(&config.to_string()).unwrap_err();
        assert!(refusal.contains("client-certificate-data"), "{refusal}");
    }
}
