//! `kubectl confrev version`: the versions of the client, the installation and the API server.

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    objects::text,
    output::{self, OutputFlag, OutputFormat},
    target::{Flags, Target},
};

/// The version of this program.
const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// Options of `version`.
#[derive(Debug, Args)]
pub(super) struct VersionOptions {
    /// Only the version of this program, without a cluster.
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// The versions. One that is `None` is unknown.
#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    installation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes: Option<String>,
    /// Why the version of the installation is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Runs the command.
pub(super) async fn run(options: &VersionOptions) -> Result<(), Failure> {
    if options.output.output == OutputFormat::Name {
        return Err(Failure::Usage("a version has no name: use --output table, json or yaml".to_owned()));
    }
    let mut versions =
        Versions { client: CLIENT, installation: None, image: None, kubernetes: None, reason: None };
    if options.client {
        return print(&versions, options.output.output);
    }
    // As with kubectl, the client's version is shown even if there is no cluster.
    let found = of_cluster(&mut versions, options).await;
    print(&versions, options.output.output)?;
    found
}

async fn of_cluster(versions: &mut Versions, options: &VersionOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let kubernetes = target.get("/version").await?.unwrap_or_default();
    versions.kubernetes = Some(text(&kubernetes, "/gitVersion").to_owned());
    let home = &target.home;
    match target.get(&format!("/apis/apps/v1/namespaces/{home}/deployments/confrev")).await {
        Ok(Some(deployment)) => {
            let image = image_of(&deployment);
            versions.installation = tag(image).map(str::to_owned);
            versions.image = Some(image.to_owned());
        }
        Ok(None) => {
            versions.reason = Some(format!(
                "no Deployment confrev in namespace {home}: if confrev is installed elsewhere, give --confrev-namespace"
            ));
        }
        Err(Failure::Refused(message)) => versions.reason = Some(message),
        Err(other) => return Err(other),
    }
    Ok(())
}

fn image_of(deployment: &Value) -> &str {
    text(deployment, "/spec/template/spec/containers/0/image")
}

/// The tag of an image, which may also have a digest; `None` if it has none.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or_default();
    name.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag)
}

fn print(versions: &Versions, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => output::json(versions),
        OutputFormat::Yaml => output::yaml(&[versions]),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => {
            let installation = match (&versions.installation, &versions.image, &versions.reason) {
                (Some(version), Some(image), _) => Some(format!("{version} ({image})")),
                (None, Some(image), _) => Some(format!("unknown ({image})")),
                (_, None, Some(reason)) => Some(format!("unknown: {reason}")),
                (_, None, None) => None,
            };
            let rows = [
                ("client", Some(versions.client.to_owned())),
                ("installation", installation),
                ("kubernetes", versions.kubernetes.clone()),
            ];
            let lines = rows.into_iter().filter_map(|(what, text)| Some(format!("{what:15}{}", text?)));
            output::print(&lines.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_installation_is_the_tag() {
        for (image, version) in [
            ("confrev:0.1.0", Some("0.1.0")),
            ("registry.example.com:5000/confrev:0.2.0@sha256:aa", Some("0.2.0")),
            ("registry.example.com:5000/confrev@sha256:aa", None),
            ("", None),
        ] {
            assert_eq!(tag(image), version, "{image}");
        }
    }
}
