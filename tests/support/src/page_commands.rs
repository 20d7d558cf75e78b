//! The commands of the documentation, by page and heading, and the commands that no test can run, with the reason. Tests
//! on a control plane read the commands through this module; `tests/repository/documented_commands.rs` checks that every command is covered.

use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// Pages outside `docs/`.
pub const OTHERS: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "examples/README.md", "certs/README.md"];

const COMPILES: &str = "it compiles and runs separately; a test checks that the `make` target exists";
const ENGINE: &str = "it needs a cluster of containers, or a container engine";
const INTERNET: &str = "it needs a registry";

/// Pages, their commands that are not run, and the reasons.
pub const NOT_RUN: [(&str, &str, &str); 16] = [
    ("README.md", "make demo", COMPILES),
    ("README.md", "make test", "it runs this test"),
    ("docs/install.md", "make build", COMPILES),
    (
        "docs/evidence/reliability.md",
        "make chaos CONFREV_CHAOS_MINUTES=15 CONFREV_CHAOS_SEED=1",
        "it takes a quarter of an hour",
    ),
    ("docs/evidence/reliability.md", "make model-exhaustive", "it takes many minutes"),
    ("docs/evidence/reliability.md", "make fuzz MINUTES=20", "it needs a nightly compiler and cargo-fuzz"),
    ("docs/evidence/reliability.md", "make test-waves", "it takes many minutes; a smaller form is in storms"),
    ("docs/evidence/reliability.md", "make soak MINUTES=60", "it takes an hour"),
    ("docs/evidence/replayed-outages.md", "make outages", "it takes many minutes"),
    ("docs/evidence/performance.md", "make bench", "it takes ten minutes, and needs the machine to itself"),
    (
        "docs/commands.md",
        "kubectl krew install --manifest=target/krew/confrev.yaml --archive=target/krew/confrev-v0.1.0-linux-amd64.tar.gz",
        "it needs krew, which downloads its index from the internet",
    ),
    (
        "docs/concepts.md",
        "kubectl logs -l confrev.dev/revision=1d7c507805",
        "the pods of the tests are fakes, and write no log",
    ),
    ("docs/install.md", "kind load image-archive target/image/confrev.tar", ENGINE),
    ("docs/install.md", "k3d image import target/image/confrev.tar", ENGINE),
    (
        "docs/install.md",
        "skopeo copy oci-archive:target/image/confrev.tar docker://registry.example.com/confrev:0.1.0",
        INTERNET,
    ),
    ("docs/install.md", "docker load --input target/image/confrev.tar", ENGINE),
];

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block<'p> {
    /// The heading above the block, of any level.
    pub heading: &'p str,
    /// The language after the opening fence.
    pub language: &'p str,
    /// The lines between the fences.
    pub lines: Vec<&'p str>,
}

/// A command, and its output according to the page; empty if the page shows none.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command as the page shows it, without the prompt.
    pub line: String,
    /// The lines of output that the page shows.
    pub said: Vec<String>,
}

/// The path of every page, relative to the repository.
pub fn pages() -> Vec<PathBuf> {
    let mut found: Vec<_> = OTHERS.iter().map(PathBuf::from).collect();
    let mut open = vec![PathBuf::from("docs")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text of a page.
pub fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The lines outside of fenced blocks, and the blocks.
pub fn parts(text: &str) -> (Vec<&str>, Vec<Block<'_>>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::new());
    let mut open: Option<Block<'_>> = None;
    let mut heading = "";
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some(Block { heading, language, lines: Vec::new() }),
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {
                if line.starts_with('#') {
                    heading = line.trim_start_matches('#').trim();
                }
                prose.push(line);
            }
        }
    }
    assert!(open.is_none(), "a block does not end");
    (prose, blocks)
}

impl Block<'_> {
    /// Whether the block contains shell commands.
    pub fn is_typed(&self) -> bool {
        ["console", "sh", "bash"].contains(&self.language)
    }

    /// The commands of the block: all lines, or if there are prompts, the lines with a prompt. A line that ends with a backslash
    /// or a pipe continues on the next line. Comment lines are left out.
    pub fn commands(&self) -> Vec<Command> {
        let has_prompts = self.lines.iter().any(|line| line.starts_with("$ "));
        let mut found: Vec<Command> = Vec::new();
        for line in &self.lines {
            let goes_on =
                |command: &&mut Command| command.said.is_empty() && command.line.ends_with(['\\', '|']);
            if let Some(command) = found.last_mut().filter(goes_on) {
                command.line = format!("{}\n{line}", command.line);
            } else if let Some(typed) = line.strip_prefix("$ ").or((!has_prompts).then_some(line)) {
                if !typed.trim().is_empty() && !typed.starts_with('#') {
                    found.push(Command { line: typed.to_owned(), said: Vec::new() });
                }
            } else {
                let command = found.last_mut().unwrap_or_else(|| panic!("output before a prompt: {line}"));
                command.said.push((*line).to_owned());
            }
        }
        found
    }
}

/// The reason why a command of a page is not run; `None` if a test must run it.
pub fn why_not(page: &str, line: &str) -> Option<&'static str> {
    NOT_RUN.iter().find(|(on, command, _)| *on == page && *command == line).map(|(.., reason)| *reason)
}

/// The commands that a test must run under a heading of a page, of all its blocks.
pub fn under(page: &str, heading: &str) -> Vec<Command> {
    let text = read(Path::new(page));
    let (_, blocks) = parts(&text);
    let blocks = blocks.iter().filter(|block| block.heading == heading && block.is_typed());
    let commands = blocks.flat_map(Block::commands);
    commands.filter(|command| why_not(page, &command.line).is_none()).collect()
}

/// The first YAML under a heading of a page. It is the content of the file that the commands there use.
pub fn yaml_under(page: &str, heading: &str) -> String {
    let text = read(Path::new(page));
    let (_, blocks) = parts(&text);
    let block = blocks.iter().find(|block| block.heading == heading && block.language == "yaml");
    block.unwrap_or_else(|| panic!("{page} has no YAML under {heading:?}")).lines.join("\n")
}
