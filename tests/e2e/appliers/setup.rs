//! The confrev of `tests/e2e/kinds`, with more time for tools between a ConfigMap and its workload.

use confrev_controlplane::Program;

pub(crate) fn program() -> Program {
    crate::kinds::program_with(&["--settle=5s"])
}
