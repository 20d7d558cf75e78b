//! Random sequences of changes in waves: contents that fail, analyses, the decisions of persons and faults of calls, in two
//! namespaces that may form a group. After each step, no more workloads have moved than the wave allows.

use confrev::{
    annotations,
    resolve::{ALL_WAVES, UserAction, UserDecision},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    cluster::revision,
    exhaustive::{
        objects::{File, NAMESPACE},
        play::Play,
        spread::verdict,
    },
    model::Model,
    replica::Class,
    search::Search,
    sequence::runtime,
    store::{Key, Kind, is_snapshot, set_meta, setting},
    trial::{CallFault, Trial},
};

/// The number of sequences in one run of the test.
const SEQUENCES: u32 = 60;
/// The seed of the test, unless one is configured.
const SEED: u64 = 862_907;
/// The maximal number of steps of a sequence.
const MOST_STEPS: usize = 14;
/// The maximal number of faults of a sequence, and the number of calls among which they are.
const FAULTS: (usize, usize) = (3, 200);

const NAMESPACES: [&str; 2] = [NAMESPACE, "b"];
/// The workloads: a namespace, by number, and a name.
const WORKLOADS: [(usize, &str); 6] = [(0, "u"), (0, "v"), (0, "w"), (1, "u"), (1, "v"), (1, "w")];
/// The contents. Pods that read one of the last two fail.
const CONTENTS: u8 = 5;
const SOUND: u8 = 3;
/// Each sequence ends with this content, which is sound and new.
const LAST: u8 = 9;
/// How long a change may take until it has reached all workloads, in tens of seconds.
const LONGEST: usize = 60;
/// How long the analysis of the last wave may take, in tens of seconds: watches may be silent for a minute.
const LAST_WAVE: usize = 12;

/// The settings of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    waves: Option<&'static str>,
    bake: Option<&'static str>,
    reverts: bool,
    analysed: bool,
    /// The source chooses the strategy `steps`. The other settings come before those of the strategy.
    strategy: bool,
}

/// A decision of a person about the present change, in all namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Promote(u8),
    PromoteAll,
    Abort,
    Retry,
}

/// One step. Indexes are taken modulo the number of objects, so that every sequence is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The source of one namespace, or of both, gets this content and these settings.
    Change {
        namespace: Option<usize>,
        content: u8,
        settings: Settings,
    },
    /// A tool applies the manifests of all workloads again.
    Sync,
    /// The namespaces form a group, or do not.
    Group(bool),
    /// A deployment of a workload.
    Image {
        workload: usize,
        image: u8,
    },
    Undo {
        workload: usize,
        nth: usize,
    },
    /// Deletes a workload, or creates it again.
    Toggle {
        workload: usize,
    },
    Decide(Decision),
    /// Argo's controller ends the running analyses.
    Judge {
        successful: bool,
    },
    Seconds(u8),
    /// Another replica leads.
    Leader,
}

fn settings() -> impl Strategy<Value = Settings> {
    let waves = prop_oneof![
        1 => Just(None),
        3 => Just(Some("1")),
        2 => Just(Some("2")),
        2 => Just(Some("50%")),
        3 => Just(Some("1, 50%")),
    ];
    let bake = prop_oneof![Just(None), Just(Some("10s")), Just(Some("30s"))];
    let strategy = prop::bool::weighted(0.25);
    (waves, bake, any::<bool>(), prop::bool::weighted(0.2), strategy).prop_map(
        |(waves, bake, reverts, analysed, strategy)| {
            let has_waves = waves.is_some() || strategy;
            let (bake, analysed) = (bake.filter(|_| has_waves), analysed && has_waves);
            Settings { waves, bake, reverts, analysed, strategy }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let workload = || 0..WORKLOADS.len();
    let namespace = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(1))];
    let decision = prop_oneof![
        2 => (1..4_u8).prop_map(Decision::Promote),
        1 => Just(Decision::PromoteAll),
        1 => Just(Decision::Abort),
        2 => Just(Decision::Retry),
    ];
    prop_oneof![
        8 => (namespace, 0..CONTENTS, settings())
            .prop_map(|(namespace, content, settings)| Step::Change { namespace, content, settings }),
        3 => Just(Step::Sync),
        1 => any::<bool>().prop_map(Step::Group),
        2 => (workload(), 0..3_u8).prop_map(|(workload, image)| Step::Image { workload, image }),
        1 => (workload(), 0..3_usize).prop_map(|(workload, nth)| Step::Undo { workload, nth }),
        1 => workload().prop_map(|workload| Step::Toggle { workload }),
        2 => decision.prop_map(Step::Decide),
        3 => prop::bool::weighted(0.7).prop_map(|successful| Step::Judge { successful }),
        8 => prop_oneof![1..8_u8, Just(12), Just(40), Just(120)].prop_map(Step::Seconds),
        1 => Just(Step::Leader),
    ]
}

fn faults() -> impl Strategy<Value = Vec<(usize, CallFault)>> {
    let (most, calls) = FAULTS;
    prop::collection::vec((0..calls, prop::sample::select(&CallFault::ALL[..])), 0..=most)
}

/// Sequences of steps, with faults of calls.
fn sequences() -> impl Strategy<Value = (Vec<Step>, Vec<(usize, CallFault)>)> {
    (prop::collection::vec(step(), 0..MOST_STEPS), faults()).prop_map(|(mut steps, faults)| {
        // With silent watches, nothing can know at once which workloads have left a change or joined it.
        if faults.iter().any(|(_, fault)| fault.is_stale()) {
            steps.retain(|step| !matches!(step, Step::Group(_) | Step::Toggle { .. }));
            for step in &mut steps {
                if let Step::Change { namespace, .. } = step {
                    *namespace = None;
                }
            }
        }
        (steps, faults)
    })
}

/// The files of the users, and the cluster in which they are applied.
struct World<'p> {
    play: Play<'p>,
    images: [u8; WORKLOADS.len()],
}

impl World<'_> {
    fn start(model: &std::sync::Arc<Model>) -> Self {
        let play = Play::new(model.clone(), true, None);
        let world = Self { play, images: [0; WORKLOADS.len()] };
        for namespace in NAMESPACES {
            world.play.namespace(namespace, &[(annotations::GROUP, "g")]);
            let key = Key::new(Kind::AnalysisTemplate, namespace, "sound");
            model.commit(&key, json!({"metadata": {}, "spec": {"metrics": [{"name": "sound"}]}}));
        }
        let plain = Settings { waves: None, bake: None, reverts: false, analysed: false, strategy: false };
        world.change(None, 0, plain);
        for workload in 0..WORKLOADS.len() {
            world.play.apply(&world.file(workload));
        }
        world.play.seconds(60);
        model.take_time();
        world
    }

    fn file(&self, workload: usize) -> File {
        let (namespace, name) = WORKLOADS[workload];
        File::deployment(name, &["s"]).image(self.images[workload]).in_namespace(NAMESPACES[namespace])
    }

    fn source(namespace: usize) -> Key {
        Key::configmap(NAMESPACES[namespace], "s")
    }

    fn change(&self, namespace: Option<usize>, content: u8, settings: Settings) {
        let value = content.to_string();
        let is_bad = (SOUND..CONTENTS).contains(&content);
        let entries = [("v", &*value), ("bad", "yes")];
        let file = File::entries("s", &entries[..=usize::from(is_bad)]);
        let notes = [
            (annotations::WAVES, settings.waves),
            (annotations::BAKE, settings.bake),
            (annotations::ON_FAILURE, settings.reverts.then_some("revert")),
            (annotations::ANALYSIS, settings.analysed.then_some("sound")),
            (annotations::STRATEGY, settings.strategy.then_some("steps")),
        ];
        let set = |file, (note, value): (&str, Option<&str>)| match value {
            Some(value) => File::note(file, note, value),
            None => file,
        };
        let file = notes.into_iter().fold(file, set);
        for place in (0..NAMESPACES.len()).filter(|place| namespace.is_none_or(|only| only == *place)) {
            self.play.apply(&file.clone().in_namespace(NAMESPACES[place]));
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Change { namespace, content, settings } => self.change(namespace, content, settings),
            Step::Sync => {
                for workload in 0..WORKLOADS.len() {
                    let file = self.file(workload);
                    if self.play.model.get(&file.key).is_some() {
                        self.play.apply(&file);
                    }
                }
            }
            Step::Group(are_one) => {
                for (namespace, group) in NAMESPACES.into_iter().zip(["g", if are_one { "g" } else { "h" }]) {
                    self.play.namespace(namespace, &[(annotations::GROUP, group)]);
                }
            }
            Step::Image { workload, image } => {
                self.images[workload] = image;
                let file = self.file(workload);
                if self.play.model.get(&file.key).is_some() {
                    self.play.apply(&file);
                }
            }
            Step::Undo { workload, nth } => self.undo(&self.file(workload).key, nth),
            Step::Toggle { workload } => {
                let file = self.file(workload);
                if self.play.model.get(&file.key).is_some() {
                    self.play.delete(&file.key);
                } else {
                    self.play.apply(&file);
                }
            }
            Step::Decide(decision) => self.decide(decision),
            Step::Judge { successful } => self.play.judge(if successful { "Successful" } else { "Failed" }),
            Step::Seconds(seconds) => self.play.seconds(seconds.into()),
            Step::Leader => {
                let next = self.play.model.conditions().leader.map(|leader| 1 - leader);
                if let Some(next) = next.filter(|next| !self.play.model.is_down(*next)) {
                    self.play.model.lead(next);
                }
            }
        }
    }

    fn undo(&self, key: &Key, nth: usize) {
        let Some(live) = self.play.model.get(key) else { return };
        let mut numbers: Vec<_> =
            self.play.model.replicasets(&live).iter().map(|(_, object)| revision(object)).collect();
        numbers.sort_unstable();
        numbers.pop();
        if !numbers.is_empty() {
            self.play.undo(key, numbers[nth % numbers.len()]);
        }
    }

    /// The snapshot of a source's present content.
    fn present(&self, namespace: usize) -> Option<(String, std::sync::Arc<Value>)> {
        let key = Self::source(namespace);
        let of = self.play.model.get(&key)?;
        let names = self.play.snapshots_of(&key);
        names.into_iter().find_map(|name| {
            let snapshot = self.play.model.get(&Key::configmap(&key.namespace, &name))?;
            (snapshot["data"] == of["data"]).then_some((name, snapshot))
        })
    }

    fn decide(&self, decision: Decision) {
        for namespace in 0..NAMESPACES.len() {
            let Some((name, snapshot)) = self.present(namespace) else { continue };
            let verdict = verdict(&snapshot);
            let action = match decision {
                Decision::Promote(wave) => UserAction::Promote(wave.to_string().into()),
                Decision::PromoteAll => UserAction::Promote(ALL_WAVES.into()),
                Decision::Abort => UserAction::Abort,
                Decision::Retry if verdict.failed.is_some() => UserAction::Retry,
                Decision::Retry => UserAction::Resume,
            };
            let now = self.play.model.cluster_time();
            let decision = UserDecision::new(action, &name, verdict.last_decision(), now).to_string();
            self.play.edit(&Self::source(namespace), |object| {
                set_meta(object, "annotations", annotations::DECISION, Some(&decision));
            });
        }
    }

    /// A refused content has no workload that the controller moved to it, after enough time.
    fn check_reverted(&self) {
        self.play.seconds(120);
        for namespace in 0..NAMESPACES.len() {
            let key = Self::source(namespace);
            let Some((name, snapshot)) = self.present(namespace) else { continue };
            let of = self.play.model.get(&key).unwrap();
            let reverts = setting(&of, annotations::ON_FAILURE) == Some("revert");
            if verdict(&snapshot).failed.is_none() || !reverts {
                continue;
            }
            let left = self.play.moved_in_turn(&key);
            if let Some(left) = left.iter().find(|left| left.namespace == key.namespace) {
                self.play.model.broken("rolls", format!("{left} keeps {name}, which is refused"));
            }
        }
    }

    /// A sound content reaches every workload.
    fn finish(&self) {
        self.check_reverted();
        self.play.namespace(NAMESPACES[1], &[(annotations::GROUP, "g")]);
        let settings = Settings {
            waves: Some("1, 50%"),
            bake: Some("10s"),
            reverts: true,
            analysed: true,
            strategy: false,
        };
        self.change(None, LAST, settings);
        let present = |workload: &usize| self.play.model.get(&self.file(*workload).key).is_some();
        let all: Vec<_> =
            (0..WORKLOADS.len()).filter(present).map(|workload| self.file(workload).key).collect();
        let last = LAST.to_string();
        let is_done = || {
            let reads = |key: &Key| {
                let live = self.play.model.get(key).unwrap();
                let name = &live["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"];
                let snapshot = self.play.model.get(&Key::configmap(&key.namespace, name.as_str().unwrap()));
                snapshot.is_some_and(|of| is_snapshot(&of) && of["data"]["v"] == *last)
            };
            all.iter().all(reads)
        };
        let go_on = || {
            self.play.seconds(10);
            self.play.judge("Successful");
            self.play.check_spread();
        };
        for _ in 0..LONGEST {
            if is_done() {
                break;
            }
            go_on();
        }
        for key in &all {
            self.play.reads(key, "s", &last);
        }
        // The last wave bakes, and is analysed.
        (0..LAST_WAVE).for_each(|_| go_on());
        self.play.rest();
        self.play.check_quiet();
        self.play.check_spread();
    }
}

/// Runs one sequence. Returns the promise that it breaks.
fn run(steps: &[Step], faults: &[(usize, CallFault)]) -> Result<(), String> {
    let model = Model::enumerated(Trial::new(faults));
    let broken = || model.ghost().broken.take().map_or(Ok(()), Err);
    let mut world = World::start(&model);
    broken().map_err(|reason| format!("{reason} (at the start)"))?;
    for step in steps {
        crate::trace!("{} {step:?}", model.cluster_time());
        world.perform(*step);
        world.play.check_spread();
        broken().map_err(|reason| format!("{reason} (after {step:?})"))?;
    }
    crate::trace!("finish");
    world.finish();
    broken().map_err(|reason| format!("{reason} (at the end)"))
}

#[test]
fn waves_hold_in_any_order_of_events() {
    let search = Search { seed: SEED, sequences: SEQUENCES, shrinks: 60, place: "one_sequence_of_waves" };
    search.run(
        sequences,
        |(steps, faults)| run(steps, faults),
        |reason, (steps, faults)| {
            let steps: Vec<_> = steps.iter().map(|step| format!("        Step::{step:?},\n")).collect();
            format!("a promise is broken: {reason}\n{}    with {faults:?}\n", steps.concat())
        },
    );
}

/// Sequences that once broke a promise.
#[test]
fn former_violations_of_waves_keep_every_promise() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let change = |namespace, content, waves, bake| {
        let settings =
            Settings { waves: Some(waves), bake, reverts: false, analysed: false, strategy: false };
        Step::Change { namespace, content, settings }
    };
    for (what, steps, faults) in [
        (
            "the sources of a group have different waves",
            vec![change(None, 2, "2", None), change(Some(1), 2, "1", None)],
            vec![],
        ),
        (
            "a deployment in the second of the controller's last move",
            vec![
                change(None, 1, "1, 50%", Some("30s")),
                Step::Seconds(1),
                Step::Image { workload: 0, image: 1 },
            ],
            vec![],
        ),
        (
            "a source changes again before the watch reports it",
            vec![change(None, 1, "1", None), Step::Seconds(4), change(Some(0), 2, "1", None), Step::Sync],
            vec![(20, CallFault::StaleOf(Class::Sources))],
        ),
        (
            "a source of a group is not read after a restart",
            vec![Step::Toggle { workload: 0 }],
            vec![(106, CallFault::Lost)],
        ),
        (
            "a person stops a change that is refused",
            vec![
                Step::Sync,
                Step::Change {
                    namespace: None,
                    content: 3,
                    settings: Settings {
                        waves: Some("1, 50%"),
                        bake: None,
                        reverts: true,
                        analysed: false,
                        strategy: false,
                    },
                },
                Step::Seconds(1),
                Step::Decide(Decision::Abort),
            ],
            vec![],
        ),
    ] {
        assert_eq!(run(&steps, &faults), Ok(()), "{what}");
    }
}

/// One sequence, to debug with `CONFREV_MODEL_TRACE=1`.
#[test]
#[ignore = "a place to put the sequence that a failure printed"]
fn one_sequence_of_waves() {
    let runtime = runtime();
    let _guard = runtime.enter();
    run(&[Step::Sync], &[]).unwrap();
}
