//! Completion: scripts for shells, and live names for kubectl's plugin completion.

use std::collections::BTreeSet;

use clap::{Arg, Args, Command, Parser, ValueEnum as _};
use clap_complete::Shell;
use kube::config::Kubeconfig;

use super::{
    failure::Failure,
    inventory::Inventory,
    objects::{self, OptedIn, Scope},
    output::{self, Text},
    target::{Flags, HEADING, Target},
};
use crate::snapshot::is_object_name;

/// Options of `completion`.
#[derive(Debug, Args)]
pub(super) struct CompleteOptions {
    /// The shell.
    shell: Shell,
}

/// The words of the command line so far; the last one is to be completed.
#[derive(Debug, Args)]
pub(super) struct Words {
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    words: Vec<String>,
}

/// Prints a shell's script for the program under its own name, `confrev`.
pub(super) fn script(program: &mut Command, options: &CompleteOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, program, "confrev", &mut script);
    let mut text = Text::default();
    text.push_content("", &String::from_utf8_lossy(&script));
    output::print(&text)
}

/// A command line with nothing but the flags that select the cluster and the namespace.
#[derive(Debug, Parser)]
struct ClusterFlags {
    #[command(flatten)]
    flags: Flags,
}

/// cobra's directives: offer these words only, or offer files.
const WORDS: &str = ":4";
const FILES: &str = ":0";

/// Prints the possible next words, one per line, and a directive for kubectl. Source: the completion protocol of the Go
/// library cobra, which kubectl uses. The engine of `clap_complete` is behind its feature `unstable-dynamic`, and speaks to scripts of its own.
pub(super) async fn run(program: &Command, words: &Words) -> Result<(), Failure> {
    let (last, before) =
        words.words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let valued = before.last().and_then(|word| flag(program, before, word)).filter(|flag| takes_value(flag));
    let mut directive = WORDS;
    let found = match (before.first(), valued) {
        (None, _) => commands(program),
        (Some(_), Some(flag)) => match flag.get_long().unwrap_or_default() {
            "output" => flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
            "namespace" | "confrev-namespace" => namespaces(program, before).await.unwrap_or_default(),
            // The workload's own sources, as for `pin`; all of them if no workload is given yet.
            "source" => {
                let names = names(program, before);
                let like = if names.is_empty() { "history" } else { "pin" };
                let line: Vec<_> = std::iter::once(like).chain(names).map(str::to_owned).collect();
                objects(program, like, &line, before).await.unwrap_or_default()
            }
            name @ ("context" | "cluster" | "user") => of_kubeconfig(program, name, before),
            _ => {
                directive = FILES;
                Vec::new()
            }
        },
        (Some(command), None) if last.starts_with('-') => flags(program, command),
        (Some(command), None) if command == "completion" && names(program, before).is_empty() => {
            Shell::value_variants().iter().map(ToString::to_string).collect()
        }
        (Some(command), None) => objects(program, command, before, before).await.unwrap_or_default(),
    };
    let mut fitting: Vec<_> = found.iter().filter(|word| word.starts_with(last)).cloned().collect();
    if fitting.is_empty() && !last.contains('/') {
        // The name alone is accepted if only one object has it.
        let names = found.iter().filter_map(|word| word.split_once('/'));
        fitting = names.map(|(_, name)| name.to_owned()).filter(|name| name.starts_with(last)).collect();
    }
    fitting.push(directive.to_owned());
    output::print(&fitting.iter().collect())
}

/// The command's flag with the name `word`, which contains no value.
fn flag<'p>(program: &'p Command, before: &[String], word: &str) -> Option<&'p Arg> {
    let command = program.find_subcommand(before.first()?)?;
    let is_it = |argument: &&Arg| {
        let long = word.strip_prefix("--").is_some_and(|long| argument.get_long() == Some(long));
        let short = word.strip_prefix('-').is_some_and(|short| {
            argument.get_short().is_some_and(|known| short.len() == 1 && short.starts_with(known))
        });
        long || short
    };
    command.get_arguments().find(is_it)
}

fn takes_value(flag: &Arg) -> bool {
    flag.get_action().takes_values()
}

async fn namespaces(program: &Command, before: &[String]) -> Result<Vec<String>, Failure> {
    let target = Target::find(&flags_of(program, before)).await?;
    let found = target.list("/api/v1/namespaces", "Namespace", "").await?;
    Ok(found.iter().map(|namespace| objects::text(namespace, "/metadata/name").to_owned()).collect())
}

/// The names of contexts, clusters or users in the kubeconfig.
fn of_kubeconfig(program: &Command, what: &str, before: &[String]) -> Vec<String> {
    let read = flags_of(program, before).kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let Ok(config) = read else { return Vec::new() };
    match what {
        "context" => config.contexts.into_iter().map(|context| context.name).collect(),
        "cluster" => config.clusters.into_iter().map(|cluster| cluster.name).collect(),
        _ => config.auth_infos.into_iter().map(|user| user.name).collect(),
    }
}

fn commands(program: &Command) -> Vec<String> {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

fn flags(program: &Command, command: &str) -> Vec<String> {
    let Some(command) = program.find_subcommand(command) else { return Vec::new() };
    command
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .map(|long| format!("--{long}"))
        .collect()
}

/// Live names of workloads, sources or snapshots, depending on the command and the number of names given so far.
async fn objects(
    program: &Command,
    command: &str,
    before: &[String],
    line: &[String],
) -> Result<Vec<String>, Failure> {
    let names = names(program, before);
    let target = Target::find(&flags_of(program, line)).await?;
    let scope = Scope::Namespace(target.namespace.clone());
    let inventory = Inventory::read_workloads(&target, &scope).await?;
    let workloads = &inventory.workloads;
    let references = |fits: &dyn Fn(&OptedIn) -> bool| -> Vec<_> {
        let fitting = workloads.iter().filter(|workload| fits(workload));
        fitting.map(|workload| workload.reference().to_lowercase()).collect()
    };
    let sources = |users: &[&OptedIn]| -> Vec<_> {
        let sources: BTreeSet<_> = users.iter().flat_map(|workload| workload.sources()).collect();
        // A template may refer to any text, and some shells execute what a completion offers.
        let sources = sources.into_iter().filter(|source| is_object_name(&source.name));
        sources.map(|source| format!("{}/{}", source.kind.as_str().to_lowercase(), source.name)).collect()
    };
    let of_all = || sources(&workloads.iter().collect::<Vec<_>>());
    Ok(match (command, names.len()) {
        ("status" | "tree" | "show", 0) => references(&|_| true),
        ("undo" | "unpin" | "roll" | "pin", 0) => references(&|workload| workload.kind.rolls),
        ("pause", 0) => references(&|workload| workload.kind.rolls && workload.record.track),
        ("resume", 0) => references(&|workload| workload.kind.rolls && !workload.record.track),
        ("waves", 0) => {
            let actions = ["promote", "abort", "retry"].map(str::to_owned).into_iter();
            actions.chain(of_all()).collect()
        }
        ("history" | "impact" | "restore" | "revoke", 0) | ("waves", 1) => of_all(),
        ("pin", 1) => sources(&[inventory.find(&target, names[0])?]),
        ("diff" | "wait", 0) => references(&|_| true).into_iter().chain(of_all()).collect(),
        ("diff", 1 | 2) | ("restore" | "revoke", 1) | ("pin", 2) => {
            let Some(source) = names.get(usize::from(command == "pin")) else { return Ok(Vec::new()) };
            let history = super::history::History::read(&target, objects::source_name(source)?).await?;
            history.snapshots.into_iter().map(|(name, _)| name).collect()
        }
        _ => Vec::new(),
    })
}

/// The names given so far, without flags and their values.
fn names<'b>(program: &Command, before: &'b [String]) -> Vec<&'b str> {
    let mut names = Vec::new();
    let mut words = before[1..].iter();
    while let Some(word) = words.next() {
        if flag(program, before, word).is_some_and(takes_value) {
            words.next();
        } else if !word.starts_with('-') {
            names.push(word.as_str());
        }
    }
    names
}

/// The given flags that select the cluster and the namespace.
fn flags_of(program: &Command, before: &[String]) -> Flags {
    // `status` has all of these flags, like every command that connects to a cluster.
    let command = ["status".to_owned()];
    let mut line = vec!["confrev".to_owned()];
    let mut words = before[1..].iter();
    while let Some(word) = words.next() {
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        let found = flag(program, &command, name);
        let Some(found) = found.filter(|flag| flag.get_help_heading() == Some(HEADING)) else { continue };
        line.push(name.to_owned());
        if takes_value(found) {
            line.extend(value.map(str::to_owned).or_else(|| words.next().cloned()));
        }
    }
    ClusterFlags::try_parse_from(line).map(|parsed| parsed.flags).unwrap_or_default()
}
