//! The limits of checks against schemas: of content, time and memory, and of the processes that run them.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::annotations;
use serde_json::{Value, json};

use super::site::{self, PROGRAM, Site, write_of};

/// The most bytes that the API server stores in the values of one object.
const MAX: usize = 1 << 20;

/// Admission of sources in namespace `shop`, which has one schema.
fn site(schema: &Value, program: &str) -> Site {
    let metadata = json!({"name": "schemas", "annotations": {annotations::SCHEMA_FOR: "shop"}});
    let object = json!({"metadata": metadata, "data": {"app": schema.to_string()}});
    Site::new([("shop/configmaps/schemas".to_owned(), object)].into(), program)
}

/// Why a write of a source is refused; `None` if it is not. `timeout`: what the API server states.
async fn refusal(site: &Site, timeout: &str, kind: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    let path = format!("/mutate/{kind}?timeout={timeout}");
    site::message(&site.answer(&path, false, &write_of(kind, new, old)).await)
}

/// A source with these values.
fn source(data: &Value) -> Value {
    let annotations = json!({annotations::SCHEMA: "schemas/app"});
    json!({"metadata": {"name": "demo", "namespace": "shop", "annotations": annotations}, "data": data})
}

/// A schema whose references double at each step. A number matches, so the check takes time and no memory.
fn endless() -> Value {
    let mut doubling = json!({"$ref": "#/$defs/d0", "$defs": {"d40": {"type": "integer"}}});
    for i in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        doubling["$defs"][format!("d{i}")] = json!({"allOf": [next, next]});
    }
    doubling
}

/// Content of the largest size that takes a hundred times as much memory once it is parsed.
fn bomb() -> Value {
    let element = "{\"\":0},";
    source(&json!({"a.json": format!("[{}0]", element.repeat((MAX - 10) / element.len()))}))
}

/// No process starts, and the schema is not read: the program does not exist.
#[tokio::test]
async fn content_that_no_api_server_stores_is_refused() {
    let site = site(&json!(true), "/nonexistent");
    let small = source(&json!({"a.json": "1"}));
    let text = |bytes| json!({"a.json": "x".repeat(bytes)});
    let escaped = json!({"a.json": "\u{1}".repeat(MAX + 1)});
    let several: BTreeMap<_, _> = (0..6).map(|key| (format!("{key}.json"), "x".repeat(1_000_000))).collect();
    let mut binary = source(&json!({"a.json": "1"}));
    binary["binaryData"] = json!({"b": BASE64_STANDARD.encode(vec![0; MAX])});
    let secret = source(&json!({"a.json": BASE64_STANDARD.encode(vec![b' '; MAX + 1])}));
    let cases = [
        ("configmaps", source(&text(MAX + 1)), None),
        ("configmaps", source(&escaped), None),
        ("configmaps", source(&json!(several)), None),
        ("configmaps", binary, None),
        ("secrets", secret, None),
        ("configmaps", small.clone(), Some(source(&text(MAX + 1)))),
    ];
    for (number, (kind, new, old)) in cases.iter().enumerate() {
        let refused = refusal(&site, "30s", kind, new, old.as_ref()).await.unwrap_or_default();
        assert!(refused.contains("the API server stores 1048576 at most"), "{number}: {refused}");
    }
    assert_eq!(site.reads(), 0, "no schema is read");
    // One byte less is checked.
    let refused = refusal(&site, "30s", "configmaps", &source(&text(MAX)), None).await.unwrap_or_default();
    assert!(refused.contains("its process could not be started"), "{refused}");
}

#[tokio::test]
async fn largest_content_is_checked() {
    let item = json!({"name": "an item", "port": 8080, "tags": ["one", "two"], "on": true}).to_string();
    let text = format!("[{}{item}]", format!("{item},").repeat(MAX / (item.len() + 1) - 1));
    assert!(text.len() > MAX - 200 && text.len() <= MAX, "{}", text.len());
    let items = json!({"type": "object", "required": ["name"]});
    let site = site(&json!({"type": "array", "items": items}), PROGRAM);
    // A debug build may need more than its processor time on a busy machine; a fault of memory would come first.
    let refused = refusal(&site, "3s", "configmaps", &source(&json!({"a.json": text})), None).await;
    assert!(refused.as_ref().is_none_or(|refused| !refused.contains("memory")), "{refused:?}");
}

#[tokio::test]
async fn refusal_says_which_limit_ended_the_check() {
    let small = source(&json!({"a.json": "1"}));
    let endless = site(&endless(), PROGRAM);
    let cases = [
        (&endless, "10s", &small, "was ended after "),
        (&endless, "1s", &small, "was ended after 0."),
        (&site(&json!(true), PROGRAM), "10s", &bomb(), "was ended after it used 23 MiB of memory"),
        (
            &site(&json!(true), "/bin/false"),
            "30s",
            &small,
            "failed, which is a defect of confrev (exit status: 1)",
        ),
        (&site(&json!(true), "/nonexistent"), "30s", &small, "was not run: its process could not be started"),
    ];
    for (site, timeout, source, expected) in cases {
        // On a busy machine, a second may end before the check begins.
        let mut refused = String::new();
        for _ in 0..10 {
            refused = refusal(site, timeout, "configmaps", source, None).await.unwrap_or_default();
            if !refused.is_empty() {
                break;
            }
        }
        assert!(refused.contains(expected), "{expected}: {refused}");
        assert!(refused.contains("schemas/app (annotation confrev.dev/schema)"), "{refused}");
    }
}

/// The API server answered: the refusal must not say that it did not.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_says_that_check_found_no_turn() {
    let mut site = site(&endless(), PROGRAM);
    site.schemas = site.schemas.at_once(1);
    let small = source(&json!({"a.json": "1"}));
    let (first, busy) = (site.clone(), small.clone());
    let first = tokio::spawn(async move { refusal(&first, "10s", "configmaps", &busy, None).await });
    let holds_turn = async {
        while site.reads() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), holds_turn)
        .await
        .expect("the first check begins");
    let refused = refusal(&site, "1s", "configmaps", &small, None).await.unwrap_or_default();
    assert!(refused.contains("was not run: other checks took all the time of this request"), "{refused}");
    assert_eq!(site.reads(), 1, "a check that waits holds no schema");
    let first = first.await.unwrap().unwrap_or_default();
    assert!(first.contains("was ended after"), "{first}");
}

/// The process of a check, seen by the kernel.
#[cfg(target_os = "linux")]
mod process {
    use std::{
        fs,
        io::Write as _,
        os::unix::{
            fs::MetadataExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
        process::{Command, Stdio},
        thread::sleep,
        time::{Duration, Instant},
    };

    use confrev::{budget, schema::COMMAND};
    use serde_json::json;

    use super::{PROGRAM, bomb};

    /// A user without rights.
    const NOBODY: u32 = 65534;
    const LIMIT: Duration = Duration::from_secs(30);

    /// A child of a user without rights, for which the kernel's files about a process that cannot be traced belong to root.
    #[test]
    fn child_is_killed_first_and_cannot_be_traced() {
        let mut command = Command::new(PROGRAM);
        command.arg(COMMAND).env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
        if is_root {
            command.uid(NOBODY);
        }
        let mut child = command.spawn().expect("the program is executable for every user");
        let path = |file: &str| format!("/proc/{}/{file}", child.id());
        let cannot_be_traced = || {
            if is_root {
                fs::metadata(path("environ")).unwrap().uid() == 0
            } else {
                fs::read_link(path("exe")).is_err()
            }
        };
        let start = Instant::now();
        // It waits for its input, which may be confidential.
        while !cannot_be_traced() {
            assert!(start.elapsed() < LIMIT, "the child can be traced");
            sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::read_to_string(path("oom_score_adj")).unwrap().trim(), "1000");
        let limits = fs::read_to_string(path("limits")).unwrap();
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace()
                .take(2)
                .map(|number| number.parse().unwrap_or(u64::MAX))
                .collect::<Vec<_>>()
        };
        assert_eq!(limit("Max core file size"), [0, 0], "{limits}");
        assert_eq!(limit("Max cpu time"), [1, 2], "{limits}");
        let (data, stack) = (limit("Max data size")[1], limit("Max stack size")[1]);
        assert!(data + stack <= (budget::CHECK as u64) << 20, "{limits}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The user's limit of cores does not count.
    #[test]
    fn child_at_its_memory_limit_writes_no_core() {
        let folder = std::env::temp_dir().join(format!("confrev-core-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new("/bin/sh")
            .args(["-c", "ulimit -c unlimited; exec \"$0\" \"$1\"", PROGRAM, COMMAND])
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let entries = bomb()["data"].clone();
        let job = json!({"schema": "true", "entries": entries, "confidential": false});
        child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
        let ended = child.wait().unwrap();
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let _ = fs::remove_dir_all(&folder);
        assert_eq!(ended.signal(), Some(6), "it aborts: {ended}");
        assert!(!ended.core_dumped() && files.is_empty(), "{ended} {files:?}");
    }
}
