//! A reader of a page, who types its commands in a namespace of their own, and what the pods then read.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use confrev_controlplane::{Output, wait_for};
use serde_json::Value;

use crate::helm::{root, run};
use crate::world::{LIMIT, World, expect, name_of};

/// One part of the page, typed line by line in a namespace of its own.
pub(crate) struct Page {
    pub(crate) world: World,
    lines: std::vec::IntoIter<String>,
    kubeconfig: PathBuf,
}

impl Page {
    pub(crate) fn open(heading: &str) -> Self {
        let page = fs::read_to_string(root().join("examples/README.md")).expect("the page is there");
        let (_, part) = page.split_once(&format!("\n## {heading}\n")).expect("it has that part");
        let (_, block) = part.split_once("```console\n").expect("it has a block of commands");
        let (block, _) = block.split_once("```").expect("it ends");
        let lines: Vec<_> = block.lines().map(str::to_owned).collect();
        Self::typing(World::new("examples"), lines)
    }

    /// A reader with these lines before them.
    pub(crate) fn typing(world: World, lines: Vec<String>) -> Self {
        let kubeconfig = world.cluster.state_dir().join(format!("{}.kubeconfig", world.name()));
        fs::copy(world.cluster.kubeconfig(), &kubeconfig).expect("the state folder can be written");
        let namespace = format!("--namespace={}", world.name());
        let set = world.cluster.kubectl(&["config", "set-context", "--current", &namespace]);
        set.kubeconfig(&kubeconfig).run().ok();
        Self { world, lines: lines.into_iter(), kubeconfig }
    }

    /// Types the next line, which must begin like this.
    #[track_caller]
    pub(crate) fn types(&mut self, beginning: &str) -> String {
        let line = self.lines.next().unwrap_or_default();
        assert!(line.starts_with(beginning), "the page has {line:?} where {beginning:?} is expected");
        self.shell(&line).ok()
    }

    fn shell(&self, line: &str) -> Output {
        run(self.command("sh").args(["-c", line]))
    }

    /// A command where kubectl, its plugins and helm are found.
    pub(crate) fn command(&self, program: &str) -> Command {
        let tools = self.world.cluster.bin("kubectl").parent().expect("a folder").display().to_string();
        let plugin = self.plugin();
        let path = format!("{plugin}:{tools}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.current_dir(root()).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        command.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
        command.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
        command
    }

    /// A folder in which kubectl finds the program as a plugin.
    fn plugin(&self) -> String {
        let folder = self.world.cluster.state_dir().join(format!("{}-bin", self.world.name()));
        if !folder.exists() {
            fs::create_dir_all(&folder).expect("the state folder can be written");
            let plugin = folder.join("kubectl-confrev");
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_confrev"), plugin).expect("a link can be made");
        }
        folder.display().to_string()
    }

    /// What the pods of a workload read, sorted.
    pub(crate) fn colours(&self, selector: &str) -> Vec<String> {
        let pods = self.world.cluster.ready_pods(self.world.name(), selector);
        let mut colours: Vec<_> = pods.iter().map(|pod| self.colour(pod)).collect();
        colours.sort();
        colours
    }

    pub(crate) fn colour(&self, pod: &Value) -> String {
        match self.world.cluster.pod_config(pod) {
            Ok(config) => config.files.into_values().collect::<Vec<_>>().join(" "),
            Err(problem) => problem,
        }
    }

    #[track_caller]
    pub(crate) fn reads(&self, app: &str, colours: &[&str]) {
        let what = format!("pods of {app} to read {colours:?}");
        wait_for(&what, LIMIT, || expect(&self.colours(&format!("app={app}")), colours));
    }

    /// What one pod reads, once it is there and ready.
    #[track_caller]
    pub(crate) fn pod_reads(&self, name: &str, colour: &str) {
        wait_for(&format!("{name} to read {colour}"), LIMIT, || {
            let pods = self.world.cluster.ready_pods(self.world.name(), "");
            let pod = pods.iter().find(|pod| name_of(pod) == name).ok_or("it is not ready")?;
            expect(&self.colour(pod), colour)
        });
    }

    pub(crate) fn replica_sets(&self, app: &str) -> usize {
        self.world.cluster.list("replicaset", self.world.name(), &format!("app={app}")).len()
    }

    #[track_caller]
    pub(crate) fn ends(mut self) {
        assert_eq!(self.lines.next(), None, "the page goes on");
    }
}
