//! The events of a sequence.

use proptest::prelude::*;

use crate::{
    api::Fault,
    manifest::{CONTENTS, FORMS, Manifest, SOURCES, WORKLOADS},
};

/// How a manifest is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    ClientSide,
    ServerSide,
    Replace,
}

/// The change of a manifest before it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Nothing,
    Image(u8),
    Form(u8),
    Enabled(Option<bool>),
    Track(Option<bool>),
    Exclude(bool),
    /// The annotation `on-undo: hold`.
    HoldUndos(bool),
}

impl Edit {
    /// Changes a manifest.
    pub(crate) fn edit(self, manifest: &mut Manifest) {
        match self {
            Self::Nothing => {}
            Self::Image(image) => manifest.image = image,
            Self::Form(form) => manifest.form = form,
            Self::Enabled(enabled) => manifest.enabled = enabled,
            Self::Track(track) => manifest.track = track,
            Self::Exclude(exclude) => manifest.exclude = exclude,
            Self::HoldUndos(holds) => manifest.holds_undos = holds,
        }
    }
}

/// One event. Indexes are taken modulo the number of objects, so that every sequence is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Creates a source, or changes its content.
    Content {
        source: usize,
        content: u8,
    },
    /// The label `enabled` of a source: its mode.
    Mode {
        source: usize,
        mode: Option<&'static str>,
    },
    Keep {
        source: usize,
        keep: Option<u8>,
    },
    DeleteSource {
        source: usize,
    },
    Apply {
        workload: usize,
        how: How,
        edit: Edit,
    },
    /// Returns to an older ReplicaSet's template.
    Undo {
        workload: usize,
        nth: usize,
    },
    SetImage {
        workload: usize,
        image: u8,
    },
    /// Edits the references to a source to name one of its snapshots.
    Pin {
        workload: usize,
        source: usize,
        nth: usize,
    },
    /// `kubectl annotate`: holds a snapshot of a source, or ends every hold of the workload.
    Hold {
        workload: usize,
        source: usize,
        nth: Option<usize>,
    },
    /// A user writes `roll`.
    Roll {
        workload: usize,
        value: u8,
    },
    /// `kubectl label`.
    Enable {
        workload: usize,
        enabled: Option<bool>,
    },
    /// `kubectl annotate`.
    Track {
        workload: usize,
        track: Option<bool>,
    },
    Scale {
        workload: usize,
        replicas: u8,
    },
    DeleteWorkload {
        workload: usize,
    },
    Namespace {
        namespace: usize,
        opt_in: Option<&'static str>,
    },
    /// Deletes the namespace with all its objects, and creates it again.
    RecreateNamespace {
        namespace: usize,
    },
    /// A foreign object takes the name that a snapshot would get.
    Squat {
        source: usize,
        content: u8,
    },
    /// A user deletes a snapshot without owners.
    DeleteSnapshot {
        nth: usize,
    },
    /// The controllers of workloads create and prune ReplicaSets.
    Controllers,
    /// The garbage collector runs once.
    Collect,
    Deliver {
        replica: usize,
        watch: usize,
        limit: usize,
    },
    Relist {
        replica: usize,
        watch: usize,
    },
    /// The leader performs the actions that are due.
    Work {
        limit: usize,
    },
    Pass {
        millis: u32,
    },
    /// All components run for a while.
    Settle,
    /// From now on, this number of actions begins, and their watch events arrive, before the first response is
    /// processed.
    SideBySide {
        actions: usize,
    },
    /// Sets the clocks of confrev's replicas.
    Step {
        seconds: i32,
    },
    Restart {
        replica: usize,
    },
    Leader {
        replica: usize,
    },
    Webhook {
        works: bool,
    },
    /// A call fails after this number of calls.
    Fail {
        after: u8,
        fault: Fault,
    },
    /// An event happens between two calls, after this number of calls.
    Meanwhile {
        after: u8,
        event: Box<Event>,
    },
}

fn some_bool() -> impl Strategy<Value = Option<bool>> {
    prop_oneof![Just(None), Just(Some(true)), Just(Some(false))]
}

fn mode() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![
        2 => Just(None),
        1 => Just(Some("true")),
        1 => Just(Some("false")),
        2 => Just(Some("live")),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => Just(Edit::Nothing),
        2 => (0..3_u8).prop_map(Edit::Image),
        2 => (0..FORMS).prop_map(Edit::Form),
        1 => some_bool().prop_map(Edit::Enabled),
        1 => some_bool().prop_map(Edit::Track),
        1 => any::<bool>().prop_map(Edit::Exclude),
        1 => any::<bool>().prop_map(Edit::HoldUndos),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::ClientSide), Just(How::ServerSide), Just(How::Replace)]
}

/// The events of users and the cluster.
fn outside() -> impl Strategy<Value = Event> {
    let source = || prop_oneof![4 => Just(0), 2 => Just(1), 1 => 2..SOURCES.len()];
    let workload =
        || prop_oneof![4 => Just(0_usize), 3 => Just(1), 2 => Just(2), 1 => Just(WORKLOADS.len() - 1)];
    prop_oneof![
        10 => (source(), 0..CONTENTS).prop_map(|(source, content)| Event::Content { source, content }),
        2 => (source(), mode()).prop_map(|(source, mode)| Event::Mode { source, mode }),
        1 => (source(), prop::option::of(0..4_u8)).prop_map(|(source, keep)| Event::Keep { source, keep }),
        1 => source().prop_map(|source| Event::DeleteSource { source }),
        7 => (workload(), how(), edit()).prop_map(|(workload, how, edit)| Event::Apply { workload, how, edit }),
        5 => (workload(), 0..3_usize).prop_map(|(workload, nth)| Event::Undo { workload, nth }),
        3 => (workload(), 0..3_u8).prop_map(|(workload, image)| Event::SetImage { workload, image }),
        3 => (workload(), source(), 0..4_usize)
            .prop_map(|(workload, source, nth)| Event::Pin { workload, source, nth }),
        3 => (workload(), source(), prop::option::of(0..4_usize))
            .prop_map(|(workload, source, nth)| Event::Hold { workload, source, nth }),
        2 => (workload(), 0..3_u8).prop_map(|(workload, value)| Event::Roll { workload, value }),
        2 => (workload(), some_bool()).prop_map(|(workload, enabled)| Event::Enable { workload, enabled }),
        2 => (workload(), some_bool()).prop_map(|(workload, track)| Event::Track { workload, track }),
        1 => (workload(), 0..3_u8).prop_map(|(workload, replicas)| Event::Scale { workload, replicas }),
        1 => workload().prop_map(|workload| Event::DeleteWorkload { workload }),
        2 => (0..2_usize, prop::sample::select(vec![None, Some("true"), Some("next")]))
            .prop_map(|(namespace, opt_in)| Event::Namespace { namespace, opt_in }),
        1 => (0..2_usize).prop_map(|namespace| Event::RecreateNamespace { namespace }),
        1 => (source(), 0..CONTENTS).prop_map(|(source, content)| Event::Squat { source, content }),
        1 => (0..6_usize).prop_map(|nth| Event::DeleteSnapshot { nth }),
        4 => Just(Event::Controllers),
        3 => Just(Event::Collect),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![Just(Fault::Conflict), Just(Fault::Refused), Just(Fault::Lost), Just(Fault::Unanswered)]
}

/// Any event.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        50 => outside(),
        14 => Just(Event::Settle),
        8 => (0..2_usize, 0..9_usize, 1..4_usize)
            .prop_map(|(replica, watch, limit)| Event::Deliver { replica, watch, limit }),
        1 => (0..2_usize, 0..9_usize).prop_map(|(replica, watch)| Event::Relist { replica, watch }),
        8 => (1..6_usize).prop_map(|limit| Event::Work { limit }),
        6 => prop_oneof![0..2000_u32, Just(3_000), Just(11_000), Just(700_000)]
            .prop_map(|millis| Event::Pass { millis }),
        1 => prop_oneof![Just(-3600), Just(-20), Just(20), Just(3600)].prop_map(|seconds| Event::Step { seconds }),
        2 => (0..3_usize).prop_map(|actions| Event::SideBySide { actions }),
        1 => (0..2_usize).prop_map(|replica| Event::Restart { replica }),
        1 => (0..2_usize).prop_map(|replica| Event::Leader { replica }),
        1 => any::<bool>().prop_map(|works| Event::Webhook { works }),
        3 => (0..6_u8, fault()).prop_map(|(after, fault)| Event::Fail { after, fault }),
        4 => (0..6_u8, outside())
            .prop_map(|(after, event)| Event::Meanwhile { after, event: Box::new(event) }),
    ]
}
