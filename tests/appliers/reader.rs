//! A reader of the pages, who types what stands under a heading, line by line and as it stands there, in a shell where
//! the repository is the present folder and kubectl works in one namespace.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use confrev_controlplane::{ControlPlane, Output};

use crate::blocks::{self, Command};
use crate::helm::{root, run};

/// What a folder of the reader's own has in place of the repository's.
const OWN: [&str; 3] = [".git", "certs", "target"];

/// Somebody with a copy of the repository, kubectl and its plugins, and helm.
#[derive(Debug)]
pub(crate) struct Reader {
    cluster: &'static ControlPlane,
    folder: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    commands: VecDeque<Command>,
}

impl Reader {
    /// One whose kubectl works in this namespace.
    pub(crate) fn new(cluster: &'static ControlPlane, namespace: &str) -> Self {
        // More than one may read in one namespace.
        let mut count = 0;
        let folder = loop {
            let folder = cluster.state_dir().join(format!("reader-{namespace}-{count}"));
            if fs::create_dir(&folder).is_ok() {
                break folder;
            }
            count += 1;
            assert!(count < 1000, "{} cannot be made", folder.display());
        };
        for own in ["certs", "home/.local/bin", "target/release"] {
            fs::create_dir_all(folder.join(own)).expect("the state folder can be written");
        }
        for entry in fs::read_dir(root()).expect("the repository can be read") {
            let entry = entry.expect("it can be read");
            if !OWN.iter().any(|own| entry.file_name() == *own) {
                symlink(entry.path(), folder.join(entry.file_name())).expect("a link can be made");
            }
        }
        // As `make build` makes them.
        let program = Path::new(env!("CARGO_BIN_EXE_confrev"));
        for name in ["confrev", "kubectl-confrev", "kubectl_complete-confrev"] {
            symlink(program, folder.join("target/release").join(name)).expect("a link can be made");
        }
        let kubeconfig = folder.join("home/kubeconfig");
        fs::copy(cluster.kubeconfig(), &kubeconfig).expect("the state folder can be written");
        let set =
            cluster.kubectl(&["config", "set-context", "--current", &format!("--namespace={namespace}")]);
        set.kubeconfig(&kubeconfig).run().ok();
        Self { cluster, folder, kubeconfig, namespace: namespace.to_owned(), commands: VecDeque::new() }
    }

    /// Turns to a part of a page, after the one before was typed to its end.
    #[track_caller]
    pub(crate) fn open(&mut self, page: &str, heading: &str) {
        self.ends();
        self.commands = blocks::under(page, heading).into();
        assert!(!self.commands.is_empty(), "{page} has no commands under {heading:?}");
    }

    /// Types the next command, which must begin like this, and have success.
    #[track_caller]
    pub(crate) fn types(&mut self, beginning: &str) -> String {
        self.tries(beginning).ok()
    }

    /// The same, and it says what the page has; the page calls the namespace `shop`.
    #[track_caller]
    pub(crate) fn says(&mut self, beginning: &str) {
        let expected = self.commands.front().map(|command| command.said.clone()).unwrap_or_default();
        assert!(!expected.is_empty(), "the page does not say what {beginning:?} answers");
        let said = self.types(beginning).replace(&self.namespace, "shop");
        let masked: Vec<_> = said.lines().map(mask).collect();
        let expected: Vec<_> = expected.iter().map(|line| mask(line)).collect();
        assert_eq!(masked, expected, "the page has it otherwise. It is:\n{said}");
    }

    /// The same, whatever comes of it.
    #[track_caller]
    pub(crate) fn tries(&mut self, beginning: &str) -> Output {
        let line = self.next(beginning).line;
        run(self.command("bash").args(["-o", "pipefail", "-c", &line]))
    }

    /// The next command, which must begin like this; it counts as typed.
    #[track_caller]
    pub(crate) fn next(&mut self, beginning: &str) -> Command {
        let command = self.commands.pop_front();
        let line = command.as_ref().map_or("", |command| &command.line);
        assert!(line.starts_with(beginning), "the page has {line:?} where {beginning:?} is expected");
        command.expect("it begins like that")
    }

    /// A command where all of it is found.
    pub(crate) fn command(&self, program: &str) -> std::process::Command {
        let tools = self.cluster.bin("kubectl").parent().expect("a folder").display().to_string();
        let own = self.folder.join("target/release").display().to_string();
        let path = format!("{own}:{tools}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = std::process::Command::new(program);
        command.current_dir(&self.folder).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", self.folder.join("home"));
        command.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
        command.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
        command
    }

    /// The folder in which they type.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file of theirs.
    pub(crate) fn file(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("the state folder can be written");
    }

    /// Whether a tool is there that the page asks for and the tests do not bring.
    pub(crate) fn has(&self, tool: &str) -> bool {
        let found = self.command("bash").args(["-c", &format!("command -v {tool}")]).output();
        let has = found.is_ok_and(|found| found.status.success());
        if !has {
            eprintln!("there is no {tool}: the commands with it are not typed");
        }
        has
    }

    #[track_caller]
    fn ends(&self) {
        assert!(self.commands.is_empty(), "the page goes on: {:?}", self.commands);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ends();
        }
    }
}

/// A line without what differs from run to run: the width of columns, ages, times, addresses, versions of Kubernetes, the
/// end of a pod's name and who leads.
fn mask(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let is_age = word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h'])
            && word.chars().all(|c| c.is_ascii_digit() || "smh".contains(c));
        let starts = [("https://127.0.0.1:", "URL"), ("v1.", "VERSION")];
        let known =
            starts.iter().find(|(start, _)| word.starts_with(start)).map(|(_, known)| (*known).to_owned());
        match word.rsplit_once('-') {
            _ if is_age => "AGE".to_owned(),
            _ if word.parse::<jiff::Timestamp>().is_ok() => "TIME".to_owned(),
            Some((set, _)) if word.starts_with("Pod/") => format!("{set}-POD"),
            // A host, a process, and when it began.
            _ if word.split('_').count() == 3 => "REPLICA".to_owned(),
            _ => known.unwrap_or_else(|| word.to_owned()),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
