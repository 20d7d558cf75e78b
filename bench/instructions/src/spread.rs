//! What the controller derives from the workloads of a source at a change event: the state of a wave.

use confrev_instructions::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::{
        Carried, ChangeVerdict, Facts, Health, Member, Observed, Present, Record, Request, Spread,
        SpreadPolicy, Workload, WorkloadView,
    },
    snapshot::Rotated,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    case::case,
    decide::decide,
    objects::{NAMESPACE, Stored, deployment, source},
};

const WORKLOADS: [usize; 3] = [20, 200, 2000];
/// The size of a workload, and of the body of its event.
const BYTES: usize = 10_000;

/// The ConfigMap of all workloads, with waves.
fn config_map(content: &str) -> Vec<u8> {
    let annotations = json!({annotations::WAVES: "1, 5%, 25%", annotations::BAKE: "10m", annotations::ON_FAILURE: "revert"});
    let metadata = json!({
        "name": &*source(0).name, "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1",
        "annotations": annotations,
    });
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"color": content}})
        .to_string()
        .into_bytes()
}

/// A stored workload that resolves to this content.
fn resolved(kind: &WorkloadKind, content: &str) -> Value {
    let mut object = deployment(1, BYTES);
    let text = object.to_string();
    let new = Workload::parse(kind, &text).expect("a Deployment");
    let request =
        Request { namespace: NAMESPACE, secrets: false, new, old: None, carried: Carried::default() };
    let stored = Stored::from([(source(0), config_map(content))]);
    let decision = decide(&request, &mut Facts::default(), &stored).expect("a decision");
    json_patch::patch(&mut object, &decision.patch).expect("the patch applies");
    object
}

/// Derives the state in the third wave: a tenth of the workloads have moved. The baseline parses the body of one event.
pub(crate) fn waves() {
    let kinds = Kinds::default();
    let kind = kinds.by_resource("apps", "deployments").expect("a kind");
    let record = |object: &Value| {
        let text = object.to_string();
        Record::of(&Workload::parse(kind, &text).expect("a Deployment"), Health::Settled, &Rotated::default())
    };
    let (old, new) = (resolved(kind, "blue"), resolved(kind, "green"));
    let event = new.to_string();
    let present = Observed::read(source(0).kind, config_map("green")).expect("a ConfigMap");
    let policy: SpreadPolicy = present.spread_policy();
    let of = source(0);
    let present = Present::from(&present);
    for count in WORKLOADS {
        let all: Vec<_> = (0..count)
            .map(|number| (format!("web-{number}"), record(if number % 10 == 0 { &new } else { &old })))
            .collect();
        let mut spread = None;
        case(&format!("waves/state/{count}"), count, &[event.as_bytes()], || {
            let members = all.iter().map(|(name, record)| {
                let view = WorkloadView {
                    kind,
                    path: [NAMESPACE, name],
                    namespace_order: None,
                    health: Health::Settled,
                    source: &of,
                    present: &present,
                    set: None,
                };
                Member {
                    workload: name,
                    member_state: record.member_state(&view, |_| None),
                    is_rolling: false,
                }
            });
            spread = Some(Spread::of(&policy, ChangeVerdict::default(), Timestamp::UNIX_EPOCH, members));
        });
        let spread = spread.expect("a state");
        let progress = spread.progress().expect("the source has waves");
        assert_eq!((progress.total, progress.moved), (count, count / 10), "the workloads of the wave");
    }
}
