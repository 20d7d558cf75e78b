//! The project's words: one word for one thing, in the docs and in comments.

use std::{fs, path::Path};

/// Phrases that have a plainer form, with that form.
const PHRASES: [(&str, &str); 57] = [
    ("again and again", "repeatedly"),
    ("agenda", "queue"),
    ("all else", "everything else, the others"),
    ("alike", "in the same way"),
    ("anew", "again"),
    ("anybody", "any user, any client"),
    ("are told", "are reported"),
    ("as ever", "as usual"),
    ("authority", "CA"),
    ("dearer", "more expensive"),
    ("everybody", "all users, all clients"),
    ("everyone", "all users, all clients"),
    ("for good", "permanently, not repeated"),
    ("for ever", "forever"),
    ("gets there", "is reached, is gained"),
    ("goes away", "is deleted"),
    ("goes on", "continues"),
    ("hears", "is notified, receives"),
    ("hears of", "is notified of"),
    ("in between", "meanwhile, between the two"),
    ("in vain", "without effect"),
    ("is gone", "is deleted, is missing"),
    ("is no sound", "is not a sound"),
    ("is told", "is reported"),
    ("let go", "release"),
    ("lets go", "releases"),
    ("likewise", "in the same way"),
    ("look after", "maintain"),
    ("looks at", "checks, reads"),
    ("looked at", "checked, read"),
    ("mended", "updated, repaired"),
    ("mends", "updates, repairs"),
    ("nobody", "no user, no client"),
    ("now and then", "at intervals"),
    ("of before", "previous, earlier"),
    ("once more", "again"),
    ("poses as", "pretends to be"),
    ("quarrel", "conflict"),
    ("somebody", "a user, another client"),
    ("someone", "a user, another client"),
    ("take up", "roll to"),
    ("taken up", "rolled to"),
    ("takes up", "rolls to"),
    ("tells of", "reports"),
    ("that which", "the object that"),
    ("the dearer", "the more expensive"),
    ("the less", "less"),
    ("the one after", "the next"),
    ("the one before", "the previous"),
    ("those of these", "the owners among these, and so on"),
    ("told", "reported"),
    ("took up", "rolled to"),
    ("who failed", "the workload that failed"),
    ("whichever", "any, regardless of which"),
    ("whoever", "the client, the user"),
    ("with what", "with the content that, with the object that"),
    ("went away", "was deleted"),
];

/// The most words in a cell of a table. A longer text is prose or a list.
const WORDS_OF_CELL: usize = 25;

/// The most words in the name of a test. Details are in its doc comment.
const WORDS_OF_NAME: usize = 8;

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
        let is_word = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '-');
        !is_word(line[..at].chars().next_back()) && !is_word(line[at + phrase.len()..].chars().next())
    })
}

#[test]
fn docs_and_comments_use_plain_words() {
    assert!(has("it is gone.", "is gone") && !has("this gone", "is gone"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for path in [
        "docs", "src", "core", "world", "tests", "examples", "bench", "fuzz", "image", "charts", "krew",
        "release", "certs",
    ] {
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

/// The texts in quotes of a line of code: errors, log lines, Events.
fn texts(line: &str) -> Vec<String> {
    let line = line.replace("\\\"", "'");
    line.split('"').skip(1).step_by(2).map(str::to_lowercase).filter(|text| text.contains(' ')).collect()
}

#[test]
fn messages_use_plain_words() {
    assert_eq!(texts(r#"error("it \"is\" gone", "x", "of before");"#), ["it 'is' gone", "of before"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for path in ["src", "core/src", "world/src", "image/src"] {
        files(&root.join(path), &mut found);
    }
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        for text in lines.flat_map(texts) {
            let phrase = PHRASES.iter().find(|(phrase, _)| has(&text, phrase));
            wrong.extend(phrase.map(|(_, plain)| format!("{}: {text:?}, better: {plain}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn test_names_are_short_and_plain() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut wrong, mut names) = (Vec::new(), Vec::new(), 0);
    for path in ["src", "core", "world", "tests", "bench", "image"] {
        files(&root.join(path), &mut found);
    }
    for path in found.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let mut is_test = false;
        for line in fs::read_to_string(path).unwrap().lines().map(str::trim) {
            if line == "#[test]" || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                if std::mem::take(&mut is_test) {
                    names += 1;
                    let words = name.replace('_', " ");
                    if words.split(' ').count() > WORDS_OF_NAME
                        || PHRASES.iter().any(|(phrase, _)| has(&words, phrase))
                    {
                        wrong.push(format!("{}: {name}", path.display()));
                    }
                }
            }
        }
    }
    assert!(names > 700, "{names} tests");
    assert!(wrong.is_empty(), "more than {WORDS_OF_NAME} words, or not plain: {}", wrong.join("\n"));
}

/// Words in backticks do not count: a cell may list values.
#[test]
fn cells_of_tables_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    files(&root.join("docs"), &mut found);
    let top = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    found.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let (mut cells, mut long) = (0, Vec::new());
    for path in found {
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| line.starts_with('|')) {
            for cell in line.split('|') {
                cells += 1;
                let words: Vec<_> = cell.split('`').step_by(2).flat_map(str::split_whitespace).collect();
                if words.len() > WORDS_OF_CELL {
                    long.push(format!("{}: {} words: {cell}", path.display(), words.len()));
                }
            }
        }
    }
    assert!(cells > 2000, "{cells} cells");
    assert!(long.is_empty(), "{}", long.join("\n"));
}
