//! Completion: scripts for shells, and live names for kubectl's plugin completion.

use std::collections::BTreeSet;

use clap::{Arg, Args, CommandFactory as _, Parser as _};
use clap_complete::Shell;
use kube::config::Kubeconfig;

use super::{
    Cli, Command, Failure,
    inventory::{self, Scope},
    output,
    target::{Flags, HEADING, Target},
};

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
pub(super) fn script(options: &CompleteOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "confrev", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// cobra's directives: offer these words only, or offer files.
const WORDS: &str = ":4";
const FILES: &str = ":0";

/// Prints the possible next words, one per line, and a directive for kubectl. Source: the completion protocol of the Go
/// library cobra, which kubectl uses.
pub(super) async fn run(words: &Words) -> Result<(), Failure> {
    let (last, before) =
        words.words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let valued = before.last().and_then(|word| flag(before, word)).filter(takes_value);
    let mut directive = WORDS;
    let found = match (before.first(), valued) {
        (None, _) => commands(),
        (Some(_), Some(flag)) => match flag.get_long().unwrap_or_default() {
            "output" => flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
            "namespace" | "confrev-namespace" => namespaces(before).await.unwrap_or_default(),
            "source" => objects("history", &before[..1], before).await.unwrap_or_default(),
            name @ ("context" | "cluster" | "user") => of_kubeconfig(name, before),
            _ => {
                directive = FILES;
                Vec::new()
            }
        },
        (Some(command), None) if last.starts_with('-') => flags(command),
        (Some(command), None) => objects(command, before, before).await.unwrap_or_default(),
    };
    let mut fitting: Vec<_> = found.iter().filter(|word| word.starts_with(last)).cloned().collect();
    if fitting.is_empty() && !last.contains('/') {
        // The name alone is accepted if only one object has it.
        let names = found.iter().filter_map(|word| word.split_once('/'));
        fitting = names.map(|(_, name)| name.to_owned()).filter(|name| name.starts_with(last)).collect();
    }
    fitting.push(directive.to_owned());
    output::print(&(fitting.join("\n") + "\n"))
}

/// The command's flag with the name `word`, which contains no value.
fn flag(before: &[String], word: &str) -> Option<Arg> {
    let cli = Cli::command();
    let command = cli.find_subcommand(before.first()?)?;
    let is_it = |argument: &&Arg| {
        let long = word.strip_prefix("--").is_some_and(|long| argument.get_long() == Some(long));
        let short = word.strip_prefix('-').is_some_and(|short| {
            argument.get_short().is_some_and(|known| short.len() == 1 && short.starts_with(known))
        });
        long || short
    };
    command.get_arguments().find(is_it).cloned()
}

fn takes_value(flag: &Arg) -> bool {
    flag.get_action().takes_values()
}

async fn namespaces(before: &[String]) -> Result<Vec<String>, Failure> {
    let target = Target::find(&flags_of(before)).await?;
    let found = target.list("/api/v1/namespaces", "Namespace", "").await?;
    Ok(found.iter().map(|namespace| inventory::text(namespace, "/metadata/name").to_owned()).collect())
}

/// The names of contexts, clusters or users in the kubeconfig.
fn of_kubeconfig(what: &str, before: &[String]) -> Vec<String> {
    let read = flags_of(before).kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let Ok(config) = read else { return Vec::new() };
    match what {
        "context" => config.contexts.into_iter().map(|context| context.name).collect(),
        "cluster" => config.clusters.into_iter().map(|cluster| cluster.name).collect(),
        _ => config.auth_infos.into_iter().map(|user| user.name).collect(),
    }
}

fn commands() -> Vec<String> {
    let command = Cli::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

fn flags(command: &str) -> Vec<String> {
    let cli = Cli::command();
    let Some(command) = cli.find_subcommand(command) else { return Vec::new() };
    command
        .get_arguments()
        .filter_map(|argument| argument.get_long())
        .map(|long| format!("--{long}"))
        .collect()
}

/// Live names of workloads, sources or snapshots, depending on the command and the number of names given so far.
async fn objects(command: &str, before: &[String], line: &[String]) -> Result<Vec<String>, Failure> {
    let names = names(before);
    let target = Target::find(&flags_of(line)).await?;
    let scope = Scope::Namespace(target.namespace.clone());
    let workloads = inventory::workloads(&target, &scope).await?;
    let references = || workloads.iter().map(|workload| workload.reference().to_lowercase());
    let sources = || {
        let sources: BTreeSet<_> = workloads.iter().flat_map(inventory::OptedIn::sources).collect();
        let sources = sources.into_iter();
        sources.map(|source| format!("{}/{}", source.kind.as_str().to_lowercase(), source.name))
    };
    Ok(match (command, names.len()) {
        ("status" | "tree" | "undo" | "unpin" | "pause" | "resume" | "pin", 0) => references().collect(),
        ("history" | "impact" | "restore", 0) | ("pin", 1) => sources().collect(),
        ("diff" | "wait", 0) => references().chain(sources()).collect(),
        ("diff" | "restore", 1..) | ("pin", 2) => {
            let Some(source) = names.get(usize::from(command == "pin")) else { return Ok(Vec::new()) };
            let history = super::history::History::read(&target, inventory::source_name(source)?).await?;
            history.snapshots.into_iter().map(|(name, _)| name).collect()
        }
        _ => Vec::new(),
    })
}

/// The names given so far, without flags and their values.
fn names(before: &[String]) -> Vec<&str> {
    let mut names = Vec::new();
    let mut words = before[1..].iter();
    while let Some(word) = words.next() {
        if flag(before, word).is_some_and(|flag| takes_value(&flag)) {
            words.next();
        } else if !word.starts_with('-') {
            names.push(word.as_str());
        }
    }
    names
}

/// The given flags that select the cluster and the namespace.
fn flags_of(before: &[String]) -> Flags {
    let mut line = vec!["confrev".to_owned(), "status".to_owned()];
    let mut words = before[1..].iter();
    while let Some(word) = words.next() {
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        // `status` has all of them, like every command that connects to a cluster.
        let found = flag(&line[1..], name);
        let Some(found) = found.filter(|flag| flag.get_help_heading() == Some(HEADING)) else { continue };
        line.push(name.to_owned());
        if takes_value(&found) {
            line.extend(value.map(str::to_owned).or_else(|| words.next().cloned()));
        }
    }
    match Cli::try_parse_from(line).map(|cli| cli.command) {
        Ok(Command::Status(options)) => options.flags(),
        _ => Flags::default(),
    }
}
