//! The files of each crate form layers: no file imports from a file that imports from it, directly or through others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The source folders of all crates.
const CRATES: [&str; 9] = [
    "src",
    "core/src",
    "world/src",
    "image/src",
    "bench/src",
    "bench/instructions/src",
    "tests/controlplane/src",
    "tests/properties/src",
    "tests/support/src",
];

/// A path of modules, without `crate`.
type ModulePath = Vec<String>;

/// What a file imports.
struct Imports {
    /// The paths of `use`, and whether each is a re-export.
    uses: Vec<(ModulePath, bool)>,
    /// Paths in the code.
    paths: Vec<ModulePath>,
}

/// The files of a crate by module.
struct Crate(BTreeMap<ModulePath, Imports>);

fn split(path: &str) -> ModulePath {
    path.split("::").map(str::to_owned).collect()
}

/// The paths of a `use` tree, such as `a::{b, c::d}`, each with its original name in place of an alias.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<ModulePath>) {
    let tree = tree.trim();
    let Some((before, group)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or_default().trim();
        if !name.is_empty() {
            found.push([prefix, &split(name)].concat());
        }
        return;
    };
    let before = before.trim_end_matches("::");
    let prefix = if before.is_empty() { prefix.to_vec() } else { [prefix, &split(before)].concat() };
    let group = group.strip_suffix('}').expect("the group ends");
    let (mut depth, mut start) = (0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, &group[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    expand(&prefix, &group[start..], found);
}

/// Where the unit tests begin that are in the file itself, at its end. A module of tests in another file ends nothing.
fn end_of_product(text: &str) -> usize {
    let is_in_file = |at: usize| text[at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let mut modules = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
    modules.find(|at| is_in_file(*at)).unwrap_or(text.len())
}

impl Imports {
    /// Reads a file, without its unit tests and its comments.
    fn read(text: &str) -> Self {
        let product = &text[..end_of_product(text)];
        let lines = product.lines().map(|line| line.split("//").next().unwrap_or_default());
        let (mut uses, mut code, mut open) = (Vec::new(), String::new(), None::<(String, bool)>);
        for line in lines {
            let begin = line.split_once("use ").filter(|(before, _)| {
                let before = before.trim();
                before.is_empty() || (before.starts_with("pub") && !before.contains(' '))
            });
            match (&mut open, begin) {
                (Some((tree, _)), _) => tree.push_str(line.trim()),
                (None, Some((before, rest))) => {
                    open = Some((rest.to_owned(), before.trim().starts_with("pub")));
                }
                (None, None) => {
                    code.push_str(line);
                    code.push('\n');
                }
            }
            if let Some((tree, is_public)) = open.take_if(|(tree, _)| tree.contains(';')) {
                let mut found = Vec::new();
                expand(&[], tree.split(';').next().unwrap_or_default(), &mut found);
                uses.extend(found.into_iter().map(|path| (path, is_public)));
            }
        }
        let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let paths = words.map(|word| word.trim_matches(':')).filter(|word| word.contains("::")).map(split);
        Self { uses, paths: paths.collect() }
    }
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut open = vec![folder.to_owned()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(folder).unwrap().with_extension("");
                let mut module: ModulePath =
                    relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                // The program of a crate that has a library too is a crate of its own.
                if path.ends_with("main.rs") && folder.join("lib.rs").exists() {
                    continue;
                }
                module.retain(|part| !["mod", "lib", "main"].contains(&part.as_str()));
                files.insert(module, Imports::read(&fs::read_to_string(&path).unwrap()));
            }
        }
        Self(files)
    }

    /// The path from the root of the crate; `None` for a path of another crate.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let first = path.first()?.as_str();
        if ["crate", "self", "super"].contains(&first) {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let kept = if first == "crate" { 0 } else { module.len().checked_sub(ups)? };
            let rest = path.iter().skip_while(|part| ["crate", "self", "super"].contains(&part.as_str()));
            return Some(module[..kept].iter().chain(rest).cloned().collect());
        }
        let child = [module.as_slice(), &path[..1]].concat();
        if self.0.contains_key(&child) {
            return Some([module.as_slice(), path].concat());
        }
        let (import, _) = self.0[module].uses.iter().find(|(import, _)| import.last() == path.first())?;
        if import.first() == path.first() {
            return None;
        }
        self.absolute(module, &[import.as_slice(), &path[1..]].concat())
    }

    /// The file that defines the item of a path; `None` if the path names a module.
    fn definition(&self, path: &[String]) -> Option<ModulePath> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
            let (module, rest) = path.split_at(length);
            let item = rest.first()?;
            let exported =
                self.0[module].uses.iter().find(|(name, public)| *public && name.last() == Some(item));
            let Some((exported, _)) = exported else { return Some(module.to_vec()) };
            let exported = self.absolute(&module.to_vec(), exported)?;
            let next = [exported.as_slice(), &rest[1..]].concat();
            if next == path {
                return Some(module.to_vec());
            }
            path = next;
        }
        None
    }

    /// The files from which each file imports.
    fn edges(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let of = |(module, imports): (_, &Imports)| {
            let used = imports.uses.iter().filter(|(_, public)| !public).map(|(path, _)| path);
            let paths = used.chain(&imports.paths);
            let files = paths.filter_map(|path| self.definition(&self.absolute(module, path)?));
            (module, files.filter(|file| file != module).collect())
        };
        self.0.iter().map(of).collect()
    }

    /// The imports that are part of a cycle, or between two cycles.
    fn cycles(&self) -> Vec<String> {
        let mut edges = self.edges();
        loop {
            let open: BTreeSet<_> = edges.keys().map(|file| (*file).clone()).collect();
            let imported: BTreeSet<_> = edges.values().flatten().cloned().collect();
            let before = edges.len();
            edges.retain(|file, imports| {
                imports.retain(|file| open.contains(file));
                !imports.is_empty() && imported.contains(*file)
            });
            if edges.len() == before {
                break;
            }
        }
        let show = |(file, imports): (&&ModulePath, &BTreeSet<ModulePath>)| {
            let imports: Vec<_> = imports.iter().map(|file| file.join("::")).collect();
            format!("{} imports from {}", file.join("::"), imports.join(" and "))
        };
        edges.iter().map(show).collect()
    }
}

/// The reader of imports sees re-exports, groups and paths in the code.
#[test]
fn finds_import_cycle_of_three_files() {
    let read = |middle: &str| {
        Crate(BTreeMap::from([
            (split("a"), Imports::read("use crate::{annotations::X, b::{Y, other::Z}};\n")),
            (split("b"), Imports::read("mod other;\npub use other::Y;\n")),
            (split("b::other"), Imports::read(middle)),
            (split("names"), Imports::read("struct X;\n")),
            (split("c"), Imports::read("use super::a;\nfn f() { a::call() }\n")),
        ]))
    };
    let found = read("use crate::c;\npub struct Y;\nfn f() {\n    c::f();\n}\n").cycles();
    assert_eq!(
        found,
        ["a imports from b::other", "b::other imports from c", "c imports from a"],
        "one cycle"
    );
    assert_eq!(read("pub struct Y; // crate::c::f()\n").cycles(), [""; 0]);
}

#[test]
fn files_of_each_crate_have_no_import_cycle() {
    let mut imports = 0;
    for folder in CRATES {
        let files = Crate::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        imports += files.edges().values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(files.cycles(), [""; 0], "{folder}");
    }
    assert!(imports > 800, "the reader finds only {imports} imports");
}

#[test]
fn module_of_tests_in_another_file_ends_nothing() {
    let text = "#[cfg(test)]\nmod tests;\nuse crate::a;\n#[cfg(test)]\nmod more {\nuse crate::b;\n}\n";
    assert!(text[..end_of_product(text)].ends_with("use crate::a;\n"));
    assert_eq!(end_of_product("use crate::a;\n"), 14);
}
