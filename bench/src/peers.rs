//! Other controllers that roll workloads when a ConfigMap changes, measured in the same run if their commands are
//! given.
//!
//! `BENCH_WAVE` and `BENCH_RELOADER` each contain a path and options, separated by spaces. A peer runs as the
//! administrator, with `KUBECONFIG`, and only while it is measured.

use std::env;
use std::fs::File;
use std::process::{Child, Command, Stdio};

use crate::environment::{Environment, PEERS};

/// A controller to compare with.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The namespace of its workloads, which both webhooks exclude.
    pub(crate) namespace: &'static str,
    /// The annotation that makes the peer roll a workload.
    pub(crate) annotation: &'static str,
    command: Vec<String>,
}

/// The peers whose commands are given.
pub(crate) fn given() -> Vec<Peer> {
    let known = [
        ("Wave", PEERS[0], "wave.pusher.com/update-on-config-change", "BENCH_WAVE"),
        ("Reloader", PEERS[1], "reloader.stakater.com/auto", "BENCH_RELOADER"),
    ];
    let peer = |(name, namespace, annotation, variable)| {
        let command: Vec<_> = env::var(variable).ok()?.split_whitespace().map(str::to_owned).collect();
        (!command.is_empty()).then_some(Peer { name, namespace, annotation, command })
    };
    known.into_iter().filter_map(peer).collect()
}

/// A running peer. It is killed on drop.
pub(crate) struct Running(Child);

impl Peer {
    /// Starts the peer. Its output goes to a file in the control plane's folder.
    pub(crate) fn start(&self, env: &Environment) -> Running {
        let kubeconfig = env.cluster.kubeconfig();
        let log = kubeconfig.with_file_name(format!("{}.log", self.namespace));
        let output = File::create(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let copy = output.try_clone().expect("a second handle");
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
        let child = command.stdout(output).stderr(copy).spawn();
        Running(child.unwrap_or_else(|error| panic!("{}: {error}", self.command[0])))
    }
}

impl Running {
    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
