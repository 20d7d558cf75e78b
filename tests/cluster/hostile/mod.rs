//! What strangers send: each gets a right answer or a closed connection, others are served, and memory stays bounded.
//!
//! All of it goes to a confrev of its own, which the API server does not call.

mod attacks;
mod wire;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use confrev_controlplane::{ControlPlane, Program, raise_descriptors, wait_for};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World};
use wire::{End, Stranger, end, flood, frame, headers, preface};

/// The most that the process may take at any time, in MiB; docs/reliability.md states it, and the chart's limit is that.
const MOST: u64 = 256;
/// Connections of those who say nothing.
const IDLE: usize = 5000;
/// Frames of each flood.
const FRAMES: usize = 20_000;
const MIB: usize = 1 << 20;

/// A question about a new Deployment, as text.
fn review(namespace: &str) -> Value {
    let workload = Workload::new(Kind::Deployment, "web", &["demo"]);
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "name": "web",
        "namespace": namespace,
        "operation": "CREATE",
        "object": workload.manifest(),
        "dryRun": true,
    }})
}

/// Confrev, a stranger, and a good question of another client.
struct Site {
    program: Program,
    stranger: Stranger,
    genuine: Stranger,
    good: Vec<u8>,
}

impl Site {
    /// A confrev of its own, and a namespace with the ConfigMap of the good question. The API server goes on to call
    /// another confrev.
    fn new(name: &str, service: &str) -> (Self, World) {
        raise_descriptors();
        let world = World::new(name);
        world.set_config("demo", "A");
        let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
        let mut program = Program::new(ControlPlane::shared(), binary).behind(service);
        program.launch(&["--orphan-grace=5s", "--settle=1s"]);
        wait_for("confrev to be ready", LIMIT, || program.is_ready().then_some(()));
        let genuine = Stranger::new(program.address());
        let good = review(world.name()).to_string().into_bytes();
        (Self { program, stranger: genuine.from(2), genuine, good }, world)
    }

    /// How often confrev has counted that it reached a limit.
    fn reached(&self, limit: &str) -> f64 {
        self.program.metric(&format!("confrev_limits_reached_total{{limit=\"{limit}\"}}"))
    }

    /// Whether confrev has counted that it reached a limit.
    fn has_reached(&self, limit: &str) -> bool {
        self.reached(limit) > 0.0
    }

    /// The most memory that it has taken, in MiB.
    fn memory(&self) -> u64 {
        self.program.status("VmHWM") / 1024
    }

    /// Others are served: a good question has its patch. Where it is told that there is too much at once, it is asked
    /// again, as whoever applies does.
    async fn is_served(&self, meanwhile: &str) {
        let asked = async {
            loop {
                let (status, answer) = self.genuine.ask(&self.good).await;
                if status != 503 {
                    return (status, answer);
                }
            }
        };
        let (status, answer) = tokio::time::timeout(LIMIT, asked).await.expect("an answer in time");
        assert!(status == 200 && answer.contains("JSONPatch"), "{meanwhile}: {answer}");
    }

    /// As many at once, each with a connection of HTTP/1.1 and this head; and what became of each.
    async fn bodies(&self, count: usize, head: &str, chunk: &[u8], chunks: usize) -> Vec<End> {
        let sent = (0..count).map(|_| async {
            let mut stream = self.stranger.head(head).await;
            flood(&mut stream, chunks, |_| chunk.to_vec()).await;
            end(&mut stream).await
        });
        join_all(sent).await
    }

    /// A flood of frames over HTTP/2.
    async fn frames(&self, what: &str, next: impl FnMut(usize) -> Vec<u8>) {
        let mut stream = self.stranger.connect(b"h2").await.expect("a handshake");
        stream.write_all(&preface()).await.expect("a preface is taken");
        let served = self.is_served(what);
        let (taken, ()) = tokio::join!(flood(&mut stream, FRAMES, next), served);
        println!("{what}: {taken} of {FRAMES} were taken");
        self.is_served(what).await;
    }
}

#[test]
fn whatever_strangers_send_memory_is_bounded_and_others_are_served() {
    let shared = running();
    let (mut site, world) = Site::new("hostile", &shared.webhook_url());
    println!("at rest: {} MiB", site.memory());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let step = |what: &str, work: &dyn Fn(&Site)| {
        work(&site);
        println!("after {what}: {} MiB at most", site.memory());
    };
    step("bodies of 100 MB", &|site| runtime.block_on(large_bodies(site)));
    step("slow bodies", &|site| runtime.block_on(slow_bodies(site)));
    step("odd documents", &|site| runtime.block_on(odd_documents(site, world.name())));
    step("garbage", &|site| runtime.block_on(garbage(site)));
    step("floods of HTTP/2", &|site| runtime.block_on(floods(site)));
    step("idle connections", &|site| runtime.block_on(idle(site)));
    let most = site.memory();
    assert!(most < MOST, "it took {most} MiB");
    for limit in ["max-body", "max-connections-per-address", "request-timeout"] {
        assert!(site.has_reached(limit), "{limit}");
    }
    // The Lease, which it may hold, is given up.
    site.program.stop();
}

async fn large_bodies(site: &Site) {
    let chunk = vec![b' '; MIB];
    let served = site.is_served("bodies of 100 MB");
    let stated = site.bodies(20, "content-length: 104857600", &chunk, 100);
    let (ends, ()) = tokio::join!(stated, served);
    assert!(ends.iter().all(|end| [End::Status(413), End::Closed].contains(end)), "{ends:?}");
    let chunk = [format!("{MIB:x}\r\n").as_bytes(), &chunk, b"\r\n"].concat();
    let served = site.is_served("bodies of 100 MB in chunks");
    let (ends, ()) = tokio::join!(site.bodies(20, "transfer-encoding: chunked", &chunk, 100), served);
    // Where the machine is slow, a body is too late before it is too large, or there is no room for it.
    let refused = [413, 408, 503].map(End::Status);
    assert!(ends.iter().all(|end| refused.contains(end) || *end == End::Closed), "{ends:?}");
    // As large as may be, and more of them than there is room for.
    let large = [b"{\"x\":\"".to_vec(), vec![b'x'; 7 * MIB - 8], b"\"}".to_vec()].concat();
    let asked = join_all((0..20).map(|_| site.stranger.ask(&large))).await;
    assert!(asked.iter().all(|(status, _)| [400, 408, 503, 0].contains(status)), "{asked:?}");
}

/// Each states the longest body that may be, and sends a byte now and then: more than there is room for.
async fn slow_bodies(site: &Site) {
    let slow = (0..100).map(|_| async {
        let mut stream = site.stranger.head("content-length: 7340032").await;
        for _ in 0..3 {
            if stream.write_all(b" ").await.is_err() || stream.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        end(&mut stream).await
    });
    let served = async {
        for _ in 0..5 {
            site.is_served("slow bodies").await;
        }
    };
    let (ends, ()) = tokio::join!(join_all(slow), served);
    assert!(
        ends.iter().all(|end| [End::Status(408), End::Status(503), End::Closed].contains(end)),
        "{ends:?}"
    );
}

/// A document, the status of its answer, and whether the object is let through.
async fn odd_documents(site: &Site, namespace: &str) {
    let good = review(namespace).to_string();
    let within = |field: &str, value: &str| {
        good.replacen("\"object\":{", &format!("\"object\":{{\"{field}\":{value},"), 1)
    };
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    let cases: Vec<(&str, Vec<u8>, u16, Option<bool>)> = vec![
        ("10,000 deep", deep.clone().into(), 400, None),
        ("10,000 deep where nobody looks", within("x", &deep).into(), 200, Some(true)),
        ("10,000 objects deep where nobody looks", within("x", &objects).into(), 200, Some(true)),
        (
            "10,000 deep in place of metadata",
            good.replacen("\"metadata\":{", &format!("\"metadata\":{deep},\"y\":{{"), 1).into(),
            200,
            Some(false),
        ),
        (
            "numbers beyond 64 bits",
            within("x", "[123456789012345678901234567890,-1e999,0.1e-999]").into(),
            200,
            Some(true),
        ),
        ("a key twice", within("spec", "{}").into(), 200, Some(false)),
        (
            "the request twice",
            good.replacen("\"request\":", "\"request\":{},\"request\":", 1).into(),
            400,
            None,
        ),
        (
            "invalid UTF-8 in a key",
            [good.as_bytes(), b""].concat().splice_at("\"uid\"", b"\"\xff\xfe\":1,"),
            400,
            None,
        ),
        ("half of a surrogate pair", good.replacen("\"uid\":\"", "\"uid\":\"\\ud800", 1).into(), 400, None),
        ("no end", good[..good.len() - 2].into(), 400, None),
        ("something after the end", format!("{good}x").into(), 400, None),
    ];
    for (what, body, wanted, allowed) in cases {
        let (status, answer) = site.stranger.ask(&body).await;
        assert_eq!(status, wanted, "{what}: {answer}");
        if let Some(allowed) = allowed {
            let said = answer.contains(&format!("\"allowed\":{allowed}"));
            assert!(said, "{what}: {answer}");
            assert!(
                !allowed || answer.contains("JSONPatch"),
                "{what}: it is resolved all the same: {answer}"
            );
        }
        site.is_served(what).await;
    }
}

/// Puts bytes before a text.
trait SpliceAt {
    fn splice_at(self, before: &str, bytes: &[u8]) -> Vec<u8>;
}

impl SpliceAt for Vec<u8> {
    fn splice_at(mut self, before: &str, bytes: &[u8]) -> Vec<u8> {
        let at = self.windows(before.len()).position(|window| window == before.as_bytes()).unwrap();
        self.splice(at..at, bytes.iter().copied());
        self
    }
}

async fn garbage(site: &Site) {
    let sent = (0..200_u8).map(|number| async move {
        let mut stream = site.stranger.plain().await;
        // What looks like the beginning of a record, and what does not.
        let kind = if number % 2 == 0 { 22 } else { number };
        let bytes = [vec![kind, 3, 1, 0x40, 0], vec![number; 20_000]].concat();
        let _ = stream.write_all(&bytes).await;
        let mut rest = Vec::new();
        let ended = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
        let _ = tokio::time::timeout(LIMIT, ended).await.expect("the connection is closed");
    });
    let (_, ()) = tokio::join!(join_all(sent), site.is_served("TLS garbage"));
}

async fn floods(site: &Site) {
    let stream = |sent: usize| u32::try_from(2 * sent + 1).unwrap();
    // Flag 4 is the end of the headers, 1 the end of the stream; frame 3 is a reset.
    site.frames("requests that are reset at once", |sent| {
        [frame(1, 4, stream(sent), &headers()), frame(3, 0, stream(sent), &8_u32.to_be_bytes())].concat()
    })
    .await;
    site.frames("requests that never end", |sent| frame(1, 4, stream(sent), &headers())).await;
    site.frames("settings", |_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 100])).await;
    site.frames("pings", |_| frame(6, 0, 0, &[0; 8])).await;
    site.frames("headers that go on and on", |sent| {
        if sent == 0 {
            frame(1, 0, 1, &headers())
        } else {
            frame(9, 0, 1, &[0, 1, b'a', 1, b'b'].repeat(100))
        }
    })
    .await;
    site.frames("empty headers that go on and on", |sent| {
        if sent == 0 { frame(1, 0, 1, &headers()) } else { frame(9, 0, 1, &[]) }
    })
    .await;
    site.frames("windows that grow", |_| frame(8, 0, 0, &1_u32.to_be_bytes())).await;
    site.frames(
        "empty data",
        |sent| {
            if sent == 0 { frame(1, 4, 1, &headers()) } else { frame(0, 0, 1, &[]) }
        },
    )
    .await;
}

/// Connections without a word, some of them after their handshake, until there are as many as one address may have. Those
/// that make no handshake are closed after a time, so on a slow machine only the others add up.
async fn idle(site: &Site) {
    let _spinning = Spinning::start();
    let limit = "max-connections-per-address";
    let before = site.reached(limit);
    let (mut silent, mut greeted) = (Vec::new(), Vec::new());
    for number in 0..IDLE {
        if number % 20 == 0 && site.reached(limit) > before {
            println!("reached after {number} idle connections");
            break;
        }
        if number % 2 == 0 {
            // It may be sent away while it shakes hands.
            greeted.extend(site.stranger.connect(b"h2").await.ok());
        } else {
            silent.push(site.stranger.plain().await);
        }
    }
    assert!(site.reached(limit) > before, "after {IDLE} idle connections");
    site.is_served("idle connections").await;
}

/// Threads that keep the machine busy until this is dropped: what passes only on a fast machine fails.
struct Spinning(Arc<AtomicBool>);

impl Spinning {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 * std::thread::available_parallelism().map_or(2, usize::from) {
            let is_over = is_over.clone();
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
