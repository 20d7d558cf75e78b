//! A reader of a page in a separate namespace, and the content that the pods then read.

use std::path::Path;

use confrev_controlplane::wait_for;
use serde_json::Value;

use crate::page_reader::Reader;
use crate::world::{LIMIT, World, expect, name_of};

/// A namespace, and a reader who types the commands of a page in it.
pub(crate) struct Page {
    pub(crate) world: World,
    pub(crate) reader: Reader,
}

impl Page {
    /// Opens a page at a heading.
    pub(crate) fn open(page: &str, heading: &str) -> Self {
        let mut opened = Self::of(World::new("pages"));
        opened.reader.open(page, heading);
        opened
    }

    /// A reader without an open page.
    pub(crate) fn of(world: World) -> Self {
        let reader = Reader::new(world.cluster, world.name(), Path::new(env!("CARGO_BIN_EXE_confrev")));
        Self { world, reader }
    }

    /// Types the next line, which must begin like this.
    #[track_caller]
    pub(crate) fn types(&mut self, beginning: &str) -> String {
        self.reader.types(beginning)
    }

    /// The content that the pods of a workload read, sorted.
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

    /// Waits until one pod is ready and reads this content.
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
}
