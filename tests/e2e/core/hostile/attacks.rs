//! Attacks by one pod or one tenant, and the latency of genuine reviews meanwhile.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::wire::{Stranger, frame, headers, preface};
use super::{Site, review};
use crate::shared::{exclusive, running};
use crate::world::LIMIT;

/// An attack under way.
type Attack<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The number of genuine reviews that are measured at rest and during each attack; `CONFREV_ATTACK_REVIEWS` overrides it
/// (`make attacks`). More reviews improve the figures, and keep the machine busy for longer.
fn reviews() -> usize {
    const REVIEWS: usize = 20;
    std::env::var("CONFREV_ATTACK_REVIEWS").ok().and_then(|text| text.parse().ok()).unwrap_or(REVIEWS)
}
/// Connections that never finish a head, to each port and over each protocol.
const OPEN_HEADS: usize = 400;
/// The maximum memory that those may use, in MiB.
const OPEN_HEADS_MEMORY: u64 = 24;
/// The length of a head that never ends.
const HEAD: usize = 300_000;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Sends bytes for as long as they are accepted, then reads until the connection is closed.
async fn send(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) {
    let _ = timeout(Duration::from_secs(5), async {
        let _ = stream.write_all(bytes).await;
        stream.flush().await
    })
    .await;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

/// A head over HTTP/1.1 that does not end.
fn open_head(length: usize) -> Vec<u8> {
    let mut head = b"POST /mutate/workloads HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec();
    head.resize(length, b'x');
    head
}

/// A head over HTTP/2 that does not end.
fn open_block(length: usize) -> Vec<u8> {
    let mut block = [preface(), frame(1, 0, 1, &headers())].concat();
    while block.len() < length {
        block.extend(frame(9, 0, 1, &[0, 1, b'a', 1, b'b'].repeat(3000)));
    }
    block
}

/// 400 connections of one pod that never finish a head of 300 kB, and as many of a head of 8 kB, to the webhook port over
/// both protocols and to the admin port.
#[test]
fn unfinished_heads_cost_little_and_are_closed() {
    let shared = running();
    let (mut site, _world) = Site::new("hostile-heads", &shared.webhook_url());
    let admin = site.program.admin_url();
    let admin = admin.trim_start_matches("http://").parse().expect("an address");
    let before = site.memory();
    let pod = &site.stranger;
    runtime().block_on(async {
        for length in [HEAD, 8000] {
            for (what, protocol) in
                [("webhook port", Some(true)), ("HTTP/2", Some(false)), ("admin port", None)]
            {
                let start = Instant::now();
                let open = join_all((0..OPEN_HEADS).map(|_| async move {
                    match protocol {
                        None => send(pod.plain_to(admin).await, &open_head(length)).await,
                        Some(is_http1) => {
                            let bytes = if is_http1 { open_head(length) } else { open_block(length) };
                            // If too many connections are open, the handshake fails.
                            let protocol = if is_http1 { &b"http/1.1"[..] } else { b"h2" };
                            if let Ok(stream) = pod.connect(protocol).await {
                                send(stream, &bytes).await;
                            }
                        }
                    }
                }));
                timeout(LIMIT, open).await.expect("all connections are closed");
                println!("{OPEN_HEADS} heads of {length} bytes, {what}: closed after {:?}", start.elapsed());
                site.is_served("open heads").await;
            }
        }
    });
    let taken = site.memory() - before;
    println!("they used {taken} MiB");
    assert!(taken <= OPEN_HEADS_MEMORY, "they used {taken} MiB");
    assert!(site.has_reached("header-timeout"));
    site.program.stop();
}

/// The latency of genuine reviews, and the number without an answer before their deadline.
struct Measured {
    median: Duration,
    p99: Duration,
    failed: usize,
}

/// Sends genuine reviews one after the other, each on its own connection.
async fn measure(site: &Site) -> Measured {
    let (mut times, mut failed) = (Vec::new(), 0);
    for _ in 0..reviews() {
        let start = Instant::now();
        let (status, answer) = site.genuine.ask(&site.good).await;
        if status != 200 || !answer.contains("JSONPatch") {
            println!("{status}: {answer}");
            failed += 1;
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Measured { median: times[times.len() / 2], p99: times[times.len().saturating_sub(2)], failed }
}

/// Repeats an attack on this many connections at once.
async fn repeat(count: usize, attack: impl AsyncFn()) {
    let again = async || {
        loop {
            attack().await;
            // Wait before the next attempt: immediate retries would measure this program.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    join_all((0..count).map(|_| again())).await;
}

/// Connections with a head that does not end.
pub(super) async fn open_heads(pod: &Stranger) {
    let head = open_head(8000);
    repeat(OPEN_HEADS, async || {
        if let Ok(stream) = pod.connect(b"http/1.1").await {
            send(stream, &head).await;
        }
    })
    .await;
}

/// Requests that state 7 MiB, send half of it, and wait.
pub(super) async fn half_bodies(pod: &Stranger) {
    let head = "POST /mutate/workloads HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 7340032\r\n\r\n";
    let half = [head.as_bytes(), &vec![b' '; 7_340_032 / 2]].concat();
    repeat(100, async || {
        if let Ok(stream) = pod.connect(b"http/1.1").await {
            send(stream, &half).await;
        }
    })
    .await;
}

/// Connections of HTTP/2, each with 250 requests that do not end.
pub(super) async fn open_requests(pod: &Stranger) {
    let request = |stream: u32| {
        let kind = [&[0x0f, 0x10, 16][..], b"application/json"].concat();
        [frame(1, 4, stream, &[headers(), kind].concat()), frame(0, 0, stream, b"{")].concat()
    };
    let requests = [preface(), (0..250).flat_map(|number| request(2 * number + 1)).collect()].concat();
    repeat(250, async || {
        if let Ok(stream) = pod.connect(b"h2").await {
            let _ = timeout(Duration::from_secs(5), send(stream, &requests)).await;
        }
    })
    .await;
}

/// A workload with 1,990 references to ConfigMaps that do not exist: close to the limit for one workload.
fn greedy_review(namespace: &str) -> Value {
    let mut review = review(namespace);
    let missing = (0..1990).map(|number| json!({"configMapRef": {"name": format!("missing-{number}")}}));
    review["request"]["object"]["spec"]["template"]["spec"]["containers"][0]["envFrom"] = missing.collect();
    review
}

/// Forty concurrent dry-runs of one tenant. They come from the API server's address, as the genuine reviews do.
async fn dry_runs(api_server: &Stranger, review: &[u8]) {
    repeat(40, async || drop(api_server.ask(review).await)).await;
}

/// Genuine reviews are answered in time while one pod or one tenant attacks. Half of them may fail, since other programs
/// may keep the machine busy. docs/evidence/security.md has the table that the test prints.
#[test]
fn genuine_reviews_are_answered_during_attacks() {
    // No other test sends reviews meanwhile, or is delayed.
    let shared = exclusive();
    let (mut site, _world) = Site::new("hostile-fair", &shared.webhook_url());
    let tenant = crate::world::World::new("hostile-tenant");
    let greedy = greedy_review(tenant.name()).to_string().into_bytes();
    runtime().block_on(async {
        let pod = &site.stranger;
        let attacks: [(&str, Attack<'_>); 5] = [
            ("at rest", Box::pin(std::future::pending())),
            ("400 open heads", Box::pin(open_heads(pod))),
            ("100 half-sent bodies of 7 MiB", Box::pin(half_bodies(pod))),
            ("250 HTTP/2 connections of 250 open requests", Box::pin(open_requests(pod))),
            ("40 dry-runs of 1,990 missing references", Box::pin(dry_runs(&site.genuine, &greedy))),
        ];
        for (what, attack) in attacks {
            let measured = async {
                if what != "at rest" {
                    // Let the attack take effect.
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
                measure(&site).await
            };
            let measured = tokio::select! {
                biased;
                measured = measured => measured,
                () = attack => unreachable!("an attack never ends"),
            };
            let Measured { median, p99, failed } = measured;
            let memory = site.memory();
            println!("{what}: p50 {median:.1?}, p99 {p99:.1?}, {failed} failed, {memory} MiB at most");
            // confrev answers at its deadline, before the API server's timeout, so each answer with a patch was in time.
            // The API server may be slow if other programs keep the machine busy.
            assert!(failed <= reviews() / 2, "{what}: {failed} of {} were not answered in time", reviews());
        }
    });
    site.program.stop();
}
