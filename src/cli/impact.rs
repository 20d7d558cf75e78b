//! `kubectl confrev impact`: who would roll, if this were applied. Nothing is written.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{
    Failure,
    inventory::{self, Inventory, OptedIn, Scope, source_name},
    manifests,
    output::{self, OutputFlag, Row},
    standing,
    target::{Flags, Target},
};
use crate::{resolve::Observed, snapshot::ObjectName};

/// Options of `impact`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// A source (NAME, configmap/NAME, secret/NAME): who would roll if all of it changed.
    #[arg(required_unless_present = "filename", conflicts_with = "filename")]
    source: Option<String>,
    /// Manifests with ConfigMaps and Secrets, as they would be applied; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// What would happen to one workload.
#[derive(Debug, Serialize)]
struct Effect {
    source: String,
    workload: String,
    rolls: bool,
    why: String,
}

impl Row for Effect {
    const COLUMNS: (&'static [&'static str], usize) = (&["SOURCE", "WORKLOAD", "ROLLS", "WHY"], 4);

    fn cells(&self) -> Vec<String> {
        let rolls = if self.rolls { "yes" } else { "no" };
        vec![self.source.clone(), self.workload.clone(), rolls.to_owned(), self.why.clone()]
    }

    fn name(&self) -> String {
        self.workload.to_lowercase()
    }
}

/// Runs the command.
pub(super) async fn run(options: &Options) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let mut changes: Vec<(ObjectName, String, Option<Observed>)> = Vec::new();
    if let Some(source) = &options.source {
        changes.push((source_name(source)?, target.namespace.clone(), None));
    }
    for file in &options.filename {
        let name = file.display().to_string();
        for object in manifests::read(file)? {
            let Some(source) = manifests::source(&name, &object)? else { continue };
            let observed =
                Observed::read(source.name.kind, source.json.as_bytes().to_vec()).map_err(|error| {
                    manifests::error(&name, source.name.kind.as_str(), &source.name.name, &error)
                })?;
            let namespace = source.namespace.unwrap_or_else(|| target.namespace.clone());
            changes.push((source.name, namespace, Some(observed)));
        }
    }
    let mut effects = Vec::new();
    for (source, namespace, content) in &changes {
        let scope = Scope::Namespace(namespace.clone());
        let inventory =
            Inventory { workloads: inventory::workloads(&target, &scope).await?, ..Inventory::default() };
        for workload in inventory.workloads.iter().filter(|workload| workload.sources().contains(source)) {
            let (rolls, why) = effect(&target, workload, source, content.as_ref()).await?;
            let name = format!("{}/{}", source.kind.as_str(), source.name);
            effects.push(Effect { source: name, workload: workload.reference(), rolls, why });
        }
    }
    output::list(options.output.output, &effects, "no opted-in workload uses any of it")
}

/// Whether a workload would roll, and why or why not.
async fn effect(
    target: &Target,
    workload: &OptedIn,
    source: &ObjectName,
    content: Option<&Observed>,
) -> Result<(bool, String), Failure> {
    let record = &workload.record;
    let Some(used) = record.uses.iter().find(|used| used.source == *source) else {
        return Ok((false, "does not use it".to_owned()));
    };
    let as_written = content.is_some_and(Observed::stays_as_written);
    if used.excluded || as_written {
        return Ok((false, "its references stay as written: pods read the change as they start".to_owned()));
    }
    if !workload.kind.rolls {
        return Ok((false, format!("a stored {} never changes", workload.kind)));
    }
    if !record.track {
        return Ok((false, "paused: it takes the change at its next apply".to_owned()));
    }
    let Some(content) = content else {
        let why =
            if used.whole { "it uses the whole source" } else { "it uses some keys: only if those change" };
        return Ok((true, why.to_owned()));
    };
    if record.seen.get(source) == Some(&content.digest()) {
        return Ok((false, "it has taken this content into account already".to_owned()));
    }
    let Some(snapshot) = &used.snapshot else {
        return Ok((true, "it is not resolved yet".to_owned()));
    };
    let held = ObjectName::new(source.kind, snapshot.clone());
    let held = inventory::source(target, &workload.key(&held)).await?;
    if held.is_some_and(|held| standing::reads_the_same(workload, source, &held, content)) {
        return Ok((false, "the keys that it reads do not change".to_owned()));
    }
    Ok((true, format!("from {snapshot}")))
}
