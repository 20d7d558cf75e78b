//! Every command of a page is run by a test that reads it from that page, or is in the table of commands that no test can
//! run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::page_commands::{NOT_RUN, pages, parts, read, under, why_not};

/// The folders of the tests that run commands of pages.
const FOLDERS: [&str; 2] = ["tests/e2e/appliers", "tests/e2e/chart"];
/// The first words of commands.
const TOOLS: [&str; 6] = ["$", "kubectl", "helm", "make", "confrev", "openssl"];

/// The parts of pages that tests open, by page and heading.
fn opened() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        for file in files {
            let text = fs::read_to_string(file).unwrap();
            // The call may be broken into several lines.
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace("( \"", "(\"");
            for call in text.split("open(\"").skip(1) {
                let mut words = call.split('"');
                let (page, comma, heading) = (words.next(), words.next(), words.next());
                if let (Some(page), Some(", "), Some(heading)) = (page, comma, heading) {
                    found.insert((page.to_owned(), heading.to_owned()));
                }
            }
        }
    }
    found
}

/// A command without a test is in `NOT_RUN`, with the reason.
#[test]
fn every_documented_command_is_tested_or_excused() {
    let opened = opened();
    let (mut headings, mut excused) = (BTreeSet::new(), BTreeSet::new());
    let mut problems = Vec::new();
    for page in pages() {
        let (text, name) = (read(&page), page.display().to_string());
        for block in parts(&text).1 {
            if !block.is_typed() {
                let typed =
                    |line: &&str| line.split_whitespace().next().is_some_and(|word| TOOLS.contains(&word));
                problems.extend(
                    block
                        .lines
                        .iter()
                        .copied()
                        .find(typed)
                        .map(|line| format!("{name}: not `console`: {line}")),
                );
                continue;
            }
            let part = (name.clone(), block.heading.to_owned());
            for command in block.commands() {
                if why_not(&name, &command.line).is_some() {
                    excused.insert((name.clone(), command.line));
                } else if !opened.contains(&part) {
                    problems.push(format!("{name}, {:?}: no test runs {:?}", block.heading, command.line));
                } else {
                    headings.insert(part.clone());
                }
            }
        }
    }
    assert_eq!(
        problems, [""; 0],
        "run the command in a test that opens this part of the page, or add it to NOT_RUN"
    );
    for (page, command, reason) in NOT_RUN {
        assert!(
            excused.contains(&(page.to_owned(), command.to_owned())),
            "{page} has no {command:?} ({reason})"
        );
    }
    let none: Vec<_> = opened.difference(&headings).collect();
    assert!(none.is_empty(), "a test opens parts without commands: {none:?}");
}

#[test]
fn parses_commands_of_a_page() {
    let page = "# One\n```console\n$ a \\\n  b\nsaid\n$ c |\n  d\n```\n## Two\n```sh\ne f   # g\n# h\n\ni\n```\n```yaml\nj: k\n```\n";
    let (prose, blocks) = parts(page);
    assert_eq!(prose, ["# One", "## Two"]);
    let found = blocks.iter().filter(|block| block.is_typed()).flat_map(|block| {
        block.commands().into_iter().map(|command| (block.heading, command.line, command.said.join("\n")))
    });
    let found: Vec<_> = found.collect();
    let is = |heading, line: &str, said: &str| (heading, line.to_owned(), said.to_owned());
    let expected = [
        is("One", "a \\\n  b", "said"),
        is("One", "c |\n  d", ""),
        is("Two", "e f   # g", ""),
        is("Two", "i", ""),
    ];
    assert_eq!(found, expected);
    assert!(under("docs/install.md", "Install").iter().all(|command| !command.line.starts_with("docker")));
}
