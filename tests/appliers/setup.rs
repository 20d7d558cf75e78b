//! The confrev of `tests/kinds`, which gives tools more time between a ConfigMap and the workload that comes with it.

use confrev_controlplane::Program;

pub(crate) fn program() -> Program {
    crate::kinds::program_with(&["--settle=5s"])
}
