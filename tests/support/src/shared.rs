//! The shared confrev, and the lock that a test needs to stop it.

use std::ops::{Deref, DerefMut};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

use confrev_controlplane::Program;

/// While a test holds this, confrev runs and no other test stops it.
pub struct Running(RwLockReadGuard<'static, Program>);

/// While a test holds this, no other test uses confrev.
pub struct Exclusive(RwLockWriteGuard<'static, Program>);

/// The confrev of a suite: a `static` of the suite, set up by the first test.
pub struct SharedProgram {
    set_up: fn() -> Program,
    program: OnceLock<RwLock<Program>>,
}

impl SharedProgram {
    /// `set_up` installs confrev.
    pub const fn new(set_up: fn() -> Program) -> Self {
        Self { set_up, program: OnceLock::new() }
    }

    /// Waits until no test uses confrev exclusively. It is running then.
    pub fn running(&'static self) -> Running {
        loop {
            let program = self.program().read().unwrap_or_else(PoisonError::into_inner);
            if program.is_started() {
                return Running(program);
            }
            drop(program);
            drop(self.exclusive());
        }
    }

    /// Waits until no other test uses confrev. It is running then.
    pub fn exclusive(&'static self) -> Exclusive {
        let mut program = self.program().write().unwrap_or_else(PoisonError::into_inner);
        // A failed test may have left confrev in any state, so start it if necessary.
        if !program.is_running() {
            program.kill();
            program.start();
        }
        Exclusive(program)
    }

    fn program(&self) -> &RwLock<Program> {
        self.program.get_or_init(|| RwLock::new((self.set_up)()))
    }
}

impl Exclusive {
    /// Lets the other tests continue. confrev must be running.
    pub fn downgrade(self) -> Running {
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
