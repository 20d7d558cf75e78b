//! The project's words: one word for one thing, in the docs and in comments.

use std::{fs, path::Path};

/// Phrases that have a plainer form, with that form.
const PHRASES: [(&str, &str); 20] = [
    ("are told", "are reported"),
    ("for ever", "forever"),
    ("goes away", "is deleted"),
    ("hears of", "is notified of"),
    ("in vain", "without effect"),
    ("is gone", "is deleted, is missing"),
    ("is told", "is reported"),
    ("mended", "updated, repaired"),
    ("mends", "updates, repairs"),
    ("quarrel", "conflict"),
    ("take up", "roll to"),
    ("taken up", "rolled to"),
    ("takes up", "rolls to"),
    ("tells of", "reports"),
    ("the less", "less"),
    ("the one after", "the next"),
    ("the one before", "the previous"),
    ("who failed", "the workload that failed"),
    ("whoever", "the client, the user"),
    ("authority", "CA"),
];

/// The files with prose below a path: Markdown, Rust, and the chart.
fn files(path: &Path, found: &mut Vec<std::path::PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else if path
        .extension()
        .is_some_and(|extension| ["md", "rs", "yaml", "tpl"].map(Some).contains(&extension.to_str()))
    {
        found.push(path.to_owned());
    }
}

/// The prose of a file: all of Markdown without its code, and the comments of everything else.
fn prose(path: &Path, text: &str) -> Vec<String> {
    let is_markdown = path.extension().is_some_and(|extension| extension == "md");
    let mut in_code = false;
    let lines = text.lines().filter(|line| {
        let line = line.trim_start();
        in_code ^= line.starts_with("```");
        if is_markdown {
            !in_code && !line.starts_with("    ")
        } else {
            line.starts_with("//") || line.starts_with('#')
        }
    });
    lines.map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase()).collect()
}

/// Whether a line has the phrase, as whole words.
fn has(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
        !is_word(line[..at].chars().next_back()) && !is_word(line[at + phrase.len()..].chars().next())
    })
}

#[test]
fn docs_and_comments_use_plain_words() {
    assert!(has("it is gone.", "is gone") && !has("this gone", "is gone"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for path in ["docs", "src", "core", "tests", "examples", "bench", "fuzz/targets", "image/src", "charts"] {
        files(&root.join(path), &mut found);
    }
    let top = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    found.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    assert!(found.len() > 300, "{} files", found.len());
    let mut wrong = Vec::new();
    for path in found {
        // Its table has the phrases.
        if path.ends_with("words.rs") {
            continue;
        }
        for line in prose(&path, &fs::read_to_string(&path).unwrap()) {
            let phrases = PHRASES.iter().filter(|(phrase, _)| has(&line, phrase));
            wrong.extend(
                phrases.map(|(phrase, plain)| {
                    format!("{}: {phrase:?}, better: {plain}: {line}", path.display())
                }),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
