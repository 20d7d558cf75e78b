//! The options in `docs/reference.md` are those of the program. `CONFREV_GOLDENS=write` updates them.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use clap::{Arg, Command, CommandFactory as _};
use confrev::cli::Cli;

/// The heading of the part that the test writes.
const BEGIN: &str = "## Options\n";

/// The help of an option, without line breaks.
fn help(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let text = help.map(ToString::to_string).unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if text.ends_with('.') || text.is_empty() { text } else { text + "." }
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| argument.get_long().is_some_and(|long| long != "help"))
}

/// An option as in the table: `--name VALUE`.
fn spelled(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let value = argument.get_value_names().filter(|_| argument.get_action().takes_values());
    let value = value.map(|names| format!(" {}", names.join(" "))).unwrap_or_default();
    format!("{short}--{}{value}", argument.get_long().unwrap_or_default())
}

/// The tables: the options of `serve`, those for the cluster, and those of each command.
fn tables() -> String {
    let cli = Cli::command();
    let mut text = format!("{BEGIN}\n### confrev serve\n\nEach option is also an environment variable.\n\n");
    text += "| option | variable | default | meaning |\n|---|---|---|---|\n";
    let serve = cli.find_subcommand("serve").unwrap();
    for option in options(serve) {
        let variable = option.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
        let default: Vec<_> =
            option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() { String::new() } else { format!("`{}`", default.join(",")) };
        let default = default.replace("`false`", "");
        let variable = variable.unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {variable} | {default} | {} |", spelled(option), help(option));
    }
    text += "\n`CONFREV_LOG` sets the log level, as a filter of Rust's `tracing`: `debug`, or `info,confrev::admission=debug`.\n";
    text += "A release build has no level `trace`.\n";
    text += "\n### Cluster flags\n\nkubectl's own flags, for every command that connects to a cluster.\n\n";
    text += "| option | meaning |\n|---|---|\n";
    let status = cli.find_subcommand("status").unwrap();
    let of_cluster = |option: &&Arg| option.get_help_heading() == Some("Cluster");
    for option in options(status).filter(of_cluster) {
        let _ = writeln!(text, "| `{}` | {} |", spelled(option), help(option));
    }
    let flags = |command| -> BTreeSet<_> { options(command).filter(of_cluster).map(spelled).collect() };
    for command in cli.get_subcommands() {
        let extra: Vec<_> = flags(command).difference(&flags(status)).cloned().collect();
        assert!(extra.is_empty(), "{}: {extra:?} are not cluster flags", command.get_name());
    }
    text += "\n### kubectl confrev\n\n| command | option | meaning |\n|---|---|---|\n";
    for command in
        cli.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "serve")
    {
        for option in options(command).filter(|option| !of_cluster(option)) {
            let _ = writeln!(text, "| `{}` | `{}` | {} |", command.get_name(), spelled(option), help(option));
        }
    }
    text
}

#[test]
fn reference_lists_every_option_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, held) = page.split_at(page.find(BEGIN).expect("the page has no options"));
    let tables = tables();
    if std::env::var_os("CONFREV_GOLDENS").is_some_and(|value| value == "write") {
        fs::write(&path, format!("{before}{tables}")).unwrap();
        return;
    }
    assert!(held == tables, "docs/reference.md differs: CONFREV_GOLDENS=write updates it");
}
