//! cert-manager, running beside the control plane.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cluster::ControlPlane;
use crate::process::die_with_parent;
use crate::program::spawn;
use crate::recipe::{CERT_MANAGER, CERT_MANAGER_MANIFESTS};
use crate::suffix::suffix;
use crate::wait::wait_for;

const LIMIT: Duration = Duration::from_mins(1);

/// cert-manager's own controllers: those for self-signed issuers and CA issuers, and the injector of CAs into webhook
/// configurations. cert-manager's webhook does not run. Killed on drop.
#[derive(Debug)]
pub struct CertManager {
    child: Child,
    log: PathBuf,
}

impl CertManager {
    /// Applies the CustomResourceDefinitions and starts the controllers.
    ///
    /// # Panics
    /// If either fails.
    #[track_caller]
    pub fn start(cluster: &ControlPlane) -> Self {
        let definitions = cluster.bin(CERT_MANAGER_MANIFESTS).display().to_string();
        cluster.kubectl(&["apply", "--server-side", "--filename", &definitions]).run().ok();
        wait_for("cert-manager's kinds to be served", LIMIT, || {
            let (code, answer) = cluster.api().get("/apis/cert-manager.io/v1");
            let resources = answer["resources"].as_array().map_or(0, Vec::len);
            if code == 200 && resources > 0 { Ok(()) } else { Err(answer.to_string()) }
        });
        let log = cluster.state_dir().join(format!("cert-manager-{}.log", suffix()));
        let output = File::create(&log).expect("a log can be written");
        let errors = output.try_clone().expect("a file can be shared");
        let mut command = Command::new(cluster.bin(CERT_MANAGER));
        command.arg("--kubeconfig").arg(cluster.kubeconfig());
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        die_with_parent(&mut command);
        let child = spawn(command).unwrap_or_else(|e| panic!("cannot run cert-manager: {e}"));
        Self { child, log }
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for CertManager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("cert-manager's log:\n{}", self.log());
        }
    }
}
