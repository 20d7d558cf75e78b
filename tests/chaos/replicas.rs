//! Two replicas of confrev, what the kubelet does for them, the Service before them, and the proxy behind them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Program, wait_for};

use crate::link::Link;
use crate::proxy::Proxy;

/// How long they may take to be ready after everything else is well again. A new leader waits for the end of a Lease.
const LIMIT: Duration = Duration::from_mins(2);

pub(crate) struct Replicas {
    pub(crate) programs: Vec<Program>,
    pub(crate) service: Arc<Link>,
    pub(crate) proxy: Arc<Proxy>,
    /// How often one ended that nobody had ended.
    pub(crate) crashes: usize,
}

impl Replicas {
    /// Installs confrev and starts it twice, both behind one address.
    pub(crate) fn start(cluster: &'static ControlPlane) -> Self {
        // It runs beside the control plane, not in pods.
        cluster.install_chart(&["replicas=0", "namespace.create=true", "secrets.enabled=true"]);
        let (code, answer) =
            cluster.api().post("/api/v1/namespaces/confrev/secrets", &crate::kind::key_secret());
        assert_eq!(code, 201, "the key of digests: {answer}");
        let built = || PathBuf::from(env!("CARGO_BIN_EXE_confrev"));
        let binary = std::env::var_os("CONFREV_BIN").map_or_else(built, PathBuf::from);
        let service = Arc::new(Link::start());
        let proxy = Arc::new(Proxy::start(cluster));
        let kubeconfig = proxy.kubeconfig(&cluster.kubeconfig_for_service_account("confrev", "confrev"));
        let programs = (0..2)
            .map(|_| {
                let program = Program::new(cluster, &binary).as_user(&kubeconfig);
                program.behind(&service.url()).options(&["--orphan-grace=5s", "--secrets"])
            })
            .collect();
        let mut replicas = Self { programs, service, proxy, crashes: 0 };
        // The first one waits until the API server calls.
        replicas.service.set_backends(vec![replicas.programs[0].port()]);
        replicas.programs[0].start();
        replicas.heal();
        replicas
    }

    /// Who leads; the first one where that cannot be told.
    pub(crate) fn leader(&self) -> usize {
        self.programs.iter().position(Program::leads).unwrap_or(0)
    }

    /// As the kubelet does: starts again what has ended by itself, and has the Service know who is ready.
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

    /// Tends them for so long, which is how long a fault lasts.
    pub(crate) fn tend_for(&mut self, time: Duration) {
        let start = std::time::Instant::now();
        while start.elapsed() < time {
            self.tend();
            std::thread::sleep(Duration::from_millis(200).min(time.saturating_sub(start.elapsed())));
        }
    }

    /// Starts what does not run, and waits until both are ready and one leads.
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
