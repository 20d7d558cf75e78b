//! The program's commands and their options.

mod digest;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Revisioned config for Kubernetes: every ReplicaSet keeps, for its whole life, the config it was born with.
#[derive(Debug, Parser)]
#[command(name = "confrev", version, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve admission and run the controller.
    Serve(Box<serve::Options>),
    /// Print the digest and the snapshot's name of each ConfigMap and Secret in manifests.
    Digest(digest::Options),
}

impl Cli {
    /// Runs the command. Errors are told on standard error, in one line.
    pub fn run(self) -> ExitCode {
        let result: Result<(), Box<dyn std::error::Error>> = match self.command {
            Command::Serve(options) => serve::run(*options).map_err(Into::into),
            Command::Digest(options) => digest::run(&options).map_err(Into::into),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
