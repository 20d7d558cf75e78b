//! The contents of the binary as a CycloneDX document: every linked crate, the C and assembly of crates, Rust's
//! standard library, and the C library of the target.
//! Source: CycloneDX 1.6, <https://cyclonedx.org/docs/1.6/json/>.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::Result;

/// The document. `metadata` is the output of `cargo metadata --filter-platform`, and `lock` is Cargo.lock with the
/// checksums. `rust` is the release of the compiler, and `target` is its target.
pub fn bill_of_materials(metadata: &Value, lock: &str, rust: &str, target: &str) -> Result<Value> {
    let packages: BTreeMap<_, _> =
        list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    let is_macro = |id: &str| packages.get(id).is_some_and(|package| is_macro(package));
    let linked = |node| linked(node).into_iter().filter(|id| !is_macro(id)).collect::<Vec<_>>();
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), linked(node))).collect();
    let root = packages.iter().find(|(_, package)| package["name"] == "confrev").map(|(id, _)| *id);
    let root = root.ok_or("cargo metadata names no package confrev")?;

    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if found.insert(id) {
            open.extend(nodes.get(id).into_iter().flatten());
        }
    }
    let checksums = checksums(lock);
    let component = |id: &str| component(packages.get(id).copied().unwrap_or(&Value::Null), &checksums);
    let mut components: Vec<_> = found.iter().filter(|id| **id != root).map(|id| component(id)).collect();
    components.extend(runtime(rust, target));
    components.sort_by_key(|component| text(&component["purl"]).to_owned());
    let reference = |id: &str| component(id)["bom-ref"].clone();
    let mut dependencies: Vec<_> = found
        .iter()
        .map(|id| {
            let on: BTreeSet<_> =
                nodes.get(id).into_iter().flatten().map(|on| text(&reference(on)).to_owned()).collect();
            json!({"ref": reference(id), "dependsOn": on})
        })
        .collect();
    let runtime: Vec<_> = runtime(rust, target).iter().map(|part| part["bom-ref"].clone()).collect();
    dependencies.push(json!({"ref": runtime[0], "dependsOn": runtime[1..]}));
    dependencies.extend(runtime[1..].iter().map(|part| json!({"ref": part, "dependsOn": []})));
    if let Some(of_root) = dependencies.iter_mut().find(|entry| entry["ref"] == reference(root))
        && let Some(on) = of_root["dependsOn"].as_array_mut()
    {
        on.push(runtime[0].clone());
    }
    dependencies.sort_by_key(|dependency| text(&dependency["ref"]).to_owned());
    let mut subject = component(root);
    subject["type"] = json!("application");
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
        "dependencies": dependencies,
    }))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The ids of the packages that are linked into this package. Dependencies of tests and of the build are not.
fn linked(node: &Value) -> Vec<&str> {
    let normal = |dependency: &&Value| list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
    list(&node["deps"]).filter(normal).map(|dependency| text(&dependency["pkg"])).collect()
}

/// Whether the package runs in the compiler, so that nothing of it is in the binary.
fn is_macro(package: &Value) -> bool {
    list(&package["targets"]).flat_map(|target| list(&target["kind"])).any(|kind| kind == "proc-macro")
}

/// The libraries that the compiler links into every program: the standard library, and for musl the C library of the
/// toolchain.
fn runtime(rust: &str, target: &str) -> Vec<Value> {
    let part = |name: &str, version: Option<&str>, license: &str, description: &str| {
        let purl =
            version.map_or_else(|| format!("pkg:generic/{name}"), |v| format!("pkg:generic/{name}@{v}"));
        let mut part = json!({
            "type": "library", "bom-ref": purl, "name": name, "purl": purl, "description": description,
            "licenses": [{"expression": license}],
        });
        if let Some(version) = version {
            part["version"] = json!(version);
        }
        part
    };
    let std = "Rust's standard library, with the crates that it is built from.";
    let mut parts = vec![part("rust-std", Some(rust), "MIT OR Apache-2.0", std)];
    if target.ends_with("-musl") {
        let description = format!("The C library that comes with rust-std {rust} for {target}.");
        parts.push(part("musl", None, "MIT", &description));
    }
    parts
}

/// The C and assembly that the crate's build script compiles; `None` for a crate without any.
fn native(package: &Value) -> Option<Value> {
    let compiles = |dependency: &Value| dependency["name"] == "cc" && dependency["kind"] == "build";
    if package["links"].is_null() || !list(&package["dependencies"]).any(compiles) {
        return None;
    }
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let mut native = json!({
        "type": "library",
        "bom-ref": format!("pkg:cargo/{name}@{version}#native"),
        "name": format!("{name}: C and assembly"),
        "version": version,
        "description": "Compiled by the C compiler of the build, which is not part of this document.",
    });
    if name == "ring" {
        native["pedigree"] = json!({"ancestors": [{"type": "library", "name": "BoringSSL"}]});
    }
    Some(native)
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(&package["name"]).to_owned(), text(&package["version"]).to_owned());
    let purl = format!("pkg:cargo/{name}@{version}");
    let mut component =
        json!({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl});
    if let Some(license) = package["license"].as_str() {
        // Cargo's older notation of "or".
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(native) = native(package) {
        component["components"] = json!([native]);
    }
    component
}

/// The checksums by name and version. cargo writes the file with one key per line.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let entry = |package: &str| {
        Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}
