//! The search for a random sequence that breaks a promise.

use std::{panic::AssertUnwindSafe, time::Instant};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};

use crate::sequence::{runtime, setting};

/// The number of threads. Each runs its share from a seed of its own.
const THREADS: u8 = 2;

pub(crate) fn seed_bytes(seed: u64, thread: u8) -> [u8; 32] {
    let mut bytes = [thread; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}

/// A search for a sequence that breaks a promise.
pub(crate) struct Search {
    /// The seed, unless one is configured: every run judges a change by the same sequences.
    pub seed: u64,
    /// The number of sequences, unless it is configured.
    pub sequences: u32,
    /// How often a failing sequence is shortened.
    pub shrinks: u32,
    /// The test in which a sequence can be put, to debug it.
    pub place: &'static str,
}

impl Search {
    /// Runs random sequences on a few threads. Panics with the shortest one found that breaks a promise, as `tell` prints it.
    pub(crate) fn run<S: Strategy>(
        self,
        strategy: impl Fn() -> S + Sync,
        run: impl Fn(&S::Value) -> Result<(), String> + Sync,
        tell: impl Fn(&str, &S::Value) -> String + Sync,
    ) {
        let Self { seed, sequences, shrinks, place } = self;
        let seed = setting("CONFREV_MODEL_SEED").unwrap_or(seed);
        let cases =
            setting("CONFREV_MODEL_SEQUENCES").map_or(sequences, |count| u32::try_from(count).unwrap());
        println!("CONFREV_MODEL_SEED={seed} CONFREV_MODEL_SEQUENCES={cases}");
        let start = Instant::now();
        let share = cases.div_ceil(u32::from(THREADS));
        let run_share = |thread| {
            let runtime = runtime();
            let _guard = runtime.enter();
            let config = Config {
                cases: share,
                failure_persistence: None,
                max_shrink_iters: shrinks,
                ..Config::default()
            };
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes(seed, thread));
            let outcome = TestRunner::new_with_rng(config, rng).run(&strategy(), |sequence| {
                let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| run(&sequence)));
                outcome.unwrap_or_else(|_| Err("a panic".to_owned())).map_err(TestCaseError::fail)
            });
            match outcome {
                Ok(()) => Ok(()),
                Err(TestError::Fail(reason, sequence)) => Err(tell(&reason.to_string(), &sequence)),
                Err(TestError::Abort(reason)) => Err(reason.to_string()),
            }
        };
        let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let run_share = &run_share;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run_share(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for outcome in outcomes {
            outcome.unwrap_or_else(|reason| {
                panic!(
                    "{reason}To reproduce: CONFREV_MODEL_SEED={seed} CONFREV_MODEL_SEQUENCES={cases} cargo test --test model; \
                     or put these events into `{place}`, and run that with CONFREV_MODEL_TRACE=1."
                )
            });
        }
        println!("{cases} sequences, {:.1} s", start.elapsed().as_secs_f64());
    }
}
