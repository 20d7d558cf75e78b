//! The provenance of a release: which files were built, from which commit, and by whom.
//! Source: in-toto statement 1, and SLSA provenance 1.0, <https://slsa.dev/spec/v1.0/provenance>.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// How a release was built.
#[derive(Debug)]
pub struct Build<'a> {
    /// The version of the release.
    pub version: &'a str,
    /// The commit.
    pub commit: &'a str,
    /// The time of the commit, in seconds since 1970: the only time in the files.
    pub epoch: i64,
    /// The version of the Rust compiler.
    pub compiler: &'a str,
    /// The address of the repository.
    pub repository: &'a str,
    /// Who built the files, as a URI.
    pub builder: &'a str,
}

/// The statement about the files of a release. `subjects` are these files, `inputs` are files of the commit that pin
/// other inputs; each with its name and content.
pub fn statement(build: &Build<'_>, subjects: &[(String, Vec<u8>)], inputs: &[(&str, Vec<u8>)]) -> Value {
    let subjects: Vec<_> = subjects
        .iter()
        .map(|(name, content)| json!({"name": name, "digest": {"sha256": sha256(content)}}))
        .collect();
    let commit = json!({
        "uri": format!("git+{}@refs/tags/v{}", build.repository, build.version),
        "digest": {"gitCommit": build.commit},
    });
    let compiler = json!({"uri": format!("pkg:generic/rust@{}", build.compiler)});
    let inputs =
        inputs.iter().map(|(name, content)| json!({"name": name, "digest": {"sha256": sha256(content)}}));
    let dependencies: Vec<_> = [commit, compiler].into_iter().chain(inputs).collect();
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://confrev.dev/make-release/v1",
                "externalParameters": {"repository": build.repository, "version": build.version},
                "internalParameters": {"SOURCE_DATE_EPOCH": build.epoch},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": build.builder}},
        },
    })
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
