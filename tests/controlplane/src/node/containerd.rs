//! The configuration of containerd and of its network plugins.

use std::path::Path;

use serde_json::{Value, json};

use crate::node::image::PAUSE;
use crate::node::network::POD_RANGES;

/// containerd's socket in the folder of a node.
pub(crate) const SOCKET: &str = "containerd.sock";
/// The folder of network configurations in the folder of a node.
pub(crate) const NETWORKS: &str = "networks";

/// containerd's configuration. `folder` is the node's, `binaries` contains runc and the network plugins.
pub(crate) fn config(folder: &Path, binaries: &Path) -> String {
    let (folder, binaries) = (folder.display(), binaries.display());
    format!(
        r#"version = 3
root = "{folder}/containerd"
state = "{folder}/state"

[grpc]
address = "{folder}/{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
# Root may lack CAP_SYS_RESOURCE, without which no process gets a lower score.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{binaries}"]
conf_dir = "{folder}/{NETWORKS}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{binaries}/runc"
SystemdCgroup = false
"#
    )
}

/// The network of a node's pods. Each pod has a link of its own to the node, so that all traffic of pods passes the rules
/// of kube-proxy; on a bridge, traffic between pods would not.
pub(crate) fn network(node: usize, folder: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_RANGES[node]}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": folder.join("addresses"),
            },
        }],
    })
}
