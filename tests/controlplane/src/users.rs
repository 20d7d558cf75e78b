//! Kubeconfigs for users other than the administrator.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process};

use serde_json::json;

use crate::api::Api;
use crate::certs::Authority;
use crate::cluster::ControlPlane;
use crate::kubeconfig::{Connection, Credentials};
use crate::{Result, resources};

/// The longest duration of a test run, in seconds: the tokens expire then.
const TOKEN_SECONDS: u32 = 24 * 60 * 60;

impl ControlPlane {
    /// A new kubeconfig for a service account, with a token of the TokenRequest API that is valid for a day.
    ///
    /// # Panics
    /// If the service account does not exist.
    pub fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let path = format!("{}/{name}/token", resources::path("serviceaccounts", namespace));
        let request = json!({"spec": {"expirationSeconds": TOKEN_SECONDS}});
        let (code, answer) = self.api().post(&path, &request);
        let token = answer["status"]["token"].as_str();
        let token = token.unwrap_or_else(|| panic!("no token for {namespace}/{name}: {code} {answer}"));
        self.kubeconfig_with(name, Credentials::Token(token.to_owned()))
            .expect("the state folder can be written")
    }

    /// A new kubeconfig for a user in at most two groups (in addition to `system:authenticated`), with a client certificate.
    ///
    /// # Errors
    /// On the user's own cluster: the key of its CA is not available.
    pub fn kubeconfig_for_user(&self, name: &str, groups: &[&str]) -> Result<PathBuf> {
        let key =
            self.authority_key().ok_or("only a cluster that these tests have started signs certificates")?;
        let key = fs::read_to_string(&key).map_err(|e| format!("cannot read {}: {e}", key.display()))?;
        let identity = Authority::load(&key)?.client(name, groups)?;
        self.kubeconfig_with(name, Credentials::Certificate(identity))
    }

    /// A client with the identity of a kubeconfig that one of the methods above wrote.
    ///
    /// # Panics
    /// If the file cannot be used.
    pub fn api_as(&self, kubeconfig: &std::path::Path) -> Api {
        let text = fs::read_to_string(kubeconfig).expect("the kubeconfig can be read");
        Connection::parse(&text)
            .and_then(|connection| Api::new(&connection))
            .expect("the kubeconfig can be used")
    }

    fn kubeconfig_with(&self, name: &str, credentials: Credentials) -> Result<PathBuf> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // With the process id, since several test programs may share the state folder.
        let path = self.state_dir().join(format!("{plain}-{}-{number}.kubeconfig", process::id()));
        let authority = self.ca_pem().to_owned();
        Connection { url: self.api_url().to_owned(), authority, credentials }.write(&path)?;
        Ok(path)
    }
}
