//! The nodes and the confrev that all tests of this suite share.

use std::env;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Nodes, wait_for};
use confrev_test_support::root;
use serde_json::Value;

use crate::world::expect;

/// The limit for anything that takes seconds on an idle machine. Containers start slowly on a busy one.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);
/// The label selector of confrev's pods.
pub(crate) const CONFREV: &str = "app.kubernetes.io/name=confrev";

/// The values of the chart.
pub(crate) const VALUES: [&str; 6] = [
    "namespace.create=true",
    "networkPolicy.enabled=true",
    "secrets.enabled=true",
    "orphanGrace=\"5s\"",
    "settle=\"1s\"",
    "outage=\"refuse\"",
];

/// Whether confrev and the nodes are as the tests expect them. A test that changes them holds the lock alone.
static READY: RwLock<bool> = RwLock::new(false);

/// While a test holds this, confrev and both nodes run, and no other test disturbs them.
pub(crate) struct Running(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, bool>);

/// While a test holds this, no other test runs. The next test repairs what this one leaves.
pub(crate) struct Exclusive(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, bool>);

/// Waits until no test holds confrev exclusively. confrev is ready then.
pub(crate) fn running() -> Running {
    loop {
        let ready = READY.read().unwrap_or_else(PoisonError::into_inner);
        if *ready {
            return Running(ready);
        }
        drop(ready);
        let mut ready = READY.write().unwrap_or_else(PoisonError::into_inner);
        if !*ready {
            set_up();
            *ready = true;
        }
    }
}

/// Waits until no other test runs. confrev is ready then.
pub(crate) fn exclusive() -> Exclusive {
    let mut ready = READY.write().unwrap_or_else(PoisonError::into_inner);
    if !*ready {
        set_up();
    }
    *ready = false;
    Exclusive(ready)
}

/// Starts the nodes if necessary, repairs them, and installs confrev from the chart.
fn set_up() {
    let nodes = Nodes::shared();
    nodes.repair();
    import();
    // confrev's own CA would have to replace the one of cert-manager, whose Secret has the same name.
    if cluster().get("secret", "confrev", "confrev-tls").is_some() {
        remove();
    }
    install();
}

/// Removes confrev's namespace, as `kubectl delete --filename` does.
pub(crate) fn remove() {
    let namespace = ["delete", "namespace", "confrev", "--ignore-not-found", "--timeout=180s"];
    cluster().kubectl(&namespace).run().ok();
}

/// Makes confrev's image available on the nodes, once.
fn import() {
    static IMPORTED: std::sync::Once = std::sync::Once::new();
    IMPORTED.call_once(|| Nodes::shared().import(&image()));
}

/// confrev's image, as `make image` writes it.
pub(crate) fn image() -> PathBuf {
    let folder = env::var_os("CONFREV_IMAGE").map_or_else(|| root().join("target/image"), PathBuf::from);
    folder.join("confrev.tar")
}

/// Installs the chart, and waits until it serves.
pub(crate) fn install() {
    cluster().install_chart(&VALUES);
    wait_serving(2);
}

pub(crate) fn cluster() -> &'static ControlPlane {
    ControlPlane::shared()
}

/// confrev's ready pods.
pub(crate) fn confrev_pods() -> Vec<Value> {
    cluster().ready_pods("confrev", CONFREV)
}

/// Waits until exactly this many of confrev's pods exist, all are ready, and the API server calls them.
#[track_caller]
pub(crate) fn wait_serving(count: usize) {
    let rollout = ["rollout", "status", "deployment/confrev", "--namespace=confrev", "--timeout=180s"];
    cluster().kubectl(&rollout).run().ok();
    wait_for("confrev's pods to be ready", LIMIT, || {
        expect(&confrev_pods().len(), &count)?;
        expect(&cluster().list("pods", "confrev", CONFREV).len(), &count)
    });
    wait_for("the API server to call confrev", LIMIT, || cluster().calls_confrev());
}

/// Scales confrev, and waits until so many pods serve, or none is left.
#[track_caller]
pub(crate) fn scale_confrev(replicas: usize) {
    let count = format!("--replicas={replicas}");
    cluster().kubectl(&["scale", "deployment/confrev", "--namespace=confrev", &count]).run().ok();
    if replicas > 0 {
        return wait_serving(replicas);
    }
    wait_for("confrev's pods to end", LIMIT, || {
        expect(&cluster().list("pods", "confrev", CONFREV).len(), &0)
    });
}
