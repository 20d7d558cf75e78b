//! A reader of the pages, who types the commands under a heading line by line. The shell's working directory is the
//! repository, and kubectl works in one namespace.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use confrev_controlplane::{ControlPlane, Output};

use crate::helm::{root, run};
use crate::page_commands::{self, Command};

/// The entries that the reader's folder does not take from the repository.
const OWN: [&str; 3] = [".git", "certs", "target"];

/// A reader with a copy of the repository, kubectl and its plugins, and helm.
#[derive(Debug)]
pub struct Reader {
    cluster: &'static ControlPlane,
    folder: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    commands: VecDeque<Command>,
}

impl Reader {
    /// A reader whose kubectl works in this namespace. `binary` is the reader's confrev.
    pub fn new(cluster: &'static ControlPlane, namespace: &str, binary: &Path) -> Self {
        // One namespace may have several readers.
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
            let entry = entry.expect("the entry can be read");
            if !OWN.iter().any(|own| entry.file_name() == *own) {
                symlink(entry.path(), folder.join(entry.file_name())).expect("a link can be made");
            }
        }
        // The same links as those of `make build`.
        for name in ["confrev", "kubectl-confrev", "kubectl_complete-confrev"] {
            symlink(binary, folder.join("target/release").join(name)).expect("a link can be made");
        }
        let kubeconfig = folder.join("home/kubeconfig");
        fs::copy(cluster.kubeconfig(), &kubeconfig).expect("the state folder can be written");
        let set =
            cluster.kubectl(&["config", "set-context", "--current", &format!("--namespace={namespace}")]);
        set.kubeconfig(&kubeconfig).run().ok();
        Self { cluster, folder, kubeconfig, namespace: namespace.to_owned(), commands: VecDeque::new() }
    }

    /// Opens a part of a page. All commands of the previous part must have been typed.
    #[track_caller]
    pub fn open(&mut self, page: &str, heading: &str) {
        self.ends();
        self.commands = page_commands::under(page, heading).into();
        assert!(!self.commands.is_empty(), "{page} has no commands under {heading:?}");
    }

    /// Types the next command, which must begin like this and succeed.
    #[track_caller]
    pub fn types(&mut self, beginning: &str) -> String {
        self.tries(beginning).ok()
    }

    /// Types the next command, and compares its output with the page, where the namespace is `shop`.
    #[track_caller]
    pub fn says(&mut self, beginning: &str) {
        self.says_with(beginning, 0);
    }

    /// The same for a command with this exit code.
    #[track_caller]
    pub fn says_with(&mut self, beginning: &str, code: i32) {
        let expected = self.commands.front().map(|command| command.said.clone()).unwrap_or_default();
        assert!(!expected.is_empty(), "the page does not show the output of {beginning:?}");
        let output = self.tries(beginning);
        assert_eq!(output.status.code(), Some(code), "{output}");
        let said = output.stdout.replace(&self.namespace, "shop");
        let masked: Vec<_> = said.lines().map(mask).collect();
        let expected: Vec<_> = expected.iter().map(|line| mask(line)).collect();
        assert_eq!(masked, expected, "the page differs. The output is:\n{said}");
    }

    /// Types the next command, which may fail.
    #[track_caller]
    pub fn tries(&mut self, beginning: &str) -> Output {
        let line = self.next(beginning).line;
        run(self.command("bash").args(["-o", "pipefail", "-c", &line]))
    }

    /// The commands that are not typed yet.
    pub fn rest(&self) -> Vec<String> {
        self.commands.iter().map(|command| command.line.clone()).collect()
    }

    /// The next command, which must begin like this. It then counts as typed.
    #[track_caller]
    pub fn next(&mut self, beginning: &str) -> Command {
        let command = self.commands.pop_front();
        let line = command.as_ref().map_or("", |command| &command.line);
        assert!(line.starts_with(beginning), "the page has {line:?} where {beginning:?} is expected");
        command.expect("a command is left")
    }

    /// A command in the reader's folder and environment.
    pub fn command(&self, program: &str) -> std::process::Command {
        // The folder of kubectl, too.
        let tools = self.cluster.bin("helm").parent().expect("a folder").display().to_string();
        let own = self.folder.join("target/release").display().to_string();
        let path = format!("{own}:{tools}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = std::process::Command::new(program);
        command.current_dir(&self.folder).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", self.folder.join("home"));
        command.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
        command.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
        command
    }

    /// The reader's working directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file in the reader's folder.
    pub fn file(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("the state folder can be written");
    }

    /// Whether a tool is installed that the page needs and the tests do not provide.
    pub fn has(&self, tool: &str) -> bool {
        let found = self.command("bash").args(["-c", &format!("command -v {tool}")]).output();
        let has = found.is_ok_and(|found| found.status.success());
        if !has {
            eprintln!("{tool} is not installed: its commands are not typed");
        }
        has
    }

    #[track_caller]
    fn ends(&self) {
        assert!(self.commands.is_empty(), "commands of the page are left: {:?}", self.commands);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ends();
        }
    }
}

/// A line without the parts that differ from run to run: the width of columns, ages, times, addresses, versions of
/// Kubernetes, the end of a pod's name, and the leader's identity.
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
            // A replica's identity: host, process, and start time.
            _ if word.split('_').count() == 3 => "REPLICA".to_owned(),
            _ => known.unwrap_or_else(|| word.to_owned()),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
