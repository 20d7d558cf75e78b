//! The state folder of one control plane.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Result;
use crate::certs::{Authority, Identity};
use crate::kubeconfig::{Connection, Credentials, write_private};
use crate::site::Site;

/// The environment variable that names the state folder of a running control plane.
pub(crate) const STATE_VARIABLE: &str = "CONFREV_CONTROL_PLANE";

/// The start of the name of a control plane's folder.
pub(crate) const PREFIX: &str = "confrev-controlplane";

/// The file in a state folder that its owner keeps locked: a folder without an owner may be removed.
const LOCK: &str = "lock";

/// A new folder below the system's temporary folder, which only this user may access. It is removed on drop, unless
/// `CONFREV_KEEP=1`. If its owner was killed, the next process that creates one removes it.
#[derive(Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    left: bool,
    _lock: File,
}

impl StateFolder {
    /// Creates a folder whose name begins with `prefix`.
    pub(crate) fn create(prefix: &str) -> Result<Self> {
        let above = env::temp_dir();
        remove_abandoned(&above, prefix);
        let path = above.join(format!("{prefix}-{}", crate::suffix::suffix()));
        let problem = |e| format!("cannot create {}: {e}", path.display());
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(problem)?;
        // The lock file gets its name only once it is locked: an unlocked one would look abandoned.
        let (hidden, shown) = (path.join(".lock"), path.join(LOCK));
        let lock = File::create(&hidden).map_err(problem)?;
        lock.lock().map_err(problem)?;
        fs::rename(&hidden, &shown).map_err(problem)?;
        Ok(Self { path, left: false, _lock: lock })
    }

    /// Leaves the folder to the next process that removes abandoned ones.
    pub(crate) fn leave(&mut self) {
        self.left = true;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.path.join(format!("{component}.log"))
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        if env::var_os("CONFREV_KEEP").is_some_and(|keep| keep == "1") {
            let _ = fs::remove_file(self.path.join(LOCK));
            eprintln!("controlplane: kept {}", self.path.display());
        } else if !self.left {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes the folders of killed processes.
pub(crate) fn remove_abandoned(above: &Path, prefix: &str) {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        if File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The facts that others need about a running control plane. Stored as `controlplane.json` in the state folder.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) state: PathBuf,
    pub(crate) binaries: PathBuf,
    pub(crate) url: String,
}

impl Facts {
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.state.join("admin.kubeconfig")
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.state.join("ca.crt")
    }

    pub(crate) fn authority_key(&self) -> PathBuf {
        self.state.join("ca.key")
    }

    /// The facts as one line of JSON.
    pub(crate) fn to_json(&self) -> String {
        json!({
            "stateDir": self.state,
            "binDir": self.binaries,
            "apiUrl": self.url,
            "kubeconfig": self.kubeconfig(),
            "caCert": self.authority(),
        })
        .to_string()
    }

    pub(crate) fn save(&self) -> Result<()> {
        write_private(&self.state.join("controlplane.json"), &self.to_json())
    }

    pub(crate) fn load(state: &Path) -> Result<Self> {
        let file = state.join("controlplane.json");
        let text = fs::read_to_string(&file)
            .map_err(|e| format!("no control plane runs in {} ({STATE_VARIABLE}): {e}", state.display()))?;
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let facts: Value =
            serde_json::from_str(text).map_err(|e| format!("not a control plane's facts: {e}"))?;
        let field = |name: &str| facts[name].as_str().ok_or_else(|| format!("no {name} in {facts}"));
        Ok(Self {
            state: field("stateDir")?.into(),
            binaries: field("binDir")?.into(),
            url: field("apiUrl")?.to_owned(),
        })
    }
}

/// The clients with a kubeconfig of their own: the file's name, the user and the groups.
///
/// As in a real cluster, the controllers are not administrators. Argo's controller has the name and role of its service
/// account.
const CLIENTS: &[(&str, &str, &[&str])] = &[
    ("admin", "kubernetes-admin", &["system:masters"]),
    ("kube-controller-manager", "system:kube-controller-manager", &[]),
    ("kube-scheduler", "system:kube-scheduler", &[]),
    ("kwok", "kwok", &["system:masters"]),
    (
        "argo-rollouts",
        "system:serviceaccount:argo-rollouts:argo-rollouts",
        &["system:serviceaccounts", "system:serviceaccounts:argo-rollouts"],
    ),
];

/// The clients on nodes.
const NODE_CLIENTS: &[(&str, &str, &[&str])] = &[
    ("node-1", "system:node:node-1", &["system:nodes"]),
    ("node-2", "system:node:node-2", &["system:nodes"]),
    ("kube-proxy", "system:kube-proxy", &[]),
];

/// Writes all certificates, keys and kubeconfigs into the state folder.
pub(crate) fn write_identities(facts: &Facts, site: Site) -> Result<()> {
    let (authority, own) = Authority::create()?;
    let in_state = |name: &str| facts.state.join(name);
    let save = |name: &str, identity: &Identity| {
        write_private(&in_state(&format!("{name}.crt")), &identity.certificate)?;
        write_private(&in_state(&format!("{name}.key")), &identity.key)
    };
    save("ca", &own)?;
    save("server", &authority.server(site)?)?;
    let mut clients = CLIENTS.to_vec();
    if site == Site::Network {
        save("kubelet-client", &authority.client("kube-apiserver-kubelet-client", &["system:masters"])?)?;
        clients.extend_from_slice(NODE_CLIENTS);
    }
    let accounts = crate::certs::generate_key()?;
    write_private(&in_state("service-accounts.key"), &accounts.serialize_pem())?;
    write_private(&in_state("service-accounts.pub"), &accounts.public_key_pem())?;
    for (file, user, groups) in clients {
        let connection = Connection {
            url: facts.url.clone(),
            authority: own.certificate.clone(),
            credentials: Credentials::Certificate(authority.client(user, groups)?),
        };
        connection.write(&in_state(&format!("{file}.kubeconfig")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next process removes an abandoned folder.
    #[test]
    fn state_folder_is_removed_with_its_owner() {
        let prefix = format!("confrev-folder-{}", std::process::id());
        let owned = StateFolder::create(&prefix).unwrap();
        let abandoned = env::temp_dir().join(format!("{prefix}-abandoned"));
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();

        let next = StateFolder::create(&prefix).unwrap();
        assert!(owned.path().exists() && next.path().exists());
        assert!(!abandoned.exists());

        let path = owned.path().to_owned();
        drop(owned);
        assert!(!path.exists());
    }
}
