//! Every fault at every call of each recorded scenario, one at a time and in pairs.
//!
//! A scenario runs once without faults, and each of its calls to the API server gets a number. Then it runs again for
//! each call and each kind of fault. Whatever happens, the run must come to rest, and every promise must hold at each
//! rest. The final state and the number of revisions must be the same as without faults.

mod checks;
mod commands;
mod goldens;
pub(crate) mod objects;
mod partly_known;
pub(crate) mod play;
mod scenarios;
pub(crate) mod spread;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use confrev::world::ShareLimits;
use play::{Play, State};
use scenarios::{Scenario, asked, scenarios};

use crate::{
    model::Model,
    replica::Class,
    sequence::{runtime, setting},
    trial::{CallFault, Made, Trial},
};

/// The faults of pairs.
const PAIRED: [CallFault; 7] = [
    CallFault::Crash,
    CallFault::CrashDone,
    CallFault::Lost,
    CallFault::Delayed,
    CallFault::Late,
    CallFault::Conflict,
    CallFault::Stale,
];
/// The maximal number of calls between the two faults of a pair.
const NEAR: usize = 24;
/// The number of pairs for each scenario.
const PAIRS: u64 = 1500;
const STRIDE: usize = 1_000_003;
/// Additional calls that are allowed beyond three times the calls of a run without faults. More calls are a loop.
const MORE_CALLS: usize = 120;

type Plan = Vec<(usize, CallFault)>;

/// The result of one run.
struct Run {
    made: Vec<Made>,
    rests: Vec<State>,
    /// The number of planned faults that happened.
    happened: usize,
    outcome: Result<(), String>,
}

/// A scenario and its run without faults.
struct Recorded {
    scenario: Scenario,
    made: Vec<Made>,
    rests: Vec<State>,
}

/// Runs a scenario once.
fn run(scenario: &Scenario, plan: &[(usize, CallFault)], recorded: Option<&Recorded>) -> Run {
    run_sharing(scenario, plan, recorded, ShareLimits::default())
}

/// Runs a scenario once, with replicas that know only these shares of each namespace.
fn run_sharing(
    scenario: &Scenario,
    plan: &[(usize, CallFault)],
    recorded: Option<&Recorded>,
    shares: ShareLimits,
) -> Run {
    let model = Model::sharing(Trial::new(plan).carrying(scenario.carries), shares);
    let is_stale = plan.iter().any(|(_, fault)| fault.is_stale());
    let mut play = Play::new(model.clone(), scenario.loose, recorded.map(|recorded| &*recorded.rests));
    play.may_poke_in_vain = is_stale;
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
        (scenario.act)(&play);
        play.rest();
        let made = model.trial().made.clone();
        // Which revisions of a partly known namespace are known, and so own snapshots, may differ after a start.
        if shares == ShareLimits::default() {
            play.check_quiet();
        }
        made
    }));
    play.check_spread();
    let made = done.as_ref().map_or_else(|_| model.trial().made.clone(), Clone::clone);
    let allowed = recorded.map_or(usize::MAX, |recorded| 3 * recorded.made.len() + MORE_CALLS);
    if made.len() > allowed {
        model.broken("lean", format!("{} calls, but {} are allowed", made.len(), allowed));
    }
    let warning = model.trial().warnings.first().cloned();
    if let Some(warning) = warning.filter(|_| !scenario.loses) {
        model.broken("kept", warning);
    }
    let broken = model.ghost().broken.take();
    let outcome = match (broken, done) {
        (Some(broken), _) => Err(broken),
        (None, Err(panic)) => Err(format!("a panic: {}", panic_text(&*panic))),
        (None, Ok(_)) => Ok(()),
    };
    let happened = model.trial().happened;
    Run { made, rests: play.rests.into_inner(), happened, outcome }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

/// Runs a scenario without faults: no promise may break.
fn record(scenario: Scenario) -> Result<Recorded, String> {
    let Run { made, rests, outcome, .. } = run(&scenario, &[], None);
    match outcome {
        Err(broken) => Err(format!("{} without faults: {broken}", scenario.name)),
        Ok(()) => Ok(Recorded { scenario, made, rests }),
    }
}

/// Checks that a scenario runs the same way each time.
fn check_repeats(recorded: &Recorded) -> Result<(), String> {
    let again = run(&recorded.scenario, &[], None);
    let differing = recorded.made.iter().zip(&again.made).position(|(first, second)| first != second);
    if differing.is_some() || recorded.made.len() != again.made.len() || recorded.rests != again.rests {
        return Err(format!("{} is not the same each time: call {differing:?}", recorded.scenario.name));
    }
    Ok(())
}

/// The variables that repeat a single run.
fn again(scenario: &str, plan: &[(usize, CallFault)]) -> String {
    let list =
        |text: &dyn Fn(&(usize, CallFault)) -> String| plan.iter().map(text).collect::<Vec<_>>().join(",");
    format!(
        "CONFREV_MODEL_SCENARIO={scenario} CONFREV_MODEL_CALL={} CONFREV_MODEL_FAULT={}",
        list(&|(call, _)| call.to_string()),
        list(&|(_, fault)| fault.name()),
    )
}

/// Every single fault at every call.
fn singles(recorded: &Recorded, faults: &[CallFault]) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (number, made) in recorded.made.iter().enumerate() {
        let fitting = faults.iter().filter(|fault| fault.concerns(made.writes));
        plans.extend(fitting.map(|fault| vec![(number, *fault)]));
    }
    plans
}

/// Up to `limit` pairs of faults, evenly distributed over all pairs of nearby calls.
fn pairs(recorded: &Recorded, limit: usize) -> Vec<Plan> {
    let first = singles(recorded, &PAIRED);
    let all = first.len() * NEAR * PAIRED.len();
    let limit = limit.min(all);
    let plans = (0..limit).map(|number| {
        // A prime stride visits each pair once, far from the previous one.
        let place = number * STRIDE % all;
        let (place, second) = (place / PAIRED.len(), PAIRED[place % PAIRED.len()]);
        let (place, distance) = (place / NEAR, 1 + place % NEAR);
        let begin = first[place][0];
        vec![begin, (begin.0 + distance, second)]
    });
    plans.collect()
}

/// Why a promise breaks as documented: a limit that the docs state.
fn known(scenario: &Scenario, plan: &[(usize, CallFault)], broken: &str) -> Option<String> {
    let any = |is: &dyn Fn(CallFault) -> bool| plan.iter().any(|(_, fault)| is(*fault));
    if scenario.remembered && broken.starts_with("kept: SnapshotLost") && any(&CallFault::is_stale) {
        return Some(
            "a false SnapshotLost, for a snapshot that another replica restored while a watch was stale"
                .to_owned(),
        );
    }
    let forgets = |fault| {
        matches!(
            fault,
            CallFault::Crash | CallFault::CrashDone | CallFault::Lost | CallFault::Late | CallFault::Refused
        )
    };
    let forgotten = scenario.remembered && broken.starts_with("kept: ") && any(&forgets);
    forgotten.then(|| "a limit: only one replica remembers the content".to_owned())
}

/// The counts of a scenario.
#[derive(Default)]
struct Count {
    runs: usize,
    violations: Vec<String>,
    /// The known violations, by reason.
    known: BTreeMap<String, usize>,
}

/// Runs all plans. The counts are in the order of the scenarios.
fn run_all(recorded: &[Recorded], work: &[(usize, Plan)]) -> Vec<Count> {
    let mut counts: Vec<_> = recorded.iter().map(|_| Count::default()).collect();
    let runs = side_by_side(work, |(index, plan)| {
        let of = &recorded[*index];
        let Run { happened, outcome, .. } = run(&of.scenario, plan, Some(of));
        // The second fault of a pair may come too late to happen.
        (happened == plan.len(), outcome)
    });
    for ((index, plan), (happened, outcome)) in work.iter().zip(runs) {
        let (count, scenario) = (&mut counts[*index], &recorded[*index].scenario);
        count.runs += usize::from(happened);
        let Err(broken) = outcome else { continue };
        match known(scenario, plan, &broken) {
            Some(reason) => *count.known.entry(reason).or_default() += 1,
            None => count.violations.push(format!("{}\n      {broken}", again(scenario.name, plan))),
        }
    }
    counts
}

/// Runs `act` for each item on all cores. The results are in the order of the items.
fn side_by_side<I: Sync, A: Send>(items: &[I], act: impl Fn(&I) -> A + Sync) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let answers: Mutex<BTreeMap<usize, A>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let runtime = runtime();
                let _guard = runtime.enter();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else { break };
                    let answer = act(item);
                    answers.lock().unwrap().insert(number, answer);
                }
            });
        }
    });
    answers.into_inner().unwrap().into_values().collect()
}

/// The selected scenarios, recorded.
fn recorded() -> Vec<Recorded> {
    let chosen = asked();
    assert!(!chosen.is_empty(), "CONFREV_MODEL_SCENARIO names no scenario");
    let recorded: Result<Vec<_>, _> =
        side_by_side(&chosen, |scenario| record(*scenario)).into_iter().collect();
    recorded.unwrap_or_else(|reason| panic!("{reason}"))
}

/// Prints the results, and fails on violations that are not known.
fn conclude(recorded: &[Recorded], singles: Vec<Count>, pairs: Vec<Count>, start: Instant) {
    let (mut calls, mut sums, mut broken) = (0, [0, 0], Vec::new());
    let mut all_known: BTreeMap<String, usize> = BTreeMap::new();
    for ((recorded, single), pair) in recorded.iter().zip(singles).zip(pairs) {
        let (made, name) = (recorded.made.len(), recorded.scenario.name);
        let violations = single.violations.len() + pair.violations.len();
        let known: usize = single.known.values().chain(pair.known.values()).sum();
        println!(
            "{name:44} {made:4} calls {:6} runs {:6} pairs {violations:4} violations {known:4} known",
            single.runs, pair.runs,
        );
        calls += made;
        sums = [sums[0] + single.runs, sums[1] + pair.runs];
        for (reason, count) in single.known.into_iter().chain(pair.known) {
            *all_known.entry(reason).or_default() += count;
        }
        broken.extend(single.violations.into_iter().chain(pair.violations));
    }
    println!(
        "{} scenarios x {calls} calls x {} kinds of faults: {} runs with one, {} with two; {} violations; {:.1} minutes",
        recorded.len(),
        CallFault::ALL.len(),
        sums[0],
        sums[1],
        broken.len(),
        start.elapsed().as_secs_f64() / 60.0,
    );
    for (reason, count) in all_known {
        println!("    {count} runs show {reason}");
    }
    let mut by_scenario: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in &broken {
        let count = by_scenario.entry(violation.split(' ').next().unwrap()).or_default();
        *count += 1;
        if *count <= MOST_PRINTED {
            println!("    {violation}");
        }
    }
    assert!(broken.is_empty(), "{} violations", broken.len());
}

/// Each scenario with some of its single faults. The selection depends on the scenario's index.
#[test]
fn every_promise_holds_with_some_faults() {
    let start = Instant::now();
    let recorded = recorded();
    let limit = setting("CONFREV_MODEL_SLICE").map_or(SLICE, |limit| usize::try_from(limit).unwrap());
    let mut work = Vec::new();
    for (index, recorded) in recorded.iter().enumerate() {
        let plans = singles(recorded, &CallFault::ALL);
        let step = plans.len().div_ceil(limit).max(1);
        work.extend(plans.into_iter().skip(index % step).step_by(step).map(|plan| (index, plan)));
    }
    let counts = run_all(&recorded, &work);
    let none = recorded.iter().map(|_| Count::default()).collect();
    conclude(&recorded, counts, none, start);
}

/// The number of violations that are printed for each scenario.
const MOST_PRINTED: usize = 12;
/// The number of runs of each scenario in every test run.
const SLICE: usize = 3;

/// Each scenario with every fault at every call, and with pairs of faults.
#[test]
#[ignore = "it takes minutes: make model-exhaustive"]
fn every_promise_holds_with_every_fault() {
    let start = Instant::now();
    let recorded = recorded();
    for repeats in side_by_side(&recorded, check_repeats) {
        repeats.unwrap();
    }
    let limit = usize::try_from(setting("CONFREV_MODEL_PAIRS").unwrap_or(PAIRS)).unwrap();
    let number = |plans: &dyn Fn(&Recorded) -> Vec<Plan>| -> Vec<(usize, Plan)> {
        let all = recorded.iter().enumerate();
        all.flat_map(|(index, of)| plans(of).into_iter().map(move |plan| (index, plan))).collect()
    };
    let single = run_all(&recorded, &number(&|of| singles(of, &CallFault::ALL)));
    let pair = run_all(&recorded, &number(&|of| pairs(of, limit)));
    conclude(&recorded, single, pair, start);
}

/// Runs that once broke a promise: the scenario, the calls and their faults.
const FORMER: [(&str, &[(usize, CallFault)]); 12] = [
    // A roll whose answer never came did not count as rolling, so a second workload rolled to content that fails.
    ("limited-apply", &[(20, CallFault::Stale), (21, CallFault::Late)]),
    ("limited-workload-ref", &[(13, CallFault::Stale), (14, CallFault::Lost)]),
    ("max-in-flight-with-bad-content", &[(14, CallFault::Late)]),
    ("max-in-flight-with-bad-content", &[(15, CallFault::Crash)]),
    // Deleted revisions were added as owners repeatedly, and the garbage collector deleted a snapshot in use.
    ("image-and-content", &[(14, CallFault::StaleOf(Class::Revisions))]),
    ("image-and-content", &[(20, CallFault::StaleOf(Class::Revisions))]),
    ("many-workloads", &[(31, CallFault::StaleOf(Class::Revisions))]),
    // An undo was admitted although the garbage collector had deleted its snapshot after admission read it.
    ("collector-is-late", &[(32, CallFault::Delayed)]),
    ("collector-is-late", &[(33, CallFault::Delayed)]),
    // A workload failed before the watch reported its new snapshot, which was then never refused.
    ("bad-wave-reverts", &[(10, CallFault::StaleOf(Class::Snapshots))]),
    ("bad-content-reverts", &[(11, CallFault::StaleOf(Class::Snapshots))]),
    // Workloads kept refused content until a watch reported the mark.
    ("bad-content-reverts", &[(20, CallFault::Stale), (31, CallFault::Stale)]),
];

#[test]
fn former_violations_keep_every_promise() {
    let runtime = runtime();
    let _guard = runtime.enter();
    for (name, plan) in FORMER {
        let scenario = scenarios().into_iter().find(|scenario| scenario.name == name).unwrap();
        let recorded = record(scenario).unwrap();
        let run = run(&scenario, plan, Some(&recorded));
        assert_eq!((run.happened, run.outcome), (plan.len(), Ok(())), "{}", again(name, plan));
    }
}

/// One run, as a violation prints it. With `CONFREV_MODEL_TRACE=1`, it prints every call.
#[test]
#[ignore = "it runs what a violation printed"]
fn one_run() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let (calls, faults) = (text("CONFREV_MODEL_CALL"), text("CONFREV_MODEL_FAULT"));
    let split =
        |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let calls = split(&calls).into_iter().map(|call| call.parse().expect("CONFREV_MODEL_CALL has numbers"));
    let named = |name: String| CallFault::named(&name).unwrap_or_else(|| panic!("unknown fault {name:?}"));
    let plan: Plan = calls.zip(split(&faults).into_iter().map(named)).collect();
    for recorded in recorded() {
        crate::trace!("{}", again(recorded.scenario.name, &plan));
        let run = run(&recorded.scenario, &plan, Some(&recorded));
        println!(
            "{}: {} calls, {} faults: {:?}",
            recorded.scenario.name,
            run.made.len(),
            run.happened,
            run.outcome
        );
        run.outcome.unwrap();
    }
}
