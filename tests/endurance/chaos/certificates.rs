//! Faults of the CA that confrev's replicas share: its loss, and its expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::wait_for;
use http::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;

use crate::kind::text;
use crate::replicas::Replicas;
use crate::site::{MERGE, Site};

const SECRET: &str = "/api/v1/namespaces/confrev/secrets/confrev-ca";
/// When the certificate in use ends, in seconds since 1970.
const END: &str = "confrev_certificate_expiry_timestamp_seconds";
/// Remaining lifetime of the expiring CA. The next CA signs 30 s after the API servers know it.
const LEFT: Duration = Duration::from_secs(90);
/// Time limit until all replicas serve certificates of another CA.
const LIMIT: Duration = Duration::from_mins(3);

/// Deletes the Secret: the replicas change to another CA by the usual steps. Returns 0 if the Secret could not be deleted.
pub(crate) fn lost(site: &Site, replicas: &mut Replicas) -> usize {
    let before = ends(replicas);
    let deleted = site.until_done("the loss of the CA", || {
        site.try_write(&Method::DELETE, SECRET, ("application/json", &json!({})), false)
    });
    wait_for("certificates of another CA", LIMIT, || {
        replicas.tend();
        let now = ends(replicas);
        let all = now.iter().zip(&before).all(|(now, before)| now > before);
        if all { Ok(()) } else { Err(format!("{now:?}")) }
    });
    usize::from(deleted.is_some())
}

/// Starts the replicas, one after the other, with a CA that expires soon. They change to another CA before it expires. Returns 0
/// if the CA could not be written.
pub(crate) fn near_their_end(site: &Site, replicas: &mut Replicas) -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let end = now + LEFT;
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    // More than four fifths of its lifetime have passed.
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + now.saturating_sub(10 * LEFT), epoch + end);
    let certificate = STANDARD.encode(params.self_signed(&key).unwrap().pem());
    let data = json!({
        "tls.crt": certificate, "tls.key": STANDARD.encode(key.serialize_pem()), "ca.crt": certificate,
        "next.crt": null, "next.key": null, "since": null,
    });
    let written = site.write(&Method::PATCH, SECRET, (MERGE, &json!({"data": data})), false);
    for index in 0..replicas.programs.len() {
        replicas.programs[index].stop();
        replicas.programs[index].launch(&[]);
        replicas.tend_for(Duration::from_secs(2));
    }
    wait_for("certificates of a CA that does not expire soon", LIMIT, || {
        replicas.tend();
        if let Some(program) = replicas.programs.iter().find(|program| !program.is_ready()) {
            return Err(program.log_tail());
        }
        let now = ends(replicas);
        let all = now.iter().all(|now| *now > end.as_secs_f64() + 1.0);
        if all { Ok(()) } else { Err(format!("{now:?}, not after {end:?}")) }
    });
    // According to the Secret, the next CA signs since a time before the first CA expired.
    let Some(secret) = site.until_done(SECRET, || site.get(SECRET)) else { return 0 };
    let since = STANDARD.decode(text(&secret["data"]["since"])).unwrap_or_default();
    let since = String::from_utf8_lossy(&since).parse().map_or(i64::MAX, jiff::Timestamp::as_second);
    if u64::try_from(since).unwrap() >= end.as_secs() {
        site.lost("contained", "the CA was replaced after it had expired");
    }
    usize::from(written.is_some())
}

/// The expiry times of the certificates of all replicas.
fn ends(replicas: &Replicas) -> Vec<f64> {
    replicas.programs.iter().map(|program| program.metric(END)).collect()
}
