//! AnalysisRuns of waves: how one is created, what its absence means, and which runs are ended and deleted.

use confrev::{
    annotations,
    cluster::ApiError,
    controller::{Action, Analysed, Outcome, execute},
    resolve::{Analysis, RunState},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    api_server::{Race, Server},
    controller::{digest, name},
};

const RUN: &str = "ns/analysisruns/run";
const MISSING_RIGHT: &str = r#"analysisruns.argoproj.io "run" is forbidden: User "confrev" cannot get it"#;

/// An API server with a template.
fn server() -> Server {
    let server = Server::default();
    let spec = json!({"metrics": [{"name": "errors"}], "args": [{"name": "wave"}, {"name": "source"}]});
    server.put_at("ns/analysistemplates/sound", json!({"metadata": {"name": "sound"}, "spec": spec}));
    server
}

/// A run of the source, with the uid "u".
fn run(name: &str, phase: &str, second: usize) -> Value {
    json!({
        "metadata": {
            "name": name,
            "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-01-02T03:04:{second:02}Z"),
            "ownerReferences": [{"uid": "u"}],
        },
        "spec": {},
        "status": {"phase": phase},
    })
}

async fn analyse(server: &Server) -> Result<Analysed, ApiError> {
    let action = Action::Analyse {
        source: name("demo"),
        uid: "u".to_owned(),
        digest: digest("green"),
        analysis: Analysis { cluster: false, name: "sound".into() },
        wave: 2,
        run: "run".into(),
    };
    match execute(&server.api(), action, Timestamp::UNIX_EPOCH).await? {
        Outcome::Analysed(found) => {
            assert_eq!((&*found.run.name, found.wave), ("run", 2));
            Ok(found)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn run_is_created_once_from_its_template() {
    let first = server();
    let found = analyse(&first).await.unwrap();
    assert_eq!((found.run.state, found.is_new), (RunState::Running, true));
    let created = first.get(RUN).unwrap();
    assert_eq!(created["metadata"]["labels"][annotations::MANAGED_BY], annotations::MANAGER);
    assert_eq!(created["metadata"]["labels"][annotations::SOURCE], "demo");
    assert_eq!(created["metadata"]["annotations"][annotations::SOURCE_NAME], "demo");
    assert_eq!(created["metadata"]["annotations"][annotations::DIGEST], digest("green").to_string());
    assert_eq!(created["metadata"]["ownerReferences"][0]["uid"], "u");
    let args = json!([{"name": "wave", "value": "2"}, {"name": "source", "value": "demo"}]);
    assert_eq!(created["spec"], json!({"metrics": [{"name": "errors"}], "args": args}));
    let again = analyse(&first).await.unwrap();
    assert_eq!((again.run.state, again.is_new), (RunState::Running, false));

    let raced = server();
    raced.plan(&format!("POST {RUN}"), Race::Created(run("run", "Running", 1)));
    let found = analyse(&raced).await.unwrap();
    assert_eq!((found.run.state, found.is_new), (RunState::Running, false), "another leader created it");

    let ended = server();
    ended.put_at(RUN, run("run", "Successful", 1));
    let found = analyse(&ended).await.unwrap();
    assert_eq!((found.run.state, found.is_new), (RunState::Successful, false));
    assert_eq!(ended.writes(), [""; 0]);
}

#[tokio::test]
async fn reason_for_no_run_is_reported() {
    for (call, code, message, why) in [
        ("GET", 403, MISSING_RIGHT, Some("does the chart set analysis.enabled?")),
        ("POST", 403, MISSING_RIGHT, Some("does the chart set analysis.enabled?")),
        ("POST", 403, "exceeded quota", Some("exceeded quota")),
        (
            "POST",
            404,
            "the server could not find the requested resource",
            Some("is Argo Rollouts installed?"),
        ),
        ("POST", 422, "spec.metrics is required", Some("spec.metrics is required")),
        ("GET", 500, "etcd leader changed", None),
        ("POST", 500, "etcd leader changed", None),
        ("POST", 429, "too many requests", None),
    ] {
        let server = server();
        server.plan(&format!("{call} {RUN}"), Race::Refused(code, message));
        let found = analyse(&server).await.map(|found| (found.run.state, found.is_new));
        match (found, why) {
            (Ok((RunState::Unavailable(found), false)), Some(why)) => assert!(found.contains(why), "{found}"),
            (Err(error), None) => assert!(error.may_pass(), "{error}"),
            (found, _) => panic!("{call} {code} {message}: {found:?}"),
        }
    }
    let nested = json!({"metadata": {}, "spec": {"templates": [{"templateName": "other"}]}});
    for (template, why) in
        [(None, "AnalysisTemplate \"sound\" does not exist"), (Some(nested), "not supported")]
    {
        let server = Server::default();
        if let Some(template) = template {
            server.put_at("ns/analysistemplates/sound", template);
        }
        let found = analyse(&server).await.unwrap();
        let RunState::Unavailable(found) = found.run.state else { panic!("{:?}", found.run) };
        assert!(found.contains(why), "{found}");
        assert_eq!(server.get(RUN), None);
    }
}

/// Another client may delete a run, or create another one of its name, meanwhile.
#[tokio::test]
async fn new_run_ends_and_replaces_older_ones() {
    let calls =
        ["PATCH ns/analysisruns/running", "DELETE ns/analysisruns/old-11", "DELETE ns/analysisruns/old-10"];
    let with_older = || {
        let server = server();
        for second in 10..22 {
            let name = format!("old-{second}");
            server.put_at(&format!("ns/analysisruns/{name}"), run(&name, "Failed", second));
        }
        server.put_at("ns/analysisruns/running", run("running", "Running", 5));
        server
    };
    let server = with_older();
    analyse(&server).await.unwrap();
    assert_eq!(server.writes()[1..], calls);
    assert_eq!(server.get("ns/analysisruns/running").unwrap()["spec"]["terminate"], true);
    for call in calls {
        for (code, is_tolerated) in [(404, true), (409, true), (500, false)] {
            let server = with_older();
            server.plan(call, Race::Refused(code, "raced"));
            let found = analyse(&server).await;
            assert_eq!(found.is_ok(), is_tolerated, "{call} {code}: {found:?}");
            let others = calls.iter().filter(|other| **other != call);
            let are_done = others.clone().all(|other| server.writes().contains(&(*other).to_owned()));
            assert!(are_done || !is_tolerated, "{call} {code}: {:?}", server.writes());
        }
    }
}

#[tokio::test]
async fn only_running_runs_are_terminated() {
    let end = || Action::EndAnalysis { source: name("demo"), uid: "u".to_owned(), run: "run".into() };
    let mut of_other = run("run", "Running", 1);
    of_other["metadata"]["ownerReferences"][0]["uid"] = json!("v");
    let running = || Some(run("run", "Running", 1));
    for (what, stored, race, writes, is_ended) in [
        ("it runs", running(), None, 1, true),
        ("it has ended", Some(run("run", "Failed", 1)), None, 0, true),
        ("it is another source's", Some(of_other), None, 0, true),
        ("it does not exist", None, None, 0, true),
        ("confrev may not read it", running(), Some(("GET", 403, MISSING_RIGHT)), 0, true),
        ("it cannot be read", running(), Some(("GET", 500, "etcd leader changed")), 0, false),
        ("it was deleted", running(), Some(("PATCH", 404, "NotFound")), 0, true),
        ("another one has its name", running(), Some(("PATCH", 409, "Conflict")), 0, true),
        ("confrev may not write it", running(), Some(("PATCH", 403, MISSING_RIGHT)), 0, false),
    ] {
        let server = server();
        if let Some(stored) = stored {
            server.put_at(RUN, stored);
        }
        if let Some((call, code, message)) = race {
            server.plan(&format!("{call} {RUN}"), Race::Refused(code, message));
        }
        let outcome = execute(&server.api(), end(), Timestamp::UNIX_EPOCH).await;
        assert_eq!(matches!(outcome, Ok(Outcome::AnalysisEnded(_))), is_ended, "{what}: {outcome:?}");
        assert_eq!(server.writes(), vec![format!("PATCH {RUN}"); writes], "{what}");
    }
}
