//! The requests that a program sent to the API server, from the API server's audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use serde_json::{Value, json};

use crate::cluster::ControlPlane;

/// The audit log and its policy, in the state folder.
pub(crate) const LOG: &str = "audit.log";
pub(crate) const POLICY: &str = "audit-policy.json";

/// Only confrev's own requests, without bodies, which may contain Secrets.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:confrev"]},
            {"level": "None"},
        ],
    })
}

/// One request of a ServiceAccount in the namespace `confrev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the ServiceAccount, with its prefix.
    pub user: String,
    /// Such as `patch`.
    pub verb: String,
    /// The API group; empty for the core one.
    pub group: String,
    /// Such as `configmaps`.
    pub resource: String,
    /// Empty if the request names no namespace.
    pub namespace: String,
    /// Empty if the request names no object.
    pub name: String,
    /// Whether this is the entry for the end of a watch.
    pub ended: bool,
    /// The path and query.
    pub uri: String,
    /// Whether the API server's authorizer allowed it.
    pub allowed: bool,
}

impl ControlPlane {
    /// The requests for resources by ServiceAccounts of the namespace `confrev` so far, oldest first. A watch has one
    /// entry when it begins and one when it ends.
    ///
    /// # Panics
    /// On the user's own cluster: its audit log is not available.
    pub fn requests_of_confrev(&self) -> Vec<Request> {
        self.requests_of_confrev_from(&mut 0)
    }

    /// The same from a position in the log, which moves to the log's end.
    ///
    /// # Panics
    /// As [`requests_of_confrev`](Self::requests_of_confrev).
    pub fn requests_of_confrev_from(&self, place: &mut u64) -> Vec<Request> {
        let log = self.state_dir().join(LOG);
        let read_on = || {
            let mut file = File::open(&log)?;
            file.seek(SeekFrom::Start(*place))?;
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        };
        let text = read_on().unwrap_or_else(|e| panic!("no audit log {}: {e}", log.display()));
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        *place += whole.len() as u64;
        whole.lines().filter_map(|line| read(&serde_json::from_str(line).ok()?)).collect()
    }
}

fn read(event: &Value) -> Option<Request> {
    let object = &event["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(Request {
        user: text(&event["user"]["username"]),
        verb: text(&event["verb"]),
        group: text(&object["apiGroup"]),
        resource: Some(text(&object["resource"])).filter(|resource| !resource.is_empty())?,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        ended: event["verb"] == "watch" && event["stage"] == "ResponseComplete",
        uri: text(&event["requestURI"]),
        allowed: event["annotations"]["authorization.k8s.io/decision"] == "allow",
    })
}
