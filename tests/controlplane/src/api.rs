//! A minimal blocking client of the API server: a request takes a millisecond; with kubectl it takes a tenth of a
//! second.

use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::Result;
use crate::kubeconfig::{Connection, Credentials};

/// The time limit of a request; the API server's own limit is 60 s.
const LIMIT: Duration = Duration::from_secs(70);

/// A client with one identity. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
    limit: Duration,
}

impl Api {
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        let authority = certificate(&connection.authority)?;
        let (client, token) = match &connection.credentials {
            Credentials::Token(token) => (None, Some(token.clone())),
            Credentials::Certificate(identity) => {
                let key = PrivateKey::from_pem(identity.key.as_bytes())
                    .map_err(|e| format!("the client's key: {e}"))?;
                (Some(ClientCert::new_with_certs(&[certificate(&identity.certificate)?], key)), None)
            }
        };
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&[authority]))
            .client_cert(client)
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .proxy(None)
            .build();
        Ok(Self { agent: config.new_agent(), url: connection.url.clone(), token, limit: LIMIT })
    }

    /// The same client for another server whose certificate is from the same CA.
    #[must_use]
    pub fn at(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    /// The same client with another time limit for answers.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    /// GET: the status code and the answer, whatever the code. Like all methods, it panics if the server cannot be
    /// reached. An answer that is not JSON is returned as a string.
    pub fn get(&self, path: &str) -> (u16, Value) {
        self.request(&Method::GET, path)
    }

    /// POST of a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request_with(&Method::POST, path, "application/json", body)
    }

    /// PUT of a JSON body.
    pub fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request_with(&Method::PUT, path, "application/json", body)
    }

    /// PATCH with the given content type, such as `application/merge-patch+json`.
    pub fn patch(&self, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        self.request_with(&Method::PATCH, path, content_type, body)
    }

    /// DELETE. Options are part of the query, such as `?propagationPolicy=Orphan`.
    pub fn delete(&self, path: &str) -> (u16, Value) {
        self.request(&Method::DELETE, path)
    }

    fn request(&self, method: &Method, path: &str) -> (u16, Value) {
        self.send(method, path, None).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn request_with(&self, method: &Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        self.send(method, path, Some((content_type, body))).unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// One request, with the body and its content type; an error if no answer comes.
    pub fn send(&self, method: &Method, path: &str, body: Option<(&str, &Value)>) -> Result<(u16, Value)> {
        let problem = |e: &dyn std::fmt::Display| format!("{method} {path}: {e}");
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = match body {
            None => {
                let request = self.agent.configure_request(request.body(()).map_err(|e| problem(&e))?);
                self.agent.run(request.timeout_global(Some(self.limit)).build())
            }
            Some((content_type, body)) => {
                let request = request.header("Content-Type", content_type).body(body.to_string());
                let request = self.agent.configure_request(request.map_err(|e| problem(&e))?);
                self.agent.run(request.timeout_global(Some(self.limit)).build())
            }
        };
        let mut answer = answer.map_err(|e| problem(&e))?;
        let code = answer.status().as_u16();
        let text =
            answer.body_mut().with_config().limit(1 << 30).read_to_string().map_err(|e| problem(&e))?;
        Ok((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}

fn certificate(pem: &str) -> Result<Certificate<'static>> {
    Certificate::from_pem(pem.as_bytes()).map_err(|e| format!("a certificate cannot be read: {e}"))
}
