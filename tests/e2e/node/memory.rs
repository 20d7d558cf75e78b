//! The memory limit of confrev's containers, which the kernel enforces.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::confrev_pods::processes;
use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, wait_serving};
use crate::world::{World, text};
use crate::writer::Writer;

/// The chart's limit.
const LIMIT_BYTES: u64 = 256 << 20;
/// The sources that each workload uses, and the size of each.
const SOURCES: usize = 20;
const SIZE: usize = 700 << 10;

/// A file of the memory control group of a process. Its name depends on the version of control groups.
fn memory(process: &Path, names: [&str; 2]) -> u64 {
    let groups = fs::read_to_string(process.join("cgroup")).expect("the process has control groups");
    let paths = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        let version_1 = || PathBuf::from("/sys/fs/cgroup/memory").join(path).join(names[0]);
        let version_2 = || PathBuf::from("/sys/fs/cgroup").join(path).join(names[1]);
        match controllers {
            "memory" => Some(version_1()),
            "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => Some(version_2()),
            _ => None,
        }
    });
    let path = paths.unwrap_or_else(|| panic!("no memory control group in\n{groups}"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.trim().parse().expect("a number of bytes")
}

/// Reviews that together read a multiple of the limit. Each is answered, and neither replica is killed.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn memory_limit_holds_under_load() {
    let _alone = exclusive();
    let world = World::new("memory");
    let path = |resource: &str| match resource {
        "configmaps" => format!("/api/v1/namespaces/{}/configmaps", world.name()),
        _ => format!("/apis/apps/v1/namespaces/{}/{resource}", world.name()),
    };
    for i in 0..SOURCES {
        let data = json!({"text": "x".repeat(SIZE)});
        let (code, answer) = cluster()
            .api()
            .post(&path("configmaps"), &json!({"metadata": {"name": format!("s{i}")}, "data": data}));
        assert_eq!(code, 201, "{answer}");
    }
    let restarts = || -> Vec<u64> {
        let pods = confrev_pods();
        let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        pods.iter().filter_map(count).collect()
    };
    let before = restarts();
    let workload = |name: String| {
        let labels = json!({"app": name});
        let volumes: Vec<_> = (0..SOURCES)
            .map(|i| json!({"name": format!("v{i}"), "configMap": {"name": format!("s{i}")}}))
            .collect();
        let containers = json!([{"name": "app", "image": "app"}]);
        json!({
            "metadata": {"name": name, "labels": {"confrev.dev/enabled": "true"}},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers, "volumes": volumes}},
            },
        })
    };
    let answers: Vec<(u16, Value)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..24)
            .map(|i| {
                let object = workload(format!("w{i}"));
                scope.spawn(|| {
                    let object = object;
                    cluster().api().post(&path("deployments"), &object)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a writer ends")).collect()
    });
    let refused: Vec<_> = answers
        .iter()
        .filter(|(code, _)| *code != 201)
        .map(|(_, answer)| answer["message"].to_string())
        .collect();
    let processes = processes();
    assert!(processes.len() >= 2, "{processes:?}");
    for process in &processes {
        let limit = memory(process, ["memory.limit_in_bytes", "memory.max"]);
        let peak = memory(process, ["memory.max_usage_in_bytes", "memory.peak"]);
        eprintln!("peak memory of a replica under load: {} MiB, of {} MiB", peak >> 20, limit >> 20);
        assert_eq!(limit, LIMIT_BYTES);
    }
    eprintln!("{} of {} writes were refused: {refused:?}", refused.len(), answers.len());
    // All of them may have been too slow for this machine. Confrev asks to try again, and one alone is admitted.
    let path = path("deployments");
    let admitted = wait_for("a workload to be admitted after the load", LIMIT, || {
        let (code, answer) = cluster().api().post(&path, &workload("after".to_owned()));
        if code == 201 { Ok(answer) } else { Err(answer["message"].to_string()) }
    });
    let volumes = admitted["spec"]["template"]["spec"]["volumes"].as_array().expect("volumes");
    let resolved = volumes.iter().filter(|volume| text(&volume["configMap"]["name"]).contains('-')).count();
    assert_eq!(resolved, SOURCES, "references that confrev resolved");
    wait_serving(2);
    assert_eq!(restarts(), before, "a replica was killed");
    let writes = Writer::start(&world).stop();
    assert!(writes.refused.is_empty(), "{writes}");
}
