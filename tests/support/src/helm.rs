//! Runs helm on the chart.

use std::path::{Path, PathBuf};
use std::process::Command;

use confrev_controlplane::Output;
use confrev_controlplane::binaries::Binaries;
use serde_json::Value;

pub use crate::root;

/// The name of a value of the chart, and its setting.
pub type Setting<'a> = (&'a str, Value);

/// The chart's folder.
pub fn chart() -> String {
    root().join("charts/confrev").display().to_string()
}

/// The path of helm or kubectl, which is built if necessary.
pub fn binary(name: &str) -> PathBuf {
    Binaries::tool(name).unwrap_or_else(|problem| panic!("{problem}")).path(name)
}

/// Runs helm to its end, without the user's own configuration.
pub fn helm(arguments: &[&str], kubeconfig: Option<&Path>) -> Output {
    run(Command::new(binary("helm"))
        .args(arguments)
        .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")))
        .env("HELM_CONFIG_HOME", "/nonexistent")
        .env("HELM_DATA_HOME", "/nonexistent")
        .env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache")))
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Output {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let text = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {text}: {error}"));
    Output {
        command: text,
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A `--set-json` flag for each setting, which preserves types.
pub fn flags(settings: &[Setting<'_>]) -> Vec<String> {
    settings.iter().flat_map(|(key, value)| ["--set-json".to_owned(), format!("{key}={value}")]).collect()
}

/// The output of `helm template` in this namespace, with these settings.
pub fn template(namespace: &str, settings: &[Setting<'_>]) -> Output {
    let (chart, flags) = (chart(), flags(settings));
    let mut arguments = vec!["template", "any-name", &chart, "--namespace", namespace];
    arguments.extend(flags.iter().map(String::as_str));
    helm(&arguments, None)
}

/// The objects that the chart renders.
#[track_caller]
pub fn render(namespace: &str, settings: &[Setting<'_>]) -> Vec<Value> {
    objects(&template(namespace, settings).ok())
}

/// The objects of a file.
#[track_caller]
pub fn objects(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("not YAML: {error}\n{yaml}"))
}

/// An object, by `Kind/name`.
pub fn find<'a>(objects: &'a [Value], which: &str) -> Option<&'a Value> {
    let (kind, name) = which.split_once('/').expect("Kind/name");
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}
