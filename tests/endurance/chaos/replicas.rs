//! Two replicas of confrev, their Service and the proxy to the API server. It also does the work of the kubelet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Program, wait_for};

use crate::link::Link;
use crate::proxy::Proxy;

/// Time limit until both are ready after everything else has recovered. A new leader waits for the Lease to expire.
const LIMIT: Duration = Duration::from_mins(2);

pub(crate) struct Replicas {
    pub(crate) programs: Vec<Program>,
    pub(crate) service: Arc<Link>,
    pub(crate) proxy: Arc<Proxy>,
    /// The way of each replica to the proxy.
    pub(crate) uplinks: Vec<Link>,
    /// How often a replica ended by itself.
    pub(crate) crashes: usize,
}

impl Replicas {
    /// Installs confrev and starts two replicas behind one address.
    pub(crate) fn start(cluster: &'static ControlPlane) -> Self {
        // The replicas run beside the control plane, not in pods.
        let outage = std::env::var("CONFREV_CHAOS_OUTAGE").unwrap_or_else(|_| "refuse".to_owned());
        let outage = format!("outage=\"{outage}\"");
        cluster.install_chart(&["replicas=0", "namespace.create=true", "secrets.enabled=true", &outage]);
        let (code, answer) =
            cluster.api().post("/api/v1/namespaces/confrev/secrets", &crate::kind::key_secret());
        assert_eq!(code, 201, "the key of digests: {answer}");
        let built = || PathBuf::from(env!("CARGO_BIN_EXE_confrev"));
        let binary = std::env::var_os("CONFREV_BIN").map_or_else(built, PathBuf::from);
        let service = Arc::new(Link::start());
        let proxy = Arc::new(Proxy::start(cluster));
        let account = cluster.kubeconfig_for_service_account("confrev", "confrev");
        let uplinks: Vec<_> = (0..2).map(|_| Link::start()).collect();
        let programs = uplinks
            .iter()
            .map(|uplink| {
                uplink.set_backends(vec![proxy.port()]);
                let kubeconfig = Proxy::kubeconfig(&account, uplink.port());
                let program = Program::new(cluster, &binary).as_user(&kubeconfig);
                program.behind(&service.url()).options(&["--orphan-grace=5s", "--secrets"])
            })
            .collect();
        let mut replicas = Self { programs, service, proxy, uplinks, crashes: 0 };
        // The first replica waits for a call of the API server.
        replicas.service.set_backends(vec![replicas.programs[0].port()]);
        replicas.programs[0].start();
        replicas.heal();
        replicas
    }

    /// The index of the leader; 0 if unknown.
    pub(crate) fn leader(&self) -> usize {
        self.programs.iter().position(Program::leads).unwrap_or(0)
    }

    /// Like the kubelet: restarts replicas that ended by themselves, and updates the Service with the ready replicas.
    pub(crate) fn tend(&mut self) {
        for program in &mut self.programs {
            if program.is_started() && !program.is_running() {
                self.crashes += 1;
                program.kill();
                program.launch(&[]);
            }
        }
        let ready = self.programs.iter().filter(|program| program.is_started() && program.is_ready());
        self.service.set_backends(ready.map(Program::port).collect());
    }

    /// Tends the replicas for the duration of a fault.
    pub(crate) fn tend_for(&mut self, time: Duration) {
        let start = std::time::Instant::now();
        while start.elapsed() < time {
            self.tend();
            std::thread::sleep(Duration::from_millis(200).min(time.saturating_sub(start.elapsed())));
        }
    }

    /// Starts the replicas that do not run, and waits until both are ready and one leads.
    pub(crate) fn heal(&mut self) {
        for program in &mut self.programs {
            if program.is_started() {
                program.resume();
            } else {
                program.launch(&[]);
            }
        }
        wait_for("both replicas to be ready, and one to lead", LIMIT, || {
            self.tend();
            let ready = self.programs.iter().filter(|program| program.is_ready()).count();
            let leaders = self.programs.iter().filter(|program| program.leads()).count();
            if (ready, leaders) == (2, 1) { Ok(()) } else { Err(format!("{ready} ready, {leaders} lead")) }
        });
    }
}
