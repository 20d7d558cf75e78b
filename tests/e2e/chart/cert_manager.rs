//! Certificates from cert-manager: its own controllers issue them, write the CA into the webhooks, and renew both. The test
//! mounts the Secret, as the kubelet would.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::{CertManager, Program, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, apply, reads, web};
use crate::mounted_secret::Mount;

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

    /// Waits until the Certificate is ready.
    #[track_caller]
    fn wait_ready(&self) {
        wait_for(&format!("the Certificate {} to be ready", self.name), LIMIT, || {
            let found =
                self.bare.cluster.get(CERTIFICATES, "confrev", self.name).ok_or("it does not exist")?;
            let generation = &found["metadata"]["generation"];
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is = |kind: &str| conditions.iter().find(|c| c["type"] == kind && c["status"] == "True");
            let ready = is("Ready").is_some_and(|c| c["observedGeneration"] == *generation);
            if ready && is("Issuing").is_none() { Ok(()) } else { Err(found["status"].to_string()) }
        });
    }

    /// The files in the Secret of the Certificate.
    #[track_caller]
    fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let secret = self.bare.cluster.get("secret", "confrev", self.name).expect("the Secret exists");
        let decoded = |file| STANDARD.decode(secret["data"][file].as_str().unwrap_or_default()).unwrap();
        FILES.map(|file| (file, decoded(file))).to_vec()
    }

    /// Renews the Certificate, as `cmctl renew` does, and waits for the result.
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
        wait_for(&format!("{} to be issued again", self.name), LIMIT, || {
            (self.files()[0] != before[0]).then_some(())
        });
        self.wait_ready();
    }

    /// Deletes the Secret, which has the key, and waits for another.
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

/// Sends writes that confrev must answer, one after the other, until `stop` is set. Counts the admitted ones, and returns
/// the first refusal.
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

/// cert-manager issues the certificate that confrev serves, and injects the CA.
#[test]
fn no_write_fails_while_cert_manager_renews_certificates() {
    let bare = Bare::new();
    let _cert_manager = CertManager::start(bare.cluster);
    bare.install(&[("certificates.mode", json!("cert-manager"))]);
    let [serving, authority] = ["confrev-tls", "confrev-ca"].map(|name| Issued { bare: &bare, name });
    serving.wait_ready();

    // Outside the cluster, confrev has no Service: the API server calls an address, which the certificate must include.
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
    // The API server trusts the injected CA, since it calls confrev.
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
        // Renew the CA as well. Certificates that it signed before remain valid.
        authority.renew();
        served_anew();
        // Give the CA another key. The previous key stays trusted.
        authority.replace();
        served_anew();
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer has not panicked")
    });
    assert_eq!(failed, None, "after {} writes", count.load(Ordering::Relaxed));
    // The previous CA stays beside it, since cert-manager keeps it for as long as it is valid.
    let wanted = String::from_utf8(serving.files()[2].1.clone()).unwrap();
    wait_for("the renewed CA to be in all webhooks", LIMIT, || {
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

/// Stops the writer, also if the test fails.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
