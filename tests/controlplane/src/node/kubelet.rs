//! The configuration of the kubelet, of kube-proxy and of CoreDNS.

use std::path::Path;

use serde_json::{Value, json};

use crate::node::containerd::SOCKET;
use crate::node::network::{ADDRESSES, ALL_PODS, NAMES};

/// The kubelet's configuration. `folder` is the node's, `state` that of the control plane, `groups` the name of the top
/// control group.
pub(crate) fn kubelet(node: usize, folder: &Path, state: &Path, groups: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESSES[node].to_string(),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": state.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{}", folder.join(SOCKET).display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{groups}/{}", NAMES[node]),
        "failCgroupV1": false,
        "failSwapOn": false,
        "podLogsDir": folder.join("logs"),
        "volumePluginDir": folder.join("volume-plugins"),
        "resolvConf": "",
        "clusterDomain": DOMAIN,
        // CoreDNS runs beside the control plane.
        "clusterDNS": [ADDRESSES[0].to_string()],
        "makeIPTablesUtilChains": false,
        // A test waits for the second time that the kubelet syncs a pod.
        "syncFrequency": "2s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        // A container that waits for its ConfigMap or fails its first start is tried again soon.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        // A full disk of this machine must not fail the tests.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    })
}

/// The domain of the names of Services.
const DOMAIN: &str = "cluster.local";

/// CoreDNS' configuration: it knows the names of Services only.
pub(crate) fn names(kubeconfig: &Path) -> String {
    let (address, kubeconfig) = (ADDRESSES[0], kubeconfig.display());
    format!(
        ".:53 {{\n  bind {address}\n  errors\n  cache 5\n  kubernetes {DOMAIN} {{\n    kubeconfig {kubeconfig}\n  }}\n}}\n"
    )
}

/// How long a node counts as alive after it renewed its lease, which it does four times in this time.
const LEASE_SECONDS: u32 = 12;

/// kube-proxy's configuration.
pub(crate) fn proxy(node: usize, state: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NAMES[node],
        "clusterCIDR": ALL_PODS,
        "clientConnection": {"kubeconfig": state.join("kube-proxy.kubeconfig")},
        // The limits of connections belong to the machine.
        "conntrack": {"maxPerCore": 0},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nftables": {"minSyncPeriod": "100ms"},
    })
}
