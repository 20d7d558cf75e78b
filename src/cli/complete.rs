//! Completion: the shells' scripts, and live names for kubectl's plugin completion.

use clap::{Args, CommandFactory as _, Parser as _};
use clap_complete::Shell;

use super::{
    Cli, Command, Failure,
    inventory::{self, Scope},
    output,
    target::{Flags, Target},
};

/// Flags that say which cluster and namespace.
const CLUSTER_FLAGS: [&str; 9] =
    ["-n", "--namespace", "--context", "--kubeconfig", "--cluster", "--user", "--as", "--as-group", "--kind"];
/// Other flags whose value is a word of its own.
const WITH_VALUE: [&str; 6] = ["-o", "--output", "--source", "--timeout", "-f", "--filename"];

/// Options of `completion`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The shell.
    shell: Shell,
}

/// What stands on the command line so far; the last word is the one to complete.
#[derive(Debug, Args)]
pub(super) struct Words {
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    words: Vec<String>,
}

/// Prints a shell's script for the program by itself.
pub(super) fn script(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "confrev", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Prints what could come next, a line each, and kubectl's directive: 4, complete no files.
/// Source: the completion protocol of the Go library cobra, which kubectl speaks.
pub(super) async fn run(words: &Words) -> Result<(), Failure> {
    let (last, before) =
        words.words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let found = match before.first() {
        None => commands(),
        Some(_) if last.starts_with('-') => flags(&before[0]),
        Some(command) => objects(command, before).await.unwrap_or_default(),
    };
    let fitting: Vec<_> = found.into_iter().filter(|word| word.starts_with(last)).collect();
    output::print(&(fitting.join("\n") + if fitting.is_empty() { "" } else { "\n" } + ":4\n"))
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

/// Live names: workloads, sources, or snapshots, by the command and how many names it has already.
async fn objects(command: &str, before: &[String]) -> Result<Vec<String>, Failure> {
    let names = names(before);
    let target = Target::find(&flags_of(before)).await?;
    let scope = Scope::Namespace(target.namespace.clone());
    let workloads = inventory::workloads(&target, &scope).await?;
    let references = || workloads.iter().map(|workload| workload.reference().to_lowercase());
    let sources = || {
        let sources = workloads.iter().flat_map(inventory::OptedIn::sources);
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
        if WITH_VALUE.contains(&word.as_str()) || CLUSTER_FLAGS.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            names.push(word.as_str());
        }
    }
    names
}

/// The flags on the command line so far that say which cluster and namespace.
fn flags_of(before: &[String]) -> Flags {
    let mut line = vec!["confrev".to_owned(), "status".to_owned()];
    let mut words = before[1..].iter();
    while let Some(word) = words.next() {
        let (flag, value) =
            word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        if CLUSTER_FLAGS.contains(&flag) {
            let value = value.map(str::to_owned).or_else(|| words.next().cloned());
            line.extend([flag.to_owned(), value.unwrap_or_default()]);
        }
    }
    match Cli::try_parse_from(line).map(|cli| cli.command) {
        Ok(Command::Status(options)) => options.flags(),
        _ => Flags::default(),
    }
}
