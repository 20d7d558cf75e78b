//! The confrev of `tests/e2e/kinds`, with a rate of rolls low enough to observe, and with strategies.

use std::{
    env,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use confrev_controlplane::Program;
pub(crate) use confrev_test_support::shared::Running;
use confrev_test_support::{
    chart_setup,
    shared::{Exclusive, SharedProgram},
};
use jiff::SignedDuration;
use serde_json::{Value, json};

/// Automatic rolls per second.
pub(crate) const ROLL_RATE: u32 = 25;

/// The strategy of the test of waves, by name.
pub(crate) const STEPS: &str = "steps";
/// How long its workloads must stay healthy.
pub(crate) const BAKE: SignedDuration = SignedDuration::from_secs(3);

/// Whether that strategy is the installation's default: the test of waves then runs alone.
pub(crate) fn has_default_strategy() -> bool {
    env::var_os("CONFREV_WAVES_BY_DEFAULT").is_some()
}

/// The strategies of the chart, and that of the test of waves.
pub(crate) fn strategies() -> Value {
    let values: Value =
        serde_saphyr::from_str(include_str!("../../../charts/confrev/values.yaml")).expect("the values");
    let mut strategies = values["strategies"].clone();
    let bake = format!("{}s", BAKE.as_secs());
    strategies[STEPS] = json!({"waves": "1, 5%, 25%", "bake": bake, "on-failure": "revert"});
    strategies
}

fn program() -> Program {
    let rate = format!("--roll-rate={ROLL_RATE}");
    let strategies = format!("--strategies={}", strategies());
    let default = format!("--strategy={STEPS}");
    let default = has_default_strategy().then_some(&*default);
    let options: Vec<_> = [&*rate, &strategies].into_iter().chain(default).collect();
    chart_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")), &options)
}

static CONFREV: SharedProgram = SharedProgram::new(program);

/// confrev, which keeps running while the result exists.
pub(crate) fn running() -> Running {
    CONFREV.running()
}

/// confrev, for one test alone.
pub(crate) fn exclusive() -> Exclusive {
    CONFREV.exclusive()
}

static HELD: Mutex<()> = Mutex::new(());

/// The metric of held workloads, for one test alone: it counts those of all namespaces. A test waits for it before it uses
/// confrev.
pub(crate) fn held_workloads() -> MutexGuard<'static, ()> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
