//! The workflows of `.github` run only targets of the Makefile, so that a person can run the same.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The steps of all jobs, each with the name of its workflow.
fn steps() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let workflow: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for job in workflow["jobs"].as_object().unwrap().values() {
            assert!(job["timeout-minutes"].is_u64(), "{}: a job without a time limit", path.display());
            let steps = job["steps"].as_array().unwrap().iter().cloned();
            found.extend(steps.map(|step| (path.display().to_string(), step)));
        }
    }
    found
}

#[test]
fn workflows_run_only_targets_of_makefile() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<_> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', ' ']))
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    let mut run = BTreeSet::new();
    for (workflow, step) in steps() {
        let Some(command) = step["run"].as_str() else {
            assert!(step["uses"].is_string(), "{workflow}: {step}");
            continue;
        };
        let mut words = command.split_whitespace().skip_while(|word| *word == "sudo");
        assert_eq!(words.next(), Some("make"), "{workflow}: {command}");
        let target = words.next().unwrap_or_default();
        assert!(targets.contains(target), "{workflow}: no target {target}");
        assert!(words.all(|word| word.contains('=')), "{workflow}: {command}");
        run.insert(target.to_owned());
    }
    for target in ["lint", "test", "release", "test-release", "publish"] {
        assert!(run.contains(target), "no workflow runs make {target}");
    }
}

#[test]
fn paths_of_code_owners_exist() {
    let owners = fs::read_to_string(root().join(".github/CODEOWNERS")).unwrap();
    let rules: Vec<_> = owners.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rules.len() > 5, "{owners}");
    for rule in rules {
        let (path, owner) = rule.split_once(' ').unwrap();
        assert!(owner.trim().starts_with("@confrev/"), "{rule}");
        let exists = path == "*" || root().join(path.trim_start_matches('/')).exists();
        assert!(exists, "{rule}");
    }
}
