//! Manifests in files: YAML or JSON, with any number of documents and Lists.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::{explain, fetch};
use crate::{
    annotations,
    kinds::Kinds,
    resolve::Workload,
    snapshot::{ObjectName, SourceKind},
    template::Template,
};

/// Manifests that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    /// A file that cannot be read.
    #[error("{file}: {}", explain::io_error(.source))]
    Read {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A URL or a kustomization that cannot be read.
    #[error("{place}: {reason}")]
    Fetch {
        /// The URL or the folder.
        place: String,
        /// Why.
        reason: String,
    },
    /// Not YAML.
    #[error("{file}: invalid YAML: {reason}")]
    Yaml {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// Why.
        reason: String,
    },
    /// An object that the API server would refuse.
    #[error("{file}: {object}: {reason}")]
    Object {
        /// The file.
        file: String,
        /// Kind and name.
        object: String,
        /// Why.
        reason: String,
    },
}

/// The flags for manifests, as with kubectl.
#[derive(Debug, Default, Args)]
pub(super) struct ManifestFlags {
    /// Manifests to read, in YAML or JSON: a file, a folder, a URL, or `-` for standard input. May be given more than once.
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// A folder with a kustomization, which `kubectl kustomize` builds.
    #[arg(short, long, value_name = "FOLDER", conflicts_with = "filename")]
    kustomize: Option<PathBuf>,
}

impl ManifestFlags {
    /// Whether none is given.
    pub(super) fn is_empty(&self) -> bool {
        self.filename.is_empty() && self.kustomize.is_none()
    }

    /// All objects, each with the name of its file or folder.
    pub(super) fn read(&self) -> Result<Vec<(String, Value)>, ManifestError> {
        Ok(self
            .read_texts()?
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
            .concat()
            .into_iter()
            .map(Manifest::named)
            .collect())
    }

    /// The objects of each file, or what is wrong with the file. Files that cannot be read are an error.
    pub(super) fn read_texts(&self) -> Result<Vec<Result<Vec<Manifest>, ManifestError>>, ManifestError> {
        let Some(folder) = &self.kustomize else { return read_each(&self.filename) };
        let place = folder.display().to_string();
        let text = fetch::kustomization(folder);
        let text = text.map_err(|reason| ManifestError::Fetch { place: place.clone(), reason })?;
        Ok(vec![parse(&place, &text)])
    }
}

/// An object of a file.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    /// The file, or the folder of a kustomization.
    pub(super) file: String,
    /// The line at which its document begins, from 1.
    pub(super) line: u64,
    /// The object.
    pub(super) object: Value,
}

impl Manifest {
    fn named(self) -> (String, Value) {
        (self.file, self.object)
    }
}

/// A ConfigMap or Secret of a manifest, as the API server would store it.
#[derive(Debug)]
pub(super) struct ManifestSource {
    /// Its kind and name.
    pub(super) name: ObjectName,
    /// Its namespace, if the manifest has one.
    pub(super) namespace: Option<String>,
    /// Its JSON text, with `stringData` merged.
    pub(super) json: String,
}

/// The name and the text of a file; `-` is standard input.
fn text_of(file: &Path) -> Result<(String, String), ManifestError> {
    let name = place(file);
    let text = if fetch::is_url(file) {
        let text = fetch::url(&name);
        text.map_err(|reason| ManifestError::Fetch { place: name.clone(), reason })?
    } else {
        read_text(file).map_err(|source| ManifestError::Read { file: name.clone(), source })?
    };
    Ok((name, text))
}

/// The name of a file in messages.
fn place(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() }
}

/// The files that `kubectl apply -f PATH` reads, in its order: of a folder, those with an extension that kubectl knows,
/// by name.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let error = |source| ManifestError::Read { file: path.display().to_string(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(error)? {
        let file = entry.map_err(error)?.path();
        let is_manifest = file.extension().is_some_and(|extension| {
            ["json", "yaml", "yml"].iter().any(|known| extension.to_str() == Some(known))
        });
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The objects of files, folders and URLs in the order in which kubectl applies them.
fn read_each(paths: &[PathBuf]) -> Result<Vec<Result<Vec<Manifest>, ManifestError>>, ManifestError> {
    let mut all = Vec::new();
    for path in paths {
        for file in files(path)? {
            let (name, text) = text_of(&file)?;
            all.push(parse(&name, &text));
        }
    }
    Ok(all)
}

/// A warning for each workload that comes before a ConfigMap or Secret that it refers to. Such a workload resolves to
/// the old content, and rolls again when the new content is applied.
pub(super) fn wrong_orders(kinds: &Kinds, all: &[(String, Value)]) -> Vec<String> {
    let found = find_wrong_orders(kinds, all).into_iter();
    found.filter_map(|(at, warning)| Some(format!("{}: {warning}", all.get(at)?.0))).collect()
}

/// The same, each with the position of its workload in `all`.
pub(super) fn find_wrong_orders(kinds: &Kinds, all: &[(String, Value)]) -> Vec<(usize, String)> {
    let namespace = |object: &Value| object["metadata"]["namespace"].as_str().map(str::to_owned);
    let mut sources = Vec::new();
    for (index, (file, object)) in all.iter().enumerate() {
        // Invalid sources are reported where they are read.
        if let Ok(Some(source)) = source(file, object) {
            sources.push((index, file, source));
        }
    }
    let mut warnings = Vec::new();
    for (index, (_, object)) in all.iter().enumerate() {
        let kind = object["apiVersion"].as_str().zip(object["kind"].as_str());
        let Some(kind) = kind.and_then(|(version, kind)| kinds.by_kind(version, kind)) else { continue };
        let Ok(workload) = Workload::read(kind, object) else { continue };
        if workload.label(annotations::ENABLED) == Some("false") {
            continue;
        }
        let references = workload.template.as_ref().map(Template::references).unwrap_or_default();
        let is_used = |source: &ManifestSource| {
            let mut used = references.iter();
            source.namespace == namespace(object)
                && used.any(|used| used.kind == source.name.kind && *used.name == *source.name.name)
        };
        let is_earlier = |of: &ManifestSource| {
            let mut earlier = sources.iter().take_while(|(at, ..)| *at < index);
            earlier.any(|(_, _, known)| known.name == of.name && known.namespace == of.namespace)
        };
        for (_, of, source) in sources.iter().filter(|(at, ..)| *at > index) {
            if is_used(source) && !is_earlier(source) {
                let warning = format!(
                    "{} comes before {} of {of}: kubectl applies it first, so it rolls twice; apply {} first",
                    workload.display(),
                    source.name,
                    source.name.kind.as_str(),
                );
                warnings.push((index, warning));
            }
        }
    }
    warnings
}

fn read_text(file: &Path) -> std::io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}

/// The objects in a text. Errors show `file` as its name.
#[cfg(test)]
pub(super) fn objects(file: &str, text: &str) -> Result<Vec<Value>, ManifestError> {
    Ok(parse(file, text)?.into_iter().map(|manifest| manifest.object).collect())
}

/// The objects in a text, each with the line of its document. Errors show `file` as its name.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Manifest>, ManifestError> {
    // As kubectl reads YAML: `0644` is octal, and `010` is eight.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents = serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options);
    let documents = documents.map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        ManifestError::Yaml { file: file.to_owned(), line, reason: explain::yaml(&error) }
    })?;
    let manifests = documents.into_iter().flat_map(|document| {
        let line = document.referenced.line();
        flatten(document.value).into_iter().map(move |object| (line, object))
    });
    Ok(manifests.map(|(line, object)| Manifest { file: file.to_owned(), line, object }).collect())
}

/// The objects of a document: itself, or the items of a List.
fn flatten(document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Null => Vec::new(),
        Value::Object(mut fields) if is_list && fields.get("items").is_some_and(Value::is_array) => {
            let item_kind =
                fields["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).map(str::to_owned);
            let Some(Value::Array(items)) = fields.remove("items") else { return Vec::new() };
            items
                .into_iter()
                .map(|mut item| {
                    // In a typed list such as `ConfigMapList`, items may omit their kind.
                    if let (Some(object), Some(kind)) = (item.as_object_mut(), &item_kind)
                        && !kind.is_empty()
                    {
                        object.entry("kind").or_insert_with(|| Value::String(kind.clone()));
                        object.entry("apiVersion").or_insert_with(|| Value::String("v1".to_owned()));
                    }
                    item
                })
                .flat_map(flatten)
                .collect()
        }
        other => vec![other],
    }
}

/// A ConfigMap or Secret; `None` if the object is neither. Errors show `file` as the file's name.
pub(super) fn source(file: &str, object: &Value) -> Result<Option<ManifestSource>, ManifestError> {
    let kind = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("ConfigMap")) => SourceKind::ConfigMap,
        (Some("v1"), Some("Secret")) => SourceKind::Secret,
        _ => return Ok(None),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let error = |reason: String| error(file, kind.as_str(), &name, &reason);
    if name.is_empty() {
        return Err(error("it has no name".to_owned()));
    }
    check_values(object, kind).map_err(error)?;
    let mut object = object.clone();
    if kind == SourceKind::Secret {
        merge_string_data(&mut object);
    }
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let name = ObjectName::new(kind, name);
    Ok(Some(ManifestSource { name, namespace, json: object.to_string() }))
}

/// The error for an invalid object of a file.
pub(super) fn error(file: &str, kind: &str, name: &str, reason: &dyn ToString) -> ManifestError {
    let object = format!("{kind} {name:?}");
    ManifestError::Object { file: file.to_owned(), object, reason: reason.to_string() }
}

/// Every value must be a string: the API server refuses others, and their digest would mean nothing.
fn check_values(object: &Value, kind: SourceKind) -> Result<(), String> {
    let fields = if kind == SourceKind::ConfigMap { ["data", "binaryData"] } else { ["data", "stringData"] };
    for field in fields {
        match &object[field] {
            Value::Null => {}
            Value::Object(entries) => {
                let odd = entries.iter().find(|(_, value)| !value.is_string() && !value.is_null());
                if let Some((key, _)) = odd {
                    let which = match kind {
                        SourceKind::ConfigMap => format!("the value of key {key:?}"),
                        // No message names a key of a Secret.
                        SourceKind::Secret => "a value".to_owned(),
                    };
                    return Err(format!("{field}: {which} is not a string: quote it"));
                }
            }
            _ => return Err(format!("{field} is not a map")),
        }
    }
    Ok(())
}

/// Merges `stringData` into `data`, encoded, as the API server does on a write.
fn merge_string_data(object: &mut Value) {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let Some(Value::Object(strings)) = object.as_object_mut().and_then(|fields| fields.remove("stringData"))
    else {
        return;
    };
    let encoded = strings.into_iter().map(|(key, value)| {
        let text = value.as_str().unwrap_or_default();
        (key, Value::String(BASE64_STANDARD.encode(text)))
    });
    match &mut object["data"] {
        Value::Object(data) => data.extend(encoded),
        data => *data = Value::Object(encoded.collect::<Map<_, _>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {a: b}\n";
    const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n\
        spec: {template: {spec: {volumes: [{name: v, configMap: {name: demo}}]}}}\n";

    fn warnings(files: &[(&str, &str)]) -> Vec<String> {
        let folder =
            std::env::temp_dir().join(format!("confrev-order-{}-{}", std::process::id(), files.len()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let flags = ManifestFlags { filename: vec![folder.clone()], kustomize: None };
        let all = flags.read().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        wrong_orders(&Kinds::default(), &all)
    }

    #[test]
    fn warns_of_workload_before_its_configmap() {
        let [warning] = &warnings(&[("a.yaml", WEB), ("b.yml", CONFIG)])[..] else { panic!("one warning") };
        for part in ["a.yaml: Deployment \"web\"", "ConfigMap \"demo\" of ", "b.yml", "rolls twice"] {
            assert!(warning.contains(part), "{warning}");
        }
        let both = |first: &str, second: &str| format!("{first}---\n{second}");
        assert_eq!(warnings(&[("a.yaml", &both(WEB, CONFIG))]).len(), 1);
        assert_eq!(warnings(&[("a.yaml", &both(CONFIG, WEB))]), [""; 0]);
        assert_eq!(warnings(&[("a.yaml", CONFIG), ("b.yaml", WEB), ("c.txt", CONFIG)]), [""; 0]);
        let elsewhere = CONFIG.replace("name: demo", "name: demo, namespace: other");
        assert_eq!(warnings(&[("a.yaml", WEB), ("b.yaml", &elsewhere), ("c", ""), ("d", "")]), [""; 0]);
    }
}
