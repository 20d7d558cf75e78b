//! Input of hostile clients: each gets a correct answer or a closed connection, other clients are served, and memory stays
//! bounded.
//!
//! All input goes to a separate confrev, which the API server does not call.

mod attacks;
mod budget;
mod container;
mod names;
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

/// The maximum memory of the process, in MiB: the chart's limit, which docs/reliability.md states.
const MOST: u64 = 256;
/// The maximum number of idle connections that the test opens.
const IDLE: usize = 5000;
/// Frames of each flood.
const FRAMES: usize = 20_000;
const MIB: usize = 1 << 20;
/// ConfigMaps of 1 MiB, whose content the API server sends as 6 MiB of JSON.
const ESCAPED: usize = 16;

/// An AdmissionReview of a new Deployment.
fn review(namespace: &str) -> Value {
    review_of(namespace, &["demo"])
}

/// An AdmissionReview of a new Deployment that uses these ConfigMaps.
fn review_of(namespace: &str, sources: &[&str]) -> Value {
    let workload = Workload::new(Kind::Deployment, "web", sources);
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

/// confrev, a hostile client, and a genuine review of another client.
struct Site {
    program: Program,
    stranger: Stranger,
    genuine: Stranger,
    good: Vec<u8>,
}

impl Site {
    /// Starts a separate confrev, and creates a namespace with the ConfigMap of the genuine review. The API server
    /// continues to call another confrev.
    fn new(name: &str, service: &str) -> (Self, World) {
        Self::start(name, service, Path::new(env!("CARGO_BIN_EXE_confrev")), &[])
    }

    /// The same with this program and these further options.
    fn start(name: &str, service: &str, binary: &Path, options: &[&str]) -> (Self, World) {
        raise_descriptors();
        let world = World::new(name);
        world.set_config("demo", "A");
        let mut program = Program::new(ControlPlane::shared(), binary).behind(service);
        program.launch(&[&["--orphan-grace=5s", "--settle=1s"], options].concat());
        wait_for("confrev to be ready", LIMIT, || program.is_ready().then_some(()));
        let genuine = Stranger::new(program.address());
        let good = review(world.name()).to_string().into_bytes();
        (Self { program, stranger: genuine.from(2), genuine, good }, world)
    }

    /// How often confrev reached a limit, by its own metrics.
    fn reached(&self, limit: &str) -> f64 {
        self.program.metric(&format!("confrev_limits_reached_total{{limit=\"{limit}\"}}"))
    }

    /// Whether confrev reached a limit, by its own metrics.
    fn has_reached(&self, limit: &str) -> bool {
        self.reached(limit) > 0.0
    }

    /// The peak memory of the process, in MiB.
    fn memory(&self) -> u64 {
        self.program.status("VmHWM") / 1024
    }

    /// Checks that other clients are served: a genuine review gets its patch.
    async fn is_served(&self, meanwhile: &str) {
        let (status, answer) = decided(&self.genuine, &self.good, meanwhile).await;
        assert!(status == 200 && answer.contains("JSONPatch"), "{meanwhile}: {answer}");
    }

    /// Sends this many concurrent requests with this head, each on its own HTTP/1.1 connection. Returns how each ended.
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
        stream.write_all(&preface()).await.expect("the preface is sent");
        let served = self.is_served(what);
        let (taken, ()) = tokio::join!(flood(&mut stream, FRAMES, next), served);
        println!("{what}: {taken} of {FRAMES} were accepted");
        self.is_served(what).await;
    }
}

/// Sends a request until confrev's answer depends on its content, as a user would apply again: an overloaded confrev answers
/// 503, and on a slow machine a body may time out before it arrives.
async fn decided(client: &Stranger, body: &[u8], what: &str) -> (u16, String) {
    let asked = async {
        loop {
            let (status, answer) = client.ask(body).await;
            if ![408, 503].contains(&status) {
                return (status, answer);
            }
        }
    };
    tokio::time::timeout(LIMIT, asked).await.unwrap_or_else(|_| panic!("no decision in time: {what}"))
}

/// Other clients are served meanwhile.
#[test]
fn memory_stays_bounded_whatever_clients_send() {
    let shared = running();
    let (mut site, world) = Site::new("hostile", &shared.webhook_url());
    println!("at rest: {} MiB", site.memory());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let escaped = escaped_configs(&world);
    runtime.block_on(steps(&site, &world, &escaped.iter().map(String::as_str).collect::<Vec<_>>()));
    let most = site.memory();
    assert!(most < MOST, "confrev used {most} MiB");
    for limit in ["max-body", "max-read-bytes", "max-connections-per-address", "request-timeout"] {
        assert!(site.has_reached(limit), "{limit}");
    }
    // This releases the Lease, which confrev may hold.
    site.program.stop();
}

/// Creates sources whose content the API server sends as 6 MiB of JSON each.
fn escaped_configs(world: &World) -> Vec<String> {
    let escaped: Vec<_> = (0..ESCAPED).map(|number| format!("escaped-{number}")).collect();
    for name in &escaped {
        world.set_config(name, &"<".repeat(MIB - 100));
    }
    escaped
}

/// Everything that one hostile client sends, one after the other. `escaped`: sources that are larger as JSON.
async fn steps(site: &Site, world: &World, escaped: &[&str]) {
    let done = |what: &str| println!("after {what}: {} MiB at most", site.memory());
    large_bodies(site).await;
    done("bodies of 100 MB");
    dense_bodies(site, world.name()).await;
    done("dense bodies");
    slow_bodies(site).await;
    done("slow bodies");
    escaped_objects(site, world.name(), escaped).await;
    done("objects that are larger as JSON");
    odd_documents(site, world.name()).await;
    done("odd documents");
    garbage(site).await;
    done("garbage");
    floods(site).await;
    done("floods of HTTP/2");
    idle(site).await;
    done("idle connections");
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
    // On a slow machine, a body may time out or find no memory before it is too large.
    let refused = [413, 408, 503].map(End::Status);
    assert!(ends.iter().all(|end| refused.contains(end) || *end == End::Closed), "{ends:?}");
    // Bodies of the maximum size, and more of them than the memory for bodies holds.
    let large = [b"{\"x\":\"".to_vec(), vec![b'x'; 7 * MIB - 8], b"\"}".to_vec()].concat();
    let asked = join_all((0..20).map(|_| site.stranger.ask(&large))).await;
    assert!(asked.iter().all(|(status, _)| [400, 408, 503, 0].contains(status)), "{asked:?}");
}

/// A review with a list of small elements in a field of its template.
fn dense_review(namespace: &str, field: &str, element: &str, bytes: usize) -> Vec<u8> {
    let list = format!("[{}null]", element.repeat(bytes / element.len()));
    let spec = format!("\"template\":{{\"spec\":{{\"{field}\":{list}}}}},\"x\":{{");
    review(namespace).to_string().replacen("\"template\":{", &spec, 1).into_bytes()
}

/// Reviews of a few bytes for each JSON value, which take many times their text once they are parsed.
async fn dense_bodies(site: &Site, namespace: &str) {
    let list = |element: &str, bytes: usize| format!("[{}null]", element.repeat(bytes / element.len()));
    let good = review(namespace).to_string();
    let dense = |field: &str, element: &str, bytes: usize| dense_review(namespace, field, element, bytes);
    let values = dense("volumes", "{},", 6 * MIB);
    let (status, answer) = decided(&site.stranger, &values, "more values than allowed").await;
    assert!(status == 413 && answer.contains("JSON values"), "{status}: {answer}");
    let bodies = [("volumes", "{},"), ("containers", "{\"envFrom\":[{}]},")]
        .map(|(field, element)| dense(field, element, MIB / 3));
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        let many = bodies.iter().flat_map(|body| (0..40).map(|_| site.stranger.ask(body)));
        let (answers, ()) = tokio::join!(join_all(many), site.is_served("dense bodies"));
        assert!(answers.iter().all(|(status, _)| [200, 408, 503, 0].contains(status)), "{answers:?}");
        if answers.iter().any(|(status, _)| *status == 200) {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "no dense body was decided: {answers:?}");
    }
    // Each reference is looked up in the annotation, which names as many snapshots as an annotation can hold.
    let entry = |number| format!(",\\\"{number:05}\\\":\\\"s{number:05}\\\"");
    let sources = (0..12_000).map(entry).collect::<Vec<_>>().concat();
    let annotation =
        format!("\"confrev.dev/sources\":\"{{\\\"configmaps\\\":{{\\\"a\\\":\\\"b\\\"{sources}}}}}\"");
    let container = format!("{{\"envFrom\":{}}}", list("{\"configMapRef\":{\"name\":\"none\"}},", 2 * MIB));
    let template = format!(
        "\"template\":{{\"metadata\":{{\"annotations\":{{{annotation}}}}},\"spec\":{{\"containers\":[{container}]}}}},\"x\":{{"
    );
    let looked_up = good.replacen("\"template\":{", &template, 1).replace("\"true\"", "\"false\"");
    let (status, answer) = decided(&site.stranger, looked_up.as_bytes(), "many references").await;
    assert!(status == 200 && answer.contains("\"allowed\":true"), "{status}: {answer}");
}

/// Reviews of a workload whose sources hold 1 MiB each, of a character that takes six bytes in JSON. On a slow machine, reviews
/// may time out before enough has arrived to reach the limit, so they are sent until one reaches it.
async fn escaped_objects(site: &Site, namespace: &str, sources: &[&str]) {
    let large = review_of(namespace, sources).to_string().into_bytes();
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        let served = site.is_served("objects that are larger as JSON");
        let asked = join_all((0..12).map(|_| site.stranger.ask(&large)));
        let (asked, ()) = tokio::join!(asked, served);
        assert!(asked.iter().all(|(_, answer)| !answer.contains("JSONPatch")), "{asked:?}");
        if asked.iter().any(|(_, answer)| answer.contains("--max-read-bytes")) {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "no review reached --max-read-bytes: {asked:?}");
    }
}

/// Requests that state the maximum size and send a byte at intervals. The memory for bodies does not hold all of them.
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

/// A document, the status of its answer, and whether the object is allowed.
async fn odd_documents(site: &Site, namespace: &str) {
    let good = review(namespace).to_string();
    let within = |field: &str, value: &str| {
        good.replacen("\"object\":{", &format!("\"object\":{{\"{field}\":{value},"), 1)
    };
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    let cases: Vec<(&str, Vec<u8>, u16, Option<bool>)> = vec![
        ("10,000 deep", deep.clone().into(), 400, None),
        ("10,000 deep in an ignored field", within("x", &deep).into(), 200, Some(true)),
        ("10,000 objects deep in an ignored field", within("x", &objects).into(), 200, Some(true)),
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
        let (status, answer) = decided(&site.stranger, &body, what).await;
        assert_eq!(status, wanted, "{what}: {answer}");
        if let Some(allowed) = allowed {
            let said = answer.contains(&format!("\"allowed\":{allowed}"));
            assert!(said, "{what}: {answer}");
            assert!(
                !allowed || answer.contains("JSONPatch"),
                "{what}: the reference is not resolved: {answer}"
            );
        }
        site.is_served(what).await;
    }
}

/// Inserts bytes before a text.
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
        // Bytes that look like the beginning of a TLS record, and bytes that do not.
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
    site.frames("endless headers", |sent| {
        if sent == 0 {
            frame(1, 0, 1, &headers())
        } else {
            frame(9, 0, 1, &[0, 1, b'a', 1, b'b'].repeat(100))
        }
    })
    .await;
    site.frames("endless empty headers", |sent| {
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

/// Opens idle connections, some of them with a handshake, up to the limit of one address. Connections without a handshake
/// are closed after a time, so on a slow machine only the others accumulate.
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
            // confrev may close the connection during the handshake.
            greeted.extend(site.stranger.connect(b"h2").await.ok());
        } else {
            silent.push(site.stranger.plain().await);
        }
    }
    assert!(site.reached(limit) > before, "after {IDLE} idle connections");
    site.is_served("idle connections").await;
}

/// Threads that keep the machine busy until this is dropped, so that the test does not depend on a fast machine.
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
