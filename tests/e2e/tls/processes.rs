//! The program itself: several instances behind one address, and client certificates.
use std::path::Path;
use std::process::Command;

use confrev_controlplane::Program;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::client_certificates::{ask, client};
use crate::control_plane::{API_SERVER, NAMESPACE, SECRET, Stage};
use crate::mounted_secret::Mount;
use crate::test_cas::{Authority, Identity};
use crate::write_load::Load;

/// The bundle that clients trust.
async fn bundle(stage: &Stage) -> Vec<u8> {
    let secrets: Api<Secret> = Api::namespaced(stage.client().await, NAMESPACE);
    secrets.get(SECRET).await.unwrap().data.unwrap().remove("ca.crt").unwrap().0
}

/// Starts `count` instances at the same time, and puts them behind the Service together with `others`.
pub(crate) async fn start(stage: &Stage, count: usize, others: &[Program], options: &[&str]) -> Vec<Program> {
    let (plane, service) = (stage.plane, stage.service);
    let options: Vec<String> = options.iter().map(ToString::to_string).collect();
    let make = move || {
        let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let program = || Program::new(plane, binary).options(&options).behind(&service.url());
        (0..count).map(|_| program()).collect::<Vec<_>>()
    };
    let programs = tokio::task::spawn_blocking(make).await.unwrap();
    // Without others, no request can succeed before these are ready. So they may be behind the Service already.
    if others.is_empty() {
        service.behind(&addresses(&programs));
    }
    let starts = programs.into_iter().map(|mut program| {
        tokio::task::spawn_blocking(move || {
            program.start();
            program
        })
    });
    let started: Vec<_> = futures::future::join_all(starts).await.into_iter().map(Result::unwrap).collect();
    service.behind(&[addresses(others), addresses(&started)].concat());
    started
}

fn addresses(programs: &[Program]) -> Vec<std::net::SocketAddr> {
    programs.iter().map(Program::address).collect()
}

/// Two instances start together, and two others replace them. No write fails.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_instances_share_one_ca() {
    let stage = Stage::take().await;
    let (api, namespace) = (stage.client().await, stage.namespace().await);
    let first = start(&stage, 2, &[], &[]).await;
    let shared = bundle(&stage).await;
    assert_eq!(String::from_utf8_lossy(&shared).matches("BEGIN CERTIFICATE").count(), 1);
    let load = Load::start(&api, namespace.name()).await;
    load.more(40).await;
    let next = start(&stage, 2, &first, &[]).await;
    load.more(40).await;
    stage.service.behind(&addresses(&next));
    let stops = first.into_iter().map(|mut program| tokio::task::spawn_blocking(move || program.stop()));
    for stopped in futures::future::join_all(stops).await {
        stopped.unwrap();
    }
    load.more(40).await;
    load.end().await;
    assert!(bundle(&stage).await == shared, "no instance created another CA");
}

/// It is identified by its client certificate.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_api_server_is_answered() {
    let stage = Stage::take().await;
    let (api, namespace) = (stage.client().await, stage.namespace().await);
    let mount = Mount::new(&[("ca.crt", stage.clients.pem.as_bytes())]);
    let file = mount.dir().join("ca.crt");
    let file = format!("--client-ca={}", file.display());
    let name = format!("--client-name={API_SERVER}");
    let programs = start(&stage, 1, &[], &[&file, "--client-name=somebody", &name]).await;
    let load = Load::start(&api, namespace.name()).await;
    load.end().await;

    let (program, trusted) = (&programs[0], bundle(&stage).await);
    let answer = async |identity: Option<&Identity>, version| {
        ask(program.address(), &client(&trusted, identity, version)).await
    };
    let own = stage.clients.client(API_SERVER, &[]);
    let strangers = [
        None,
        Some(Authority::new().client(API_SERVER, &[])),
        Some(stage.clients.client("kubelet", &[])),
        Some(stage.clients.server(API_SERVER)),
    ];
    for version in [&TLS12, &TLS13] {
        assert_eq!(&answer(Some(&own), version).await.unwrap(), b"HTTP/1.1 404");
        for stranger in &strangers {
            answer(stranger.as_ref(), version).await.expect_err("refused in the handshake");
        }
    }
    // The admin port requires no certificate.
    let metrics =
        tokio::task::block_in_place(|| program.metric("confrev_certificate_expiry_timestamp_seconds"));
    assert!(metrics > 0.0);
}

/// A server that is configured to require client certificates never starts without that check.
#[test]
fn rejects_options_that_need_others_or_are_wrong() {
    // An item that begins with dashes is an option, any other is a variable.
    let cases: [(&[&str], &str); 17] = [
        (&["--client-name=a"], "--client-ca"),
        (&["--client-ca=/x", "--client-name="], "--client-name"),
        (&["CONFREV_CLIENT_NAME=a"], "--client-ca"),
        (&["CONFREV_CLIENT_CA=/x", "CONFREV_CLIENT_NAME="], "--client-name"),
        (&["CONFREV_CLIENT_CA="], "--client-ca"),
        (&["--record-users"], "--client-ca"),
        (&["CONFREV_RECORD_USERS=true"], "--client-ca"),
        (&["--notify=ftp://example.com/hook"], "--notify"),
        (&["--notify=hooks.example.com"], "--notify"),
        (&["CONFREV_NOTIFY="], "--notify"),
        (&["--notify-key=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "--notify <URL>"),
        (&["--notify=http://a", "--notify-key=secret"], "whsec_"),
        (&["--notify=http://a", "--notify-format=teams"], "--notify-format"),
        (&["--notify=http://a", "--notify-source=my cluster"], "--notify-source"),
        (&[r#"--strategies={"own": {"bake": "soon"}}"#], "strategy \"own\""),
        (&[r#"--defaults={"min-interval": "soon"}"#], "--defaults: min-interval: \"soon\""),
        (&[r#"CONFREV_DEFAULTS={"keep": 3}"#], "--defaults: \"keep\" is not inherited"),
    ];
    for (given, named) in cases {
        let mut confrev = Command::new(env!("CARGO_BIN_EXE_confrev"));
        confrev.args(["serve", "--self-signed", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
        confrev.args(given.iter().filter(|given| given.starts_with("--")));
        confrev.envs(
            given.iter().filter(|given| !given.starts_with("--")).filter_map(|given| given.split_once('=')),
        );
        confrev.env("KUBECONFIG", "/nonexistent");
        let output = confrev.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{given:?}: {said}");
    }
}
