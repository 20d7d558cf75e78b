//! The chart's NetworkPolicy, which kube-router enforces on both nodes.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use confrev_controlplane::{Nodes, own_chart, wait_for};
use serde_json::{Value, json};

use crate::confrev_pods::processes;
use crate::shared::{LIMIT, VALUES, cluster, confrev_pods, exclusive, wait_serving};
use crate::world::{World, expect, text};
use crate::writer::Writer;

/// confrev's ports, and that of the Service of the API server.
const WEBHOOK: u16 = 8443;
const ADMIN: u16 = 8080;
const API: (&str, u16) = ("10.0.0.1", 443);
/// How long a connection may take before it counts as refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Both replicas are on the node without the control plane: connections of a node to its own pods are always allowed.
const ON_OTHER_NODE: &str = r#"nodeSelector={"kubernetes.io/hostname": "node-2"}"#;
/// The API server's address may call the webhooks, pods with a label may read metrics, and confrev may call the API server.
const NARROW: [&str; 3] = [
    r#"networkPolicy.apiServerCIDRs=["10.99.0.1/32"]"#,
    r#"networkPolicy.apiServerTo=[{"ipBlock": {"cidr": "10.99.0.1/32"}}]"#,
    r#"networkPolicy.metricsFrom=[{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "scraper"}}}]"#,
];
/// Another address than the API server's.
const WRONG: &str = r#"networkPolicy.apiServerCIDRs=["192.0.2.1/32"]"#;

/// Starts a pod on a node that serves on the same port as confrev's metrics.
fn start_pod(world: &World, app: &str, node: &str) -> Value {
    let name = format!("{app}-{node}");
    let command = ["/bin/httpd", "-f", "-p", "8080", "-h", "/tmp"];
    let container = json!({"name": "app", "image": Nodes::SHELL, "command": command});
    let spec = json!({"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]});
    let metadata = json!({"name": name, "labels": {"app": app}});
    world.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).ok();
    wait_for(&format!("the pod {name} to be ready"), LIMIT, || {
        let ready = cluster().ready_pods(world.name(), &format!("app={app}"));
        ready.into_iter().find(|pod| pod["metadata"]["name"] == name)
    })
}

fn address(pod: &Value) -> String {
    text(&pod["status"]["podIP"])
}

/// A command that succeeds if it can connect.
fn probe(address: &str, port: u16) -> [String; 7] {
    let (patience, port) = (PATIENCE.as_secs().to_string(), port.to_string());
    ["nc", "-w", &patience, address, &port, "-e", "/bin/true"].map(str::to_owned)
}

/// Whether a pod can connect.
#[track_caller]
fn pod_connects(world: &World, pod: &Value, address: &str, port: u16) -> bool {
    let name = text(&pod["metadata"]["name"]);
    let exec = cluster().kubectl(&["exec", "--namespace", world.name(), &name, "--"]);
    let output = probe(address, port).iter().fold(exec, |exec, word| exec.arg(word)).run();
    let failed = output.stderr.contains("command terminated with exit code");
    assert!(output.status.success() || failed, "{output}");
    output.status.success()
}

/// The number of replicas to which the API server's machine can connect.
fn reached_by_api_server() -> usize {
    let connects = |pod: &&Value| {
        let socket = format!("{}:{WEBHOOK}", address(pod)).parse::<SocketAddr>().expect("an address");
        TcpStream::connect_timeout(&socket, PATIENCE).is_ok()
    };
    confrev_pods().iter().filter(connects).count()
}

/// How many of confrev's containers can connect.
fn replicas_that_reach(address: &str, port: u16) -> usize {
    let connects = |process: &&PathBuf| {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net={}", process.join("ns/net").display())).arg("busybox");
        nsenter.args(probe(address, port)).output().expect("nsenter can be run").status.success()
    };
    processes().iter().filter(|process| connects(process)).count()
}

/// Applies the chart with these values beside those of all stories.
fn change(values: &[&str]) {
    let values: Vec<_> = VALUES.iter().chain(&[ON_OTHER_NODE]).chain(values).copied().collect();
    cluster().upgrade_chart(&own_chart(), &values);
}

/// A pod that the policy does not allow reaches no port of confrev, whatever its node. The API server reaches the webhooks, and
/// confrev reaches nothing but the API server.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn network_policy_closes_ports_to_others() {
    let _alone = exclusive();
    if let Some(reason) = Nodes::shared().without_policies() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let world = World::new("network");
    let scraper = start_pod(&world, "scraper", "node-1");
    let strangers = Nodes::NAMES.map(|node| start_pod(&world, "stranger", node));
    change(&[]);
    wait_serving(2);
    wait_for("both replicas to be on the other node", LIMIT, || {
        let pods = confrev_pods();
        expect(&pods.iter().filter(|pod| pod["spec"]["nodeName"] == "node-2").count(), &2)
    });
    // The number of replicas whose metrics the scraper and both strangers reach; then the same for the webhooks.
    let reached = || -> Vec<usize> {
        let pods = confrev_pods();
        let count = |client, port| {
            pods.iter().filter(|pod| pod_connects(&world, client, &address(pod), port)).count()
        };
        let clients = [&scraper, &strangers[0], &strangers[1]];
        [ADMIN, WEBHOOK].iter().flat_map(|port| clients.map(|client| count(client, *port))).collect()
    };
    // Without addresses in the chart's values, both ports are open.
    wait_for("all pods to reach both ports", LIMIT, || expect(&reached(), &[2; 6]));
    assert_eq!(reached_by_api_server(), 2);

    change(&NARROW);
    let allowed = [2, 0, 0, 0, 0, 0];
    wait_for("only the scraper to reach the metrics", LIMIT, || expect(&reached(), &allowed));
    assert_eq!(reached_by_api_server(), 2);
    // New pods have new addresses, to which the API server has no connections yet.
    restart();
    wait_serving(2);
    let writer = Writer::start(&world);
    wait_for("only the scraper to reach the new pods", LIMIT, || expect(&reached(), &allowed));
    let writes = writer.stop();
    assert!(writes.refused.is_empty(), "{writes}");
    assert_eq!(replicas_that_reach(API.0, API.1), 2);
    for stranger in &strangers {
        assert!(pod_connects(&world, &scraper, &address(stranger), ADMIN), "pods reach each other");
        assert_eq!(replicas_that_reach(&address(stranger), ADMIN), 0, "confrev reaches another pod");
    }

    change(&[NARROW[1], NARROW[2], WRONG]);
    wait_for("the API server's machine to be refused", LIMIT, || expect(&reached_by_api_server(), &0));
    restart();
    let status = ["rollout", "status", "deployment/confrev", "--namespace=confrev", "--timeout=180s"];
    cluster().kubectl(&status).run().ok();
    let refusal = wait_for("a write to be refused", LIMIT, || cluster().calls_confrev().err());
    assert!(refusal.contains("failed calling webhook"), "{refusal}");
}

fn restart() {
    cluster().kubectl(&["rollout", "restart", "deployment/confrev", "--namespace=confrev"]).run().ok();
}
