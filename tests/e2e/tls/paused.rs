//! A replica whose process is stopped: its connections stay open, and nothing that is sent on them is answered.
use confrev_controlplane::Program;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::control_plane::Stage;
use crate::processes::start;
use crate::write_load::{Load, workload};

/// Writes at once.
const AT_ONCE: usize = 8;
const BATCHES: usize = 6;

/// Each review that times out ends its connection. With one connection for all, the API server would find out after 45 s that nothing
/// answers, and every write until then would fail.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_replica_takes_few_writes_with_it() {
    let stage = Stage::take().await;
    let (api, namespace) = (stage.client().await, stage.namespace().await);
    let programs = start(&stage, 2, &[], &[]).await;
    shorten_timeouts(&api).await;
    Load::start(&api, namespace.name()).await.end().await;
    let asked = tokio::task::block_in_place(|| programs.iter().map(reviews).collect::<Vec<_>>());
    let victim = usize::from(asked[1] > asked[0]);
    programs[victim].pause();
    // As the kubelet's readiness probe does.
    stage.service.behind(&[programs[1 - victim].address()]);

    let workloads: Api<Deployment> = Api::namespaced(api, namespace.name());
    let mut failed = Vec::new();
    for batch in 0..BATCHES {
        let writes = (0..AT_ONCE).map(|i| {
            let (workloads, object) = (&workloads, workload(&format!("new-{batch}-{i}")));
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            async move { workloads.create(&dry_run, &object).await }
        });
        failed.push(join_all(writes).await.iter().filter(|written| written.is_err()).count());
    }
    programs[victim].resume();
    assert!(failed.iter().sum::<usize>() < AT_ONCE * 2, "{failed:?}, reviews of each: {asked:?}");
    assert_eq!(failed[BATCHES - 1], 0, "{failed:?}");
}

/// The reviews that a replica has answered.
fn reviews(program: &Program) -> u64 {
    let text = program.metrics();
    let lines = text.lines().filter(|line| line.starts_with("confrev_admission_reviews_total"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// An unanswered review ends after three seconds.
async fn shorten_timeouts(client: &Client) {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let mut configuration = configurations.get("confrev").await.unwrap();
    for webhook in configuration.webhooks.iter_mut().flatten() {
        webhook.timeout_seconds = Some(3);
    }
    configurations.replace("confrev", &PostParams::default(), &configuration).await.unwrap();
}
