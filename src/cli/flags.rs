//! Flags of both `serve` and the commands.

use std::sync::Arc;

use clap::{Args, ValueEnum};

use crate::{
    kinds::{Kinds, WorkloadKind},
    resolve::{Defaults, Strategies},
    snapshot::{Rotated, is_namespace_name, is_object_name},
    world::Inherited,
};

/// How a write is only tried, as with kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// The API server and its webhooks check the write.
    Server,
    /// Nothing is sent to be written.
    Client,
    /// It is written.
    None,
}

/// The flag for kinds other than the built-in ones, for `serve` and for the commands.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct KindFlag {
    /// A further kind of workload, and the path of its pod template. May be given more than once.
    #[arg(
        long = "kind",
        env = "CONFREV_KIND",
        value_name = "GROUP/VERSION/RESOURCE/KIND=PATH",
        value_delimiter = ','
    )]
    kinds: Vec<WorkloadKind>,
}

impl KindFlag {
    /// The built-in kinds and these.
    pub(super) fn in_force(&self) -> Arc<Kinds> {
        Arc::new(Kinds::with(&self.kinds))
    }
}

/// The flag for ConfigMaps that the platform rotates, for `serve` and for the commands.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct RotatedFlag {
    /// A ConfigMap that the platform or a tool rotates: references to it stay as written, in every namespace. May be
    /// given more than once.
    #[arg(
        long = "rotated-configmap",
        env = "CONFREV_ROTATED_CONFIGMAP",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = configmap_name
    )]
    names: Vec<String>,
}

impl RotatedFlag {
    /// The built-in names and these.
    pub(super) fn in_force(&self) -> Rotated {
        Rotated::with(self.names.iter().cloned())
    }
}

/// Settings that objects inherit from the installation, for `serve` and for the commands that read manifests.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct DefaultsFlag {
    /// Settings that objects inherit which neither they nor their namespaces have, as JSON: {"on-undo": "hold", "min-interval": "1m"}. Also
    /// missing, max-in-flight, exclude.
    #[arg(
        long,
        env = "CONFREV_DEFAULTS",
        default_value = "{}",
        hide_default_value = true,
        value_name = "JSON"
    )]
    defaults: String,
}

impl DefaultsFlag {
    /// The settings; an error names the option and what cannot be followed.
    pub(super) fn in_force(&self) -> Result<Defaults, String> {
        let text = if self.defaults.is_empty() { "{}" } else { &self.defaults };
        Defaults::parse(text).map_err(|error| format!("--defaults: {error}"))
    }
}

/// What objects inherit from the installation.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct InheritedFlags {
    /// Named settings for sources, as JSON: {"careful": {"waves": "1, 10%", "bake": "5m", "on-failure": "revert"}}. The annotation
    /// `confrev.dev/strategy` of a source or of its namespace chooses one.
    #[arg(
        long,
        env = "CONFREV_STRATEGIES",
        default_value = "{}",
        hide_default_value = true,
        value_name = "JSON"
    )]
    strategies: String,
    /// The strategy of all sources for which neither they nor their namespaces choose one.
    #[arg(long, env = "CONFREV_STRATEGY", value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    defaults: DefaultsFlag,
}

impl InheritedFlags {
    /// What objects inherit from the installation; an error names the option and what cannot be followed.
    pub(super) fn in_force(&self) -> Result<Inherited, String> {
        let strategies = Strategies::parse(&self.strategies, self.strategy.as_deref());
        let strategies = strategies.map_err(|error| format!("--strategies: {error}"))?;
        Ok(Inherited::new(strategies, self.defaults.in_force()?))
    }
}

/// The name of a namespace.
pub(super) fn namespace_name(text: &str) -> Result<String, String> {
    let is_name = is_namespace_name(text);
    is_name.then(|| text.to_owned()).ok_or_else(|| "invalid name of a namespace".to_owned())
}

fn configmap_name(text: &str) -> Result<String, String> {
    let is_name = is_object_name(text);
    is_name.then(|| text.to_owned()).ok_or_else(|| "invalid name of a ConfigMap".to_owned())
}
