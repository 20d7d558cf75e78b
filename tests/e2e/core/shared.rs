//! The shared confrev, and the lock that a test needs to stop it.

use std::ops::{Deref, DerefMut};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

use confrev_controlplane::Program;

/// While a test holds this, confrev runs and no other test stops it.
pub(crate) struct Running(RwLockReadGuard<'static, Program>);

/// While a test holds this, no other test uses confrev.
pub(crate) struct Exclusive(RwLockWriteGuard<'static, Program>);

/// Waits until no test uses confrev exclusively. It is running then.
pub(crate) fn running() -> Running {
    loop {
        let program = program().read().unwrap_or_else(PoisonError::into_inner);
        if program.is_started() {
            return Running(program);
        }
        drop(program);
        drop(exclusive());
    }
}

/// Waits until no other test uses confrev. It is running then.
pub(crate) fn exclusive() -> Exclusive {
    let mut program = program().write().unwrap_or_else(PoisonError::into_inner);
    // A failed test may have left confrev in any state, so start it if necessary.
    if !program.is_running() {
        program.kill();
        program.start();
    }
    Exclusive(program)
}

fn program() -> &'static RwLock<Program> {
    static PROGRAM: OnceLock<RwLock<Program>> = OnceLock::new();
    PROGRAM.get_or_init(|| RwLock::new(crate::setup::program()))
}

impl Exclusive {
    /// Lets the other tests continue. confrev must be running.
    pub(crate) fn downgrade(self) -> Running {
        Running(RwLockWriteGuard::downgrade(self.0))
    }
}

impl Deref for Running {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Deref for Exclusive {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl DerefMut for Exclusive {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("The end of confrev's log:\n{}", self.0.log_tail());
        }
    }
}
