//! Certificates by cert-manager: its own controllers issue them, write the CA into the webhooks, and renew both. Of the
//! rest of a cluster, the test does what the kubelet would: it mounts the Secret.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::{CertManager, Program, wait_for};
use serde_json::{Value, json};

use crate::bare::{Bare, LIMIT, apply, reads, web};
use crate::mount::Mount;

const CERTIFICATES: &str = "cert-manager.io/v1/certificates";
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

struct Issued<'a> {
    bare: &'a Bare,
    name: &'static str,
}

impl Issued<'_> {
    fn path(&self, more: &str) -> String {
        format!("/apis/cert-manager.io/v1/namespaces/confrev/certificates/{}{more}", self.name)
    }

    /// Waits until cert-manager is done with it.
    #[track_caller]
    fn wait_ready(&self) {
        wait_for(&format!("the Certificate {} to be ready", self.name), LIMIT, || {
            let found = self.bare.cluster.get(CERTIFICATES, "confrev", self.name).ok_or("there is none")?;
            let generation = &found["metadata"]["generation"];
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is = |kind: &str| conditions.iter().find(|c| c["type"] == kind && c["status"] == "True");
            let ready = is("Ready").is_some_and(|c| c["observedGeneration"] == *generation);
            if ready && is("Issuing").is_none() { Ok(()) } else { Err(found["status"].to_string()) }
        });
    }

    /// What its Secret holds.
    #[track_caller]
    fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let secret = self.bare.cluster.get("secret", "confrev", self.name).expect("there is the Secret");
        let decoded = |file| STANDARD.decode(secret["data"][file].as_str().unwrap_or_default()).unwrap();
        FILES.map(|file| (file, decoded(file))).to_vec()
    }

    /// Has it issued anew, as `cmctl renew` does, and waits for that.
    #[track_caller]
    fn renew(&self) {
        let before = self.files();
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by hand",
            "lastTransitionTime": now,
        });
        let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": condition}]);
        let (code, answer) =
            self.bare.cluster.api().patch(&self.path("/status"), "application/json-patch+json", &patch);
        assert_eq!(code, 200, "{answer}");
        wait_for(&format!("{} to be issued anew", self.name), LIMIT, || {
            (self.files()[0] != before[0]).then_some(())
        });
        self.wait_ready();
    }

    /// Takes its Secret away, and with it the key; waits for another.
    #[track_caller]
    fn replace(&self) {
        let uid = || {
            self.bare.cluster.get("secret", "confrev", self.name)?["metadata"]["uid"]
                .as_str()
                .map(str::to_owned)
        };
        let before = uid();
        self.bare.cluster.kubectl(&["delete", "secret", self.name, "--namespace=confrev"]).run().ok();
        wait_for(&format!("another Secret {}", self.name), LIMIT, || {
            uid().filter(|now| before.as_ref() != Some(now))
        });
        self.wait_ready();
    }
}

fn borrowed<'a>(files: &'a [(&'static str, Vec<u8>)]) -> Vec<(&'a str, &'a [u8])> {
    files.iter().map(|(name, content)| (*name, content.as_slice())).collect()
}

/// Writes that confrev must answer, one after the other until told to stop: how many were admitted, and the first that
/// was not.
fn written(bare: &Bare, stop: &AtomicBool, count: &AtomicU32) -> Option<String> {
    let mut deployment = web("app:1", "A")["items"][1].clone();
    deployment["metadata"]["name"] = json!("never-stored");
    while !stop.load(Ordering::Relaxed) {
        let path = "/apis/apps/v1/namespaces/default/deployments?dryRun=All";
        match bare.cluster.api().post(path, &deployment) {
            (201, _) => count.fetch_add(1, Ordering::Relaxed),
            (code, answer) => return Some(format!("{code} {answer}")),
        };
    }
    None
}

#[test]
fn cert_manager_issues_what_confrev_serves_and_injects_the_ca_and_no_write_fails_while_both_are_renewed() {
    let bare = Bare::new();
    let _cert_manager = CertManager::start(bare.cluster);
    bare.install(&[("certificates.mode", json!("cert-manager"))]);
    let [serving, authority] = ["confrev-tls", "confrev-ca"].map(|name| Issued { bare: &bare, name });
    serving.wait_ready();

    // Outside the cluster there is no Service: the API server calls an address, which has to be in the certificate.
    let program = Program::new(bare.cluster, std::path::Path::new(env!("CARGO_BIN_EXE_confrev")));
    let url = ("webhookUrl", json!(program.webhook_url()));
    bare.release("upgrade", &[("certificates.mode", json!("cert-manager")), url, ("replicas", json!(0))])
        .ok();
    let address = json!({"spec": {"ipAddresses": ["127.0.0.1"]}});
    let (code, answer) =
        bare.cluster.api().patch(&serving.path(""), "application/merge-patch+json", &address);
    assert_eq!(code, 200, "{answer}");
    serving.wait_ready();

    let mut mount = Mount::new(&borrowed(&serving.files()));
    let mut program = program.with_certificates(mount.dir());
    // Ready, and called: the API server trusts what was injected.
    program.start();
    let namespace = bare.cluster.namespace("issued");
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    let snapshot = reads(&bare, namespace.name());
    assert!(snapshot.starts_with("demo-"), "{snapshot}");

    let (stop, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let failed = thread::scope(|scope| {
        let writer = scope.spawn(|| written(&bare, &stop, &count));
        let _stopped = Stopped(&stop);
        let mut served_anew = || {
            let loaded = || program.metric("confrev_certificate_reloads_total{outcome=\"loaded\"}");
            let before = loaded();
            serving.renew();
            mount.swap(&borrowed(&serving.files()));
            wait_for("the renewed certificate to be served", LIMIT, || (loaded() > before).then_some(()));
            let so_far = count.load(Ordering::Relaxed);
            wait_for("writes under it", LIMIT, || {
                (writer.is_finished() || count.load(Ordering::Relaxed) > so_far + 20).then_some(())
            });
        };
        served_anew();
        // The authority as well: what it signed before holds until it is replaced.
        authority.renew();
        served_anew();
        // With another key: the one before is trusted beside it.
        authority.replace();
        served_anew();
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("it has not panicked")
    });
    assert_eq!(failed, None, "after {} writes", count.load(Ordering::Relaxed));
    // Beside the one before, which cert-manager keeps for as long as it is valid.
    let wanted = String::from_utf8(serving.files()[2].1.clone()).unwrap();
    wait_for("the renewed authority to be in all webhooks", LIMIT, || {
        let webhooks = bare.webhooks();
        let of = |webhook: &Value| {
            let bundle = STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default());
            bundle.is_ok_and(|bundle| String::from_utf8_lossy(&bundle).contains(wanted.trim()))
        };
        let all = !webhooks.is_empty() && webhooks.iter().all(of);
        if all { Ok(()) } else { Err(format!("{webhooks:?}")) }
    });

    program.kill();
    bare.uninstall().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}

/// Ends the writer, also where the test fails.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
