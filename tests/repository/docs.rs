//! The documentation: its links resolve, its commands exist, and the program knows its keys.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use clap::{Parser as _, error::ErrorKind};
use confrev::{annotations, cli::Cli};

use crate::page_commands::{Block, pages, parts, read};

/// Tools whose arguments are not checked, and a loop of the shell.
const TOOLS: [&str; 9] = ["helm", "kind", "k3d", "skopeo", "docker", "ln", "openssl", "jq", "for"];
/// The kubectl commands of the docs.
const VERBS: [&str; 15] = [
    "krew", "apply", "label", "scale", "diff", "describe", "annotate", "get", "logs", "delete", "rollout",
    "create", "patch", "argo", "wait",
];
/// Manifests that the reader provides.
const FILES: [&str; 6] = ["web.yaml", "demo.yaml", "all.yaml", "shop.json", "shop.yaml", "-"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The targets of links and pictures.
fn links(text: &str) -> Vec<String> {
    let (prose, _) = parts(text);
    let prose = prose.join("\n");
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || "- _".contains(*c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// A path without `..`; `None` if it is outside the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    path.components().try_fold(PathBuf::new(), |mut plain, component| {
        match component {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            other => plain.push(other),
        }
        Some(plain)
    })
}

/// What is wrong with a link on a page.
fn broken(page: &Path, link: &str) -> Option<String> {
    if link.starts_with("https://") {
        return None;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let folder = page.parent().unwrap_or(Path::new(""));
    let target = if path.is_empty() { page.to_owned() } else { plain(&folder.join(path))? };
    if !root().join(&target).is_file() {
        return Some(format!("there is no {}", target.display()));
    }
    if page.starts_with("docs") && !target.starts_with("docs") {
        return Some("it leads out of the site".to_owned());
    }
    let headings = heading.map(|_| read(&target));
    let known = headings.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with('#'));
    let known: BTreeSet<_> = known.map(|line| anchor(line.trim_start_matches('#'))).collect();
    heading
        .filter(|heading| !known.contains(*heading))
        .map(|heading| format!("there is no heading {heading}"))
}

#[test]
fn links_of_the_docs_resolve() {
    let mut count = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            count += 1;
            let problem = broken(&page, &link);
            assert_eq!(problem, None, "{}: {link}", page.display());
        }
    }
    assert!(count > 60, "{count} links were found");
    for (link, problem) in
        [("none.md", "there is no"), ("concepts.md#none", "heading"), ("../README.md", "out of")]
    {
        let found = broken(Path::new("docs/README.md"), link).unwrap_or_default();
        assert!(found.contains(problem), "{link}: {found}");
    }
}

/// The parts of the site: tutorials, how-to guides, reference, explanation, and what shows that they are true. Each page has one of these
/// purposes.
const PARTS: [&str; 5] = ["# Learn", "# How to", "# Look up", "# Understand", "# Evidence"];

#[test]
fn every_page_has_one_purpose() {
    let summary = read(Path::new("docs/SUMMARY.md"));
    let (head, pages) = summary.split_once(PARTS[0]).expect("the first part");
    assert_eq!(links(head), ["README.md"], "a page is in no part");
    let parts = pages.lines().filter(|line| line.starts_with('#'));
    assert!(parts.eq(PARTS[1..].iter().copied()), "the parts are not {PARTS:?}");
    for part in pages.split("\n# ") {
        assert!(!links(part).is_empty(), "an empty part: {part}");
    }
}

/// The parts in backticks that name a Rust file or a folder.
fn code_paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split('`').skip(1).step_by(2);
    let names_code =
        |word: &str| word.ends_with('/') || Path::new(word).extension().is_some_and(|end| end == "rs");
    words.filter(move |word| !word.contains([' ', '*', '<']) && names_code(word))
}

/// A path is relative to the root, to `src`, to `core/src`, to `world/src`, or to a folder or crate that the same line names.
#[test]
fn guides_to_the_code_name_existing_files() {
    let mut count = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md", "docs/evidence/coverage.md"] {
        for line in read(Path::new(page)).lines() {
            let folders = code_paths(line).filter(|path| path.ends_with('/'));
            let folders: Vec<_> = folders.flat_map(|path| [path.to_owned(), format!("{path}src")]).collect();
            for path in code_paths(line) {
                count += 1;
                let bases = ["", "src", "core/src", "world/src"]
                    .into_iter()
                    .chain(folders.iter().map(String::as_str));
                let mut places = bases.map(|base| root().join(base).join(path));
                assert!(places.any(|place| place.exists()), "{page}: {path} does not exist: {line}");
            }
        }
    }
    assert!(count > 100, "{count} paths were found");
    for line in read(Path::new(".github/CODEOWNERS")).lines().filter(|line| line.starts_with('/')) {
        let path = line.split_whitespace().next().unwrap_or_default();
        assert!(root().join(path.trim_matches('/')).exists(), "CODEOWNERS: {path} does not exist");
    }
}

/// Each list has one file a line, and the functions in it.
#[test]
fn both_ways_name_existing_functions() {
    let guide = read(Path::new("ARCHITECTURE.md"));
    for way in ["The way of a review", "The way of a change in the controller"] {
        let list = guide.split(&format!("\n## {way}\n")).nth(1).and_then(|rest| rest.split("\n## ").next());
        let lines =
            list.unwrap().lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        let functions: Vec<_> = lines.map(functions_of_file).collect();
        assert!(functions.len() == 6 && functions.iter().sum::<usize>() >= 6, "{way}: {functions:?}");
    }
}

/// The number of functions that a line names. They are in its file, or in one beside it: `effects::opted_in`.
fn functions_of_file(line: &str) -> usize {
    let path = code_paths(line).next().unwrap_or_else(|| panic!("no file: {line}"));
    let mut functions = 0;
    for name in line.split('`').skip(1).step_by(2).filter(|name| *name != path) {
        functions += 1;
        let (place, function) = name.rsplit_once("::").unwrap_or(("", name));
        let beside = Path::new(path).with_file_name(format!("{place}.rs"));
        let place = if root().join(&beside).exists() { beside } else { path.into() };
        assert!(
            read(&place).contains(&format!("fn {function}")),
            "{} has no {function}: {line}",
            place.display()
        );
    }
    functions
}

/// Every picture is on a page, and every included file exists.
#[test]
fn summary_lists_every_page_once() {
    let summary = links(&read(Path::new("docs/SUMMARY.md")));
    let entries: BTreeSet<_> = summary.iter().map(|entry| Path::new("docs").join(entry)).collect();
    assert_eq!(entries.len(), summary.len(), "an entry is listed twice");
    let pages: BTreeSet<_> = pages()
        .into_iter()
        .filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(entries, pages);
    let all: String = pages.iter().map(|page| read(page)).collect();
    for picture in fs::read_dir(root().join("docs/images")).unwrap() {
        let name = picture.unwrap().file_name().to_string_lossy().into_owned();
        assert!(all.contains(&format!("images/{name})")), "{name} is on no page");
    }
    for page in pages {
        for line in read(&page).lines().filter_map(|line| line.strip_prefix("{{#include ")) {
            let target = page.parent().unwrap().join(line.trim_end_matches("}}"));
            assert!(root().join(&target).is_file(), "{}: there is no {}", page.display(), target.display());
        }
    }
}

/// The commands of a block, each on one line and without its comment.
fn commands(block: &Block<'_>) -> Vec<String> {
    let lines =
        block.commands().into_iter().map(|command| command.line.replace("\\\n", " ").replace('\n', " "));
    let plain = lines.map(|line| {
        line.split("  # ")
            .next()
            .unwrap_or_default()
            .split("   #")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    });
    plain.filter(|line| !line.is_empty()).collect()
}

/// What is wrong with a command; `whole` if it must be complete.
fn wrong(line: &str, whole: bool) -> Option<String> {
    let words: Vec<_> = line.split_whitespace().collect();
    match words[..] {
        ["kubectl", "confrev", ..] => not_ours(&words[1..], whole),
        ["confrev" | "./target/release/confrev", ..] => {
            not_ours(&[&["confrev"], &words[1..]].concat(), whole)
        }
        ["make", target, ..] => {
            let makefile = read(Path::new("Makefile"));
            let is_target = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            (!is_target).then(|| format!("there is no target {target}"))
        }
        ["kubectl", ..] => {
            let verb = words.iter().skip(1).find(|word| VERBS.contains(word));
            let files = words.windows(2).filter(|pair| ["-f", "-k", "--filename"].contains(&pair[0]));
            let missing =
                files.map(|pair| pair[1]).find(|file| !FILES.contains(file) && !root().join(file).exists());
            match (verb, missing) {
                (None, _) => Some("not a known kubectl command".to_owned()),
                (_, Some(file)) => Some(format!("there is no {file}")),
                _ => None,
            }
        }
        [tool, ..] if TOOLS.contains(&tool) => None,
        // A script of the repository.
        [script, ..] if script.contains('/') && root().join(script).is_file() => None,
        _ => Some("not a known tool".to_owned()),
    }
}

/// Why the program refuses a command line.
fn not_ours(words: &[&str], whole: bool) -> Option<String> {
    let error = Cli::try_parse_from(words).err()?;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let is_short = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    (!is_help && (whole || !is_short)).then(|| error.to_string())
}

/// A command is one of the program, the Makefile, kubectl or a known tool.
#[test]
fn documented_commands_exist() {
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        let (prose, blocks) = parts(&text);
        for block in blocks.iter().filter(|block| block.is_typed()) {
            for command in commands(block) {
                count += 1;
                assert_eq!(wrong(&command, true), None, "{}: {command}", page.display());
            }
        }
        // In the text, a command may be named without its arguments.
        let prose = prose.join(" ");
        for code in prose.split('`').skip(1).step_by(2) {
            if ["kubectl confrev", "confrev ", "make "].iter().any(|start| code.starts_with(start)) {
                count += 1;
                assert_eq!(wrong(code, false), None, "{}: {code}", page.display());
            }
        }
    }
    assert!(count > 120, "{count} commands were found");
    for line in
        ["kubectl confrev statsu", "kubectl confrev status --al", "make tea", "kubectl appyl -f x", "rm -r"]
    {
        assert!(wrong(line, true).is_some(), "{line}");
    }
}

/// The linked file exists and has the anchor.
#[test]
#[ignore = "it needs the built site: `make docs`"]
fn links_of_the_built_site_resolve() {
    let site = root().join("target/book");
    let mut open = vec![site.clone()];
    let mut pages = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("the site is built") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                pages.push(path);
            }
        }
    }
    let mut count = 0;
    for page in &pages {
        let html = fs::read_to_string(page).unwrap();
        // The 404 page is served under any path; the print page repeats all others.
        if page.ends_with("404.html") || page.ends_with("print.html") || page.ends_with("toc.html") {
            continue;
        }
        let targets = ["href=\"", "src=\""].iter().flat_map(|start| html.split(start).skip(1));
        for target in targets.filter_map(|rest| rest.split_once('"')).map(|(target, _)| target) {
            if target.is_empty() || target.contains("://") || target.starts_with("data:") {
                continue;
            }
            count += 1;
            let (path, anchor) = target.split_once('#').map_or((target, ""), |(path, anchor)| (path, anchor));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(file.is_file(), "{}: {target}", page.display());
            let other = if anchor.is_empty() { String::new() } else { fs::read_to_string(&file).unwrap() };
            let is_there = anchor.is_empty() || other.contains(&format!("id=\"{anchor}\""));
            assert!(is_there, "{}: {target}", page.display());
        }
    }
    assert!(pages.len() > 20 && count > 400, "{} pages with {count} links", pages.len());
}

/// Every label and annotation of confrev.
fn keys() -> BTreeSet<String> {
    annotations::KEYS.iter().map(|key| key.name.to_owned()).collect()
}

/// Every key in the docs and examples is one of the program's.
#[test]
fn documented_keys_match_the_program() {
    let keys = keys();
    let mut texts: Vec<_> = pages().iter().map(|page| (page.display().to_string(), read(page))).collect();
    for folder in ["canary", "blue-green", "statefulset", "cronjob", "secrets"] {
        let path = format!("examples/{folder}/app.yaml");
        texts.push((path.clone(), read(Path::new(&path))));
    }
    for (page, text) in &texts {
        for rest in text.split(annotations::PREFIX).skip(1) {
            let key: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            let key = format!("{}{}", annotations::PREFIX, key.trim_end_matches('-'));
            let is_part = [annotations::PREFIX, "confrev.dev/v"].contains(&key.as_str());
            assert!(is_part || keys.contains(&key), "{page}: {key}");
        }
    }
}

#[test]
fn every_example_folder_is_on_the_page() {
    let page = read(Path::new("examples/README.md"));
    for folder in fs::read_dir(root().join("examples")).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().to_string_lossy().into_owned();
        if folder.file_type().unwrap().is_dir() {
            assert!(page.contains(&format!("examples/{name}")), "{name} is not on the page");
        }
    }
}
