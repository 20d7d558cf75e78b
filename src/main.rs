//! The `confrev` program; also `kubectl confrev`, under the name `kubectl-confrev`.

use std::process::ExitCode;

use confrev::cli::Cli;

fn main() -> ExitCode {
    Cli::run(std::env::args_os())
}
