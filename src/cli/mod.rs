//! The program's commands and their options.

mod admitted;
mod analysis;
mod answers;
mod check;
mod complete;
mod content;
#[cfg(feature = "dashboard")]
mod dashboard;
mod delay;
mod delays;
mod diff;
mod digest;
mod duration;
mod examples;
mod explain;
mod failure;
mod fetch;
mod flags;
mod given;
mod group;
mod history;
mod impact;
mod inventory;
mod joining;
mod limits;
mod line;
mod lint;
mod lint_report;
mod manifests;
mod migrate;
mod moves;
mod notifications;
mod objects;
mod output;
mod pauses;
mod prune;
mod render;
mod restore;
mod revoke;
mod serve;
mod show;
mod source_state;
mod status;
mod strategies;
mod target;
mod tree;
mod unprotected;
mod version;
mod wait;
mod waves;
mod world;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use answers::answers;
use failure::Failure;

use crate::schema;

/// Revisioned config for Kubernetes: every ReplicaSet keeps, for its whole life, the config it was born with.
///
/// Exit codes: 0 done; 1 the command failed; 2 wrong arguments; 3 the answer is no (`wait`, `check`, `render`, `lint`, `revoke`). As with
/// kubectl, `diff` has its own: 0 no difference; 1 a difference; 2 an error.
#[derive(Debug, Parser)]
#[command(name = "confrev", version, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show which config each workload runs: its digest, the pods by digest, and the state towards the sources.
    Status(status::StatusOptions),
    /// Show a workload with its revisions, and their snapshots and pods.
    Tree(tree::TreeOptions),
    /// List the snapshots of a source and the users of each.
    History(history::HistoryOptions),
    /// Show the content that a pod, a workload or a revision runs with: since when, by whom, and how it differs from the present.
    Show(show::ShowOptions),
    /// Show the differences between two contents of a source, or between a workload's snapshots and their sources.
    Diff(diff::DiffOptions),
    /// Wait until every workload that uses a source runs its present content.
    Wait(wait::WaitOptions),
    /// Show how far a change has spread in waves, and begin, stop or continue them.
    Waves(waves::WavesOptions),
    /// Show which workloads would roll if a ConfigMap or Secret were applied, which would not, and why.
    Impact(impact::ImpactOptions),
    /// Roll the config back to the previous revision. The rest of the template stays as it is.
    Undo(moves::Undo),
    /// Pin a workload to a given snapshot of a source, until the source changes again.
    Pin(moves::Pin),
    /// Roll a workload to the present content of its sources, after an undo or a pin.
    Unpin(moves::ToPresent),
    /// Roll a workload to the present content of its sources now, whatever it waits for.
    Roll(moves::ToPresent),
    /// Stop a workload from following changes.
    Pause(moves::Track),
    /// Let a workload follow changes again.
    Resume(moves::Track),
    /// Write the content of a snapshot back to its source.
    Restore(restore::Restore),
    /// Remove a content from the cluster: move its workloads, and delete the revisions and snapshots that hold it.
    Revoke(revoke::RevokeOptions),
    /// Show workloads and sources in a browser, with the actions of the other commands.
    #[cfg(feature = "dashboard")]
    Dashboard(dashboard::DashboardOptions),
    /// Print manifests as admission would change them, without a cluster.
    Render(render::RenderOptions),
    /// Check manifests as admission would, without a cluster: settings, schemas, references and the order of an apply.
    Lint(lint::LintOptions),
    /// Show which workloads other tools roll (Reloader, Wave, checksums, kustomize), and what becomes of each with confrev.
    Migrate(Box<migrate::MigrateOptions>),
    /// Show which snapshots can be deleted, and why or why not.
    Prune(prune::PruneOptions),
    /// Check whether confrev works in the cluster: certificates, webhooks, leader, guard, rights.
    ///
    /// With -f or -k, also whether each workload in the manifests comes after the ConfigMaps and Secrets that it uses.
    Check(check::CheckOptions),
    /// Print the digest and the snapshot name of each ConfigMap and Secret in manifests.
    Digest(digest::DigestOptions),
    /// Print the versions of the client, the installation and the API server.
    Version(version::VersionOptions),
    /// Serve admission and run the controller.
    Serve(Box<serve::ServeOptions>),
    /// Print a completion script for a shell.
    Completion(complete::CompleteOptions),
    /// Check a content against a schema, both from standard input. confrev runs this by itself.
    #[command(name = schema::COMMAND, hide = true)]
    CheckSchema,
    /// Print the possible next words of a command line, for `kubectl_complete-confrev`.
    #[command(name = "__complete", hide = true)]
    Complete(complete::Words),
}

impl Cli {
    /// Runs a command line that starts with the program's name. Errors are printed to standard error, in one line.
    pub fn run(line: impl IntoIterator<Item = OsString>) -> ExitCode {
        let mut line: Vec<_> = line.into_iter().collect();
        // The definitions of all commands would take memory and processor time of the check.
        if line.len() == 2 && line.get(1).is_some_and(|word| word == schema::COMMAND) {
            return if schema::answer().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        let called = line.first().and_then(|name| Path::new(name).file_stem()?.to_str()).unwrap_or_default();
        // kubectl runs plugins under these names; the second one completes a command line of the first.
        let name = if called.starts_with("kubectl") { "kubectl confrev" } else { "confrev" };
        if called == "kubectl_complete-confrev" {
            line.insert(1, "__complete".into());
        }
        // The words of a line to complete stay as they are.
        if line.get(1).is_some_and(|word| word != "__complete") {
            let words = line.split_off(1);
            line.extend(line::normalize(&Self::command(), words));
        }
        let parsed = examples::attach(Self::command()).bin_name(name).try_get_matches_from(line);
        let command = match parsed.and_then(|matches| Self::from_arg_matches(&matches)) {
            Ok(cli) => cli.command,
            Err(error) => return misunderstood(&error),
        };
        let is_diff = matches!(command, Command::Diff(_));
        match command.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure::Different) => ExitCode::from(1),
            Err(error) => {
                // Messages of other programs may have several lines.
                let words: Vec<_> = error.to_string().lines().map(|line| line.trim().to_owned()).collect();
                output::note(&format!("error: {}", words.join(" ")));
                ExitCode::from(if is_diff { 2 } else { error.exit_code() })
            }
        }
    }
}

/// Prints the help if it was asked for; otherwise what is wrong with the arguments, and where to find help.
fn misunderstood(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::help(error);
            return ExitCode::from(u8::from(error.use_stderr()) * 2);
        }
        _ => {}
    }
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    output::note(&format!("{}; see --help", words.join(" ").replace(" tip: ", "; ")));
    ExitCode::from(2)
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Serve(options) => match options.wrong() {
                Some(wrong) => Err(Failure::Usage(wrong)),
                None => Ok(serve::run(*options)?),
            },
            Self::Digest(options) => digest::run(&options),
            Self::Render(options) => render::run(&options),
            Self::Lint(options) => lint::run(&options),
            Self::CheckSchema => Ok(schema::answer()?),
            Self::Completion(options) => complete::script(&mut Cli::command(), &options),
            asking => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(asking.ask())
            }
        }
    }

    /// Runs a command that connects to a cluster.
    async fn ask(self) -> Result<(), Failure> {
        match self {
            Self::Status(options) => status::run(&options).await,
            Self::Tree(options) => tree::run(&options).await,
            Self::History(options) => history::run(&options).await,
            Self::Show(options) => show::run(&options).await,
            Self::Diff(options) => diff::run(&options).await,
            Self::Wait(options) => wait::run(&options).await,
            Self::Waves(options) => waves::run(&options).await,
            Self::Impact(options) => impact::run(&options).await,
            Self::Undo(undo) => undo.run().await,
            Self::Pin(pin) => pin.run().await,
            Self::Unpin(options) => options.run(moves::Ends::Decisions).await,
            Self::Roll(options) => options.run(moves::Ends::Wait).await,
            Self::Pause(track) => track.run(false).await,
            Self::Resume(track) => track.run(true).await,
            Self::Restore(restore) => restore.run().await,
            Self::Revoke(options) => revoke::run(&options).await,
            #[cfg(feature = "dashboard")]
            Self::Dashboard(options) => dashboard::run(&options).await,
            Self::Migrate(options) => migrate::run(&options).await,
            Self::Prune(options) => prune::run(&options).await,
            Self::Check(options) => check::run(&options).await,
            Self::Version(options) => version::run(&options).await,
            Self::Complete(words) => complete::run(&Cli::command(), &words).await,
            Self::Serve(_)
            | Self::Digest(_)
            | Self::Render(_)
            | Self::Lint(_)
            | Self::Completion(_)
            | Self::CheckSchema => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../docs/commands.md");

    #[test]
    fn the_definition_of_all_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Arguments under a heading of flags would be listed out of order.
    #[test]
    fn arguments_are_listed_before_all_flags() {
        let cli = Cli::command();
        for command in cli.get_subcommands() {
            for argument in command.get_positionals() {
                let heading = argument.get_help_heading();
                assert_eq!(heading, None, "{}: {}", command.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn every_command_has_a_section_in_the_docs() {
        let shown = Cli::command();
        for command in shown.get_subcommands().filter(|command| !command.is_hide_set()) {
            let heading = format!("\n## {}\n", command.get_name());
            assert!(DOCS.contains(&heading), "docs/commands.md has no section {heading:?}");
        }
    }

    #[test]
    fn documented_command_lines_can_be_parsed() {
        let lines: Vec<_> = DOCS.lines().filter_map(|line| line.strip_prefix("$ kubectl ")).collect();
        assert!(lines.len() > 20, "{lines:?}");
        for line in lines {
            if let Err(error) = Cli::try_parse_from(line.split_whitespace()) {
                panic!("{line}: {error}");
            }
        }
    }
}
