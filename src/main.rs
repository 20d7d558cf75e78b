//! The `confrev` program; also `kubectl confrev`, under the name `kubectl-confrev`.

use std::process::ExitCode;

use clap::Parser as _;
use confrev::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
