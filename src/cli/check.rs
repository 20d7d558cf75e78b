//! `kubectl confrev check`: whether confrev works in this cluster, with a hint for each problem.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    failure::Failure,
    manifests::{self, ManifestFlags},
    objects::{label, text},
    output::{self, Colour, OutputFlag, OutputFormat, Text},
    target::{Flags, Target, UNANSWERED},
};
use crate::{admission::MARKED_WORKLOADS, annotations, tls};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
/// A CA that expires sooner than this gives a warning.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How long a failed check is repeated. After an installation or an upgrade, a new replica is ready a few seconds before it
/// has the Lease and has written its CA into the webhook configurations. A killed leader is replaced after the duration of the
/// Lease: that is a failure that the command should report.
const SETTLE: Duration = Duration::from_secs(6);
/// The pause before a failed check is repeated.
const PAUSE: Duration = Duration::from_millis(250);
/// Some of the rights that confrev always needs: verb, group, resource.
const RIGHTS: [(&str, &str, &str); 6] = [
    ("get", "", "configmaps"),
    ("create", "", "configmaps"),
    ("list", "apps", "replicasets"),
    ("patch", "apps", "deployments"),
    ("patch", "argoproj.io", "rollouts"),
    ("list", "", "namespaces"),
];

/// Options of `check`.
#[derive(Debug, Args)]
pub(super) struct CheckOptions {
    // Also checks their order: a workload should come after the ConfigMaps and Secrets that it uses.
    #[command(flatten)]
    manifests: ManifestFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// The grade of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    Warning,
    Failed,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct CheckedPoint {
    check: &'static str,
    grade: Grade,
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    hint: &'static str,
}

/// A finding without its name: grade, message, hint.
type CheckResult = (Grade, String, &'static str);

fn good(message: impl Into<String>) -> CheckResult {
    (Grade::Ok, message.into(), "")
}

fn warning(message: impl Into<String>, hint: &'static str) -> CheckResult {
    (Grade::Warning, message.into(), hint)
}

fn bad(message: impl Into<String>, hint: &'static str) -> CheckResult {
    (Grade::Failed, message.into(), hint)
}

/// Runs the command.
pub(super) async fn run(options: &CheckOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    // Without an API server there is nothing to check.
    let version = target.get("/version").await?.unwrap_or_default();
    let home = &target.home;
    let (webhooks, ca) = until_settled(async || {
        let webhooks = Webhooks::read(&target).await;
        let ca = webhooks.as_ref().map(authority).map_err(said);
        // Nothing writes a missing configuration.
        let is_settled =
            webhooks.as_ref().is_ok_and(|webhooks| webhooks.missing.is_some()) || !is_failed(&ca);
        ((webhooks, ca), is_settled)
    })
    .await;
    let first_renewal = OnceLock::new();
    let leader = until_settled(async || {
        let found = leader(&target, home, &first_renewal).await;
        let is_settled =
            webhooks.as_ref().is_ok_and(|webhooks| webhooks.missing.is_some()) || !is_failed(&found);
        (found, is_settled)
    })
    .await;
    let known = partly_known(&target, home).await;
    let mut checks: Vec<(&'static str, Result<CheckResult, Failure>)> = vec![
        ("api-server", Ok(good(format!("{} at {}", text(&version, "/gitVersion"), target.url)))),
        ("webhooks", webhooks.as_ref().map(webhook_configurations).map_err(said)),
        ("ca", ca),
        ("replicas", replicas(&target, home).await),
        ("leader", leader),
        ("namespaces", known),
        ("guard", guard(&target).await),
        ("rights", rights(&target, home).await),
        (
            "admission",
            admission(&target, webhooks.as_ref().map_or(&[][..], |webhooks| &webhooks.found)).await,
        ),
    ];
    if !options.manifests.is_empty() {
        let all = options.manifests.read()?;
        checks.extend(order(&manifests::wrong_orders(&target.kinds, &all)).map(|found| ("order", Ok(found))));
    }
    let findings: Vec<_> = checks.into_iter().map(|(check, found)| finding(check, found)).collect();
    match options.output.output {
        OutputFormat::Json => output::json(&findings)?,
        OutputFormat::Yaml => output::yaml(&[&findings])?,
        OutputFormat::Name => {
            let names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
            output::print(&names.iter().collect())?;
        }
        OutputFormat::Table | OutputFormat::Wide => {
            let mut text = Text::default();
            for finding in &findings {
                push_lines(&mut text, finding);
            }
            output::print(&text)?;
        }
    }
    let graded = |grade: Grade| findings.iter().filter(|finding| finding.grade == grade).count();
    let failed = graded(Grade::Failed);
    if graded(Grade::Warning) + 1 == findings.len() && failed == 0 {
        // Only the API server's answer is certain. A pipeline must not take that for success.
        Err(Failure::Refused(format!(
            "{} of {} checks could not be made",
            findings.len() - 1,
            findings.len()
        )))
    } else if failed > 0 {
        Err(Failure::No(format!("{failed} of {} checks failed", findings.len())))
    } else {
        Ok(())
    }
}

/// Repeats a check until it is settled or [`SETTLE`] has passed. Returns its last result.
async fn until_settled<T>(check: impl AsyncFn() -> (T, bool)) -> T {
    let end = Instant::now() + SETTLE;
    loop {
        let (found, is_settled) = check().await;
        if is_settled || Instant::now() >= end {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether a check failed, and a moment later may not fail.
fn is_failed(found: &Result<CheckResult, Failure>) -> bool {
    matches!(found, Ok((Grade::Failed, ..)))
}

/// Whether kubectl applies every workload after its sources.
fn order(warnings: &[String]) -> impl Iterator<Item = CheckResult> {
    const HINT: &str = "give the file of the ConfigMap a name that sorts first, or put both into one file";
    let good = warnings.is_empty().then(|| good("every workload comes after the sources that it uses"));
    good.into_iter().chain(warnings.iter().map(|text| warning(text.clone(), HINT)))
}

/// A copy of the failure, for a second check that uses the same call.
fn said(failure: &Failure) -> Failure {
    Failure::Refused(failure.to_string())
}

fn finding(check: &'static str, found: Result<CheckResult, Failure>) -> CheckedPoint {
    let (grade, message, hint) = found.unwrap_or_else(|failure| match failure {
        Failure::Refused(message) => warning(message, "use an identity that may read this, or --as"),
        other => bad(other.to_string(), ""),
    });
    CheckedPoint { check, grade, message, hint }
}

fn push_lines(text: &mut Text, finding: &CheckedPoint) {
    let (colour, mark) = match finding.grade {
        Grade::Ok => (Colour::Green, "ok     "),
        Grade::Warning => (Colour::Dim, "warning"),
        Grade::Failed => (Colour::Red, "failed "),
    };
    text.push_parts(&[(Some(colour), mark), (None, &format!("  {:12} {}", finding.check, finding.message))]);
    if !finding.hint.is_empty() {
        text.push(&format!("{:22}{}", "", finding.hint));
    }
}

/// The objects of the policies that decide while confrev does not answer, by resource.
const POLICIES: [(&str, &[&str]); 4] = [
    ("mutatingadmissionpolicies", &["confrev-carry"]),
    ("mutatingadmissionpolicybindings", &["confrev-carry-own", "confrev-carry-namespaced"]),
    ("validatingadmissionpolicies", &["confrev-unresolved"]),
    ("validatingadmissionpolicybindings", &["confrev-unresolved-own", "confrev-unresolved-namespaced"]),
];

/// The webhooks of both configurations.
#[derive(Debug, Default)]
struct Webhooks {
    found: Vec<Value>,
    /// Which objects of [`POLICIES`] are missing; `None` if the webhooks do not rely on them.
    missing_policies: Option<Vec<&'static str>>,
    /// The first configuration that does not exist, and what that means.
    missing: Option<&'static str>,
}

impl Webhooks {
    async fn read(target: &Target) -> Result<Self, Failure> {
        let mut webhooks = Self::default();
        for (resource, missing) in [
            (
                "mutatingwebhookconfigurations",
                "MutatingWebhookConfiguration confrev does not exist: nothing is resolved",
            ),
            (
                "validatingwebhookconfigurations",
                "ValidatingWebhookConfiguration confrev does not exist: sources are not checked when they are written",
            ),
        ] {
            match target.get(&format!("{ADMISSION}/{resource}/confrev")).await? {
                None => webhooks.missing = webhooks.missing.or(Some(missing)),
                Some(found) => {
                    webhooks.found.extend(found["webhooks"].as_array().into_iter().flatten().cloned());
                }
            }
        }
        if webhooks.found.iter().any(relies_on_policies) {
            let mut missing = Vec::new();
            for (resource, name) in
                POLICIES.iter().flat_map(|(of, names)| names.iter().map(move |name| (of, name)))
            {
                if target.get(&format!("{ADMISSION}/{resource}/{name}")).await?.is_none() {
                    missing.push(*name);
                }
            }
            webhooks.missing_policies = Some(missing);
        }
        Ok(webhooks)
    }
}

/// Whether a webhook expects that the policies mark each write.
fn relies_on_policies(webhook: &Value) -> bool {
    let place = ["/clientConfig/service/path", "/clientConfig/url"].map(|pointer| text(webhook, pointer));
    place.iter().any(|place| place.ends_with(MARKED_WORKLOADS))
}

fn webhook_configurations(Webhooks { found: webhooks, missing, missing_policies }: &Webhooks) -> CheckResult {
    if let Some(missing) = missing {
        return bad(
            *missing,
            "install confrev: kubectl apply -f manifests/self-signed.yaml, or its Helm chart",
        );
    }
    match missing_policies.as_deref() {
        None => {}
        Some([]) => {
            return good(format!(
                "{} webhooks; while confrev is down, workloads keep their snapshots (confrev-carry)",
                webhooks.len()
            ));
        }
        Some([missing, ..]) => {
            return bad(
                format!("the policy or binding {missing} does not exist, and the webhooks rely on it"),
                "while confrev is down, opted-in workloads are admitted unresolved: apply manifests/carry.yaml, or the Helm chart",
            );
        }
    }
    let strict = webhooks.iter().filter(|webhook| text(webhook, "/failurePolicy") == "Fail").count();
    if strict == 0 {
        return warning(
            format!("{} webhooks, none with failurePolicy Fail", webhooks.len()),
            "while confrev is down, opted-in workloads are admitted unresolved",
        );
    }
    good(format!("{} webhooks, {strict} with failurePolicy Fail", webhooks.len()))
}

/// The CAs that the API server trusts for confrev's webhooks, and when they expire.
fn authority(webhooks: &Webhooks) -> CheckResult {
    let webhooks = &webhooks.found;
    let mut ends = Vec::new();
    for webhook in webhooks {
        let Some(end) = tls::bundle_end(text(webhook, "/clientConfig/caBundle")) else {
            let name = text(webhook, "/name");
            return bad(
                format!("{name} has no readable caBundle"),
                "is confrev running (self-signed), or cert-manager's cainjector?",
            );
        };
        ends.push(end);
    }
    let Some(end) = ends.into_iter().min() else { return bad("no webhooks, and so no CA", "") };
    let left = end.duration_since(Timestamp::now());
    if left.is_negative() {
        bad(format!("the CA expired at {end}"), "is confrev running? its log shows why the CA is not renewed")
    } else if left < SOON {
        warning(
            format!("the CA expires at {end}"),
            "it is normally renewed before that; if not, see confrev's log",
        )
    } else {
        good(format!("trusted until {end}"))
    }
}

async fn replicas(target: &Target, home: &str) -> Result<CheckResult, Failure> {
    let path = format!("/apis/apps/v1/namespaces/{home}/deployments/confrev");
    let Some(deployment) = target.get(&path).await? else {
        return Ok(warning(
            format!("no Deployment confrev in namespace {home}"),
            "expected if confrev runs outside the cluster; otherwise give --confrev-namespace",
        ));
    };
    let image = text(&deployment, "/spec/template/spec/containers/0/image").to_owned();
    let count = |at: &str| deployment.pointer(at).and_then(Value::as_i64).unwrap_or(0);
    let (ready, wanted) = (count("/status/readyReplicas"), count("/spec/replicas"));
    let own = env!("CARGO_PKG_VERSION");
    let message = format!("{ready} of {wanted} ready, {image}; client {own}");
    Ok(if wanted == 0 {
        warning(message, "expected if confrev runs outside the cluster")
    } else if ready == 0 {
        bad(message, "see kubectl -n confrev describe pods")
    } else if ready < wanted {
        warning(message, "see kubectl -n confrev describe pods")
    } else {
        good(message)
    })
}

/// `first`: the time of the renewal that was read first. The clocks of this machine and of the leader may differ: a Lease that is renewed
/// while the command runs has a leader.
async fn leader(target: &Target, home: &str, first: &OnceLock<String>) -> Result<CheckResult, Failure> {
    const HINT: &str = "without a leader nothing rolls and nothing is bound: is a replica running?";
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{home}/leases/confrev");
    let Some(lease) = target.get(&path).await? else { return Ok(bad("Lease confrev does not exist", HINT)) };
    let holder = text(&lease, "/spec/holderIdentity");
    let renewed: Option<Timestamp> = text(&lease, "/spec/renewTime").parse().ok();
    let lasts = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(15);
    let is_fresh = renewed.is_some_and(|renewed| Timestamp::now().duration_since(renewed).as_secs() <= lasts);
    let at = text(&lease, "/spec/renewTime");
    let is_renewed = first.get_or_init(|| at.to_owned()) != at;
    Ok(if holder.is_empty() {
        bad(format!("the Lease was released at {at}; no replica holds it"), HINT)
    } else if !is_fresh && !is_renewed {
        bad(format!("the Lease was last renewed by {holder} at {at}"), HINT)
    } else {
        good(holder)
    })
}

/// Whether the leader knows all workloads and revisions of every namespace: it says so on the Lease, which only confrev and people
/// with rights in confrev's namespace write.
async fn partly_known(target: &Target, home: &str) -> Result<CheckResult, Failure> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{home}/leases/confrev");
    Ok(known_namespaces(target.get(&path).await?.as_ref()))
}

fn known_namespaces(lease: Option<&Value>) -> CheckResult {
    let Some(lease) = lease else {
        return warning("Lease confrev does not exist", "see the check of the leader");
    };
    let names = lease["metadata"]["annotations"][annotations::PARTLY_KNOWN].as_str().unwrap_or_default();
    // The names of namespaces, and nothing else, are printed.
    let is_plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-,.".contains(letter);
    if names.is_empty() {
        return good("all workloads and revisions are known");
    }
    let names: String = names.chars().filter(|letter| is_plain(*letter)).take(1000).collect();
    warning(
        format!(
            "partly known, since they have more workloads and revisions than their share: {}",
            names.replace(',', ", ")
        ),
        "delete ReplicaSets, ControllerRevisions and Jobs there that nothing needs, or use several namespaces",
    )
}

async fn guard(target: &Target) -> Result<CheckResult, Failure> {
    for resource in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
        if target.get(&format!("{ADMISSION}/{resource}/confrev-snapshots")).await?.is_none() {
            return Ok(bad(
                format!("{resource} confrev-snapshots does not exist: snapshots can be changed and deleted"),
                "install confrev again: the guard is part of its manifests",
            ));
        }
    }
    Ok(good("snapshots are guarded by the API server"))
}

/// Asks the API server which rights confrev's own account has.
async fn rights(target: &Target, home: &str) -> Result<CheckResult, Failure> {
    let user = format!("system:serviceaccount:{home}:confrev");
    for (verb, group, resource) in RIGHTS {
        let attributes = json!({"verb": verb, "group": group, "resource": resource});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes}});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = target.create(path, &review, false).await?;
        if answer["status"]["allowed"] != true {
            return Ok(bad(
                format!("{user} may not {verb} {resource}"),
                "install confrev again: the ClusterRole is part of its manifests",
            ));
        }
    }
    Ok(good(format!("{user} has the rights that it needs")))
}

/// Whether confrev answers for the namespace, unless the webhooks exclude it: confrev's own namespace is excluded.
async fn admission(target: &Target, webhooks: &[Value]) -> Result<CheckResult, Failure> {
    if excludes(webhooks, &target.namespace) {
        return Ok(warning(
            format!("the webhooks exclude namespace {}: nothing in it is resolved", target.namespace),
            "to see whether the API server calls confrev, check a namespace of workloads: -n NAMESPACE",
        ));
    }
    admission_answers(target).await
}

/// Whether every webhook excludes the namespace by its name.
fn excludes(webhooks: &[Value], namespace: &str) -> bool {
    let lists = |term: &Value| {
        let values = term["values"].as_array().map_or(&[][..], Vec::as_slice);
        values.iter().any(|value| value == namespace)
    };
    let rejects = |term: &Value| match (term["key"].as_str(), term["operator"].as_str()) {
        (Some("kubernetes.io/metadata.name"), Some("NotIn")) => lists(term),
        (Some("kubernetes.io/metadata.name"), Some("In")) => !lists(term),
        _ => false,
    };
    !webhooks.is_empty()
        && webhooks.iter().all(|webhook| {
            let terms = webhook["namespaceSelector"]["matchExpressions"].as_array();
            terms.is_some_and(|terms| terms.iter().any(rejects))
        })
}

/// Makes the API server call confrev, by a dry run of a creation that confrev must deny.
async fn admission_answers(target: &Target) -> Result<CheckResult, Failure> {
    let labels = json!({"app": "confrev-check"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "confrev-check",
            "labels": {annotations::ENABLED: "true"},
            "annotations": {annotations::TRACK: "check"},
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}},
        },
    });
    target.require_namespace().await?;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", target.namespace);
    Ok(match target.create(&path, &deployment, true).await {
        Err(Failure::Refused(message)) if message.contains(annotations::TRACK) => {
            good(format!("the API server calls confrev in namespace {}", target.namespace))
        }
        Err(Failure::Refused(message)) if message.contains("failed calling webhook") => bad(
            message.trim_end_matches(UNANSWERED),
            "is confrev running, and can the API server reach its Service?",
        ),
        Err(failure) => return Err(failure),
        Ok(object) if label(&object, annotations::CARRIED).is_some() => bad(
            "confrev does not answer: the API server keeps the snapshots of workloads alone (confrev-carry)",
            "is confrev running, and can the API server reach its Service?",
        ),
        Ok(_) => bad(
            format!("the API server did not call confrev in namespace {}", target.namespace),
            "see the check webhooks",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn check_repeats_until_it_is_settled() {
        let tries = Cell::new(0);
        let last = until_settled(async || {
            tries.set(tries.get() + 1);
            (tries.get(), tries.get() == 3)
        })
        .await;
        assert_eq!(last, 3);
    }

    #[test]
    fn each_workload_before_its_source_is_a_warning() {
        let of = |warnings: &[&str]| -> Vec<_> {
            let warnings: Vec<_> = warnings.iter().map(|text| (*text).to_owned()).collect();
            order(&warnings).map(|(grade, message, _)| (grade == Grade::Warning, message)).collect()
        };
        assert_eq!(of(&["one", "two"]), [(true, "one".to_owned()), (true, "two".to_owned())]);
        let [(is_warning, _)] = of(&[])[..] else { panic!("one finding without warnings") };
        assert!(!is_warning);
    }

    #[test]
    fn partly_known_namespaces_are_named() {
        let lease = |names: &str| json!({"metadata": {"annotations": {annotations::PARTLY_KNOWN: names}}});
        assert_eq!(known_namespaces(Some(&json!({}))).0, Grade::Ok);
        assert_eq!(known_namespaces(Some(&lease(""))).0, Grade::Ok);
        assert_eq!(known_namespaces(None).0, Grade::Warning);
        let (grade, message, hint) = known_namespaces(Some(&lease("a,b-1,\u{1b}[31mC,...")));
        assert_eq!(grade, Grade::Warning);
        assert!(message.ends_with(": a, b-1, 31m, ..."), "{message}");
        assert!(!hint.is_empty());
    }
}
