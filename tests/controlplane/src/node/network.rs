//! The network of the nodes: the control plane and the first node share a network namespace, the second node has its own.
//! A pair of connected interfaces joins the two. No other interface exists, so nothing leaves them.

use std::net::Ipv4Addr;
use std::process::Command;

use crate::Result;

/// The names of the nodes.
pub(crate) const NAMES: [&str; 2] = ["node-1", "node-2"];
/// The addresses of the nodes. The control plane has that of the first one.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
/// The addresses of each node's pods.
pub(crate) const POD_RANGES: [&str; 2] = ["10.244.1.0/24", "10.244.2.0/24"];
/// The addresses of all pods.
pub(crate) const ALL_PODS: &str = "10.244.0.0/16";
/// The addresses of Services.
pub(crate) const SERVICES: &str = "10.0.0.0/16";
/// The first address of Services, which is that of the API server's own Service.
pub(crate) const FIRST_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The network namespace of the second node.
const SECOND: &str = "/run/netns/node-2";

/// Joins the nodes. An interface has the name of the node that it leads to.
///
/// Without a default route, the kubelet finds no address, and pods cannot reach Services.
const SET_UP: &str = r"
ip link set lo up
ip netns add node-2
ip link add node-2 type veth peer name node-1 netns node-2
ip address add 10.99.0.1/24 dev node-2
ip link set node-2 up
ip route add default dev node-2
ip route add 10.244.2.0/24 via 10.99.0.2
echo 1 > /proc/sys/net/ipv4/ip_forward
nsenter --net=/run/netns/node-2 sh -euc '
ip link set lo up
ip address add 10.99.0.2/24 dev node-1
ip link set node-1 up
ip route add default dev node-1
ip route add 10.244.1.0/24 via 10.99.0.1
echo 1 > /proc/sys/net/ipv4/ip_forward'
";

/// Sets up the network in the network namespace of this process, which must be new.
pub(crate) fn set_up() -> Result<()> {
    shell(SET_UP, "set up the network of the nodes")
}

/// Connects or disconnects a node: a lost node does not even refuse connections.
pub(crate) fn connect(node: usize, connected: bool) -> Result<()> {
    let (other, state) = (NAMES[1 - node], if connected { "up" } else { "down" });
    // The route to the pods of the other node is lost with the interface.
    let routes = format!(
        "ip route replace default dev {other}; ip route replace {} via {}",
        POD_RANGES[1 - node],
        ADDRESSES[1 - node]
    );
    let enter = entry(node).join(" ");
    let script = if connected {
        format!("{enter} sh -euc 'ip link set {other} up; {routes}'")
    } else {
        format!("{enter} ip link set {other} {state}")
    };
    shell(&script, "change the network of a node")
}

/// The words before a command that runs it in the network namespace of a node.
pub(crate) fn entry(node: usize) -> Vec<String> {
    if node == 0 { Vec::new() } else { vec!["nsenter".to_owned(), format!("--net={SECOND}")] }
}

/// Runs a script; `what` is for the error.
pub(crate) fn shell(script: &str, what: &str) -> Result<()> {
    let output = Command::new("sh").args(["-euc", script]).output();
    let output = output.map_err(|e| format!("cannot {what}: cannot run sh: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("cannot {what}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
