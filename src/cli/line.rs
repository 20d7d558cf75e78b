//! Forms of a command line that kubectl accepts: flags before the command, and `TYPE NAME` beside `TYPE/NAME`.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::objects::{is_called, source_kind};
use crate::{kinds::Kinds, snapshot::is_object_name};

/// Rewrites the words after the program's name to the form that the commands define.
pub(super) fn normalize(program: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let Some(texts) = words.iter().map(|word| word.to_str()).collect::<Option<Vec<_>>>() else {
        return words;
    };
    let words = command_first(program, texts.into_iter().map(str::to_owned).collect());
    join_names(program, words).into_iter().map(OsString::from).collect()
}

/// Moves the flags before the command behind it. Flags of the program itself stay.
fn command_first(program: &Command, mut words: Vec<String>) -> Vec<String> {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        // Every command that connects to a cluster has the flags of `status`.
        let Some(flag) = flag(program, "status", word) else { return words };
        at += 1 + usize::from(flag.get_action().takes_values() && !is_with_value(word));
    }
    if at > 0 && at < words.len() {
        words[..=at].rotate_right(1);
    }
    words
}

/// Joins a type and a name in two words, where the command expects a workload or a source.
fn join_names(program: &Command, words: Vec<String>) -> Vec<String> {
    let names = match words.first().map(String::as_str) {
        // The workload and the snapshot; of `waves`, an action may come first.
        Some("pin" | "waves") => 2,
        Some(
            "status" | "tree" | "history" | "show" | "diff" | "wait" | "impact" | "undo" | "unpin" | "roll"
            | "pause" | "resume" | "restore" | "revoke",
        ) => 1,
        _ => return words,
    };
    let command = words[0].clone();
    let (mut joined, mut found, mut is_value) = (Vec::new(), 0, false);
    let mut rest = words.into_iter().peekable();
    while let Some(word) = rest.next() {
        let is_name = !is_value && !word.starts_with('-') && !joined.is_empty();
        is_value = !is_value
            && !is_with_value(&word)
            && flag(program, &command, &word)
                .is_some_and(|flag| flag.get_action().takes_values() && !flag.is_require_equals_set());
        if is_name {
            found += 1;
            let is_type = found <= names && is_type(&word);
            if let Some(name) = rest.next_if(|next| is_type && is_object_name(next)) {
                joined.push(format!("{word}/{name}"));
                continue;
            }
        }
        joined.push(word);
    }
    joined
}

/// Whether this is a type of workloads or sources, such as `deploy` or `configmap`.
fn is_type(word: &str) -> bool {
    source_kind(word).is_some() || Kinds::default().iter().any(|kind| is_called(kind, word))
}

/// Whether a flag is written with its value in one word.
fn is_with_value(word: &str) -> bool {
    if word.starts_with("--") { word.contains('=') } else { word.starts_with('-') && word.len() > 2 }
}

/// The flag of a command that this word gives.
fn flag<'p>(program: &'p Command, command: &str, word: &str) -> Option<&'p Arg> {
    let long = word.strip_prefix("--").map(|long| long.split('=').next().unwrap_or_default());
    let short = word.strip_prefix('-').filter(|_| long.is_none()).and_then(|short| short.chars().next());
    let is_it = |flag: &&Arg| {
        long.is_some_and(|long| flag.get_long() == Some(long))
            || (short.is_some() && flag.get_short() == short)
    };
    program.find_subcommand(command)?.get_arguments().find(is_it)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn lines_of_kubectl_are_understood() {
        for (line, wanted) in [
            ("-n shop status", "status -n shop"),
            ("--context=a -nshop tree web --all", "tree --context=a -nshop web --all"),
            ("undo deploy web", "undo deploy/web"),
            ("undo -n shop deployments.apps web --dry-run", "undo -n shop deployments.apps/web --dry-run"),
            ("undo --dry-run rollout web", "undo --dry-run rollout/web"),
            ("pin rollout web cm demo ~1", "pin rollout/web cm/demo ~1"),
            ("pin web demo ~1", "pin web demo ~1"),
            ("history -o json secret keys", "history -o json secret/keys"),
            ("restore secret ~1", "restore secret ~1"),
            ("diff demo 3a18d34e26 736a916696", "diff demo 3a18d34e26 736a916696"),
            ("unpin web --source configmap", "unpin web --source configmap"),
            ("waves cm demo", "waves cm/demo"),
            ("waves promote cm demo --all", "waves promote cm/demo --all"),
            ("waves abort demo", "waves abort demo"),
            ("status", "status"),
            ("--help", "--help"),
            ("--version", "--version"),
            ("-n", "-n"),
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            let found: Vec<_> = normalize(&Cli::command(), words)
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            assert_eq!(found.join(" "), wanted, "{line}");
        }
    }
}
