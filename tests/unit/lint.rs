//! `kubectl confrev lint` in a folder with every kind of finding. Its reports are compared with golden files.
//! `CONFREV_GOLDENS=write` rewrites the files; review their changes like any others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unit/lint")
}

/// Runs the command in the folder. Returns the exit code, and standard output and error.
fn lint(arguments: &[&str]) -> (Option<i32>, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_confrev"))
        .arg("lint")
        .args(arguments)
        .current_dir(folder())
        .env("KUBECONFIG", "/nonexistent")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (run.status.code(), text(run.stdout), text(run.stderr))
}

#[test]
fn reports_match_golden_files() {
    for format in ["text", "sarif", "junit"] {
        let (code, report, errors) = lint(&["-f", "manifests", "-o", format]);
        assert_eq!((code, errors.as_str()), (Some(3), "error: 5 problems were found\n"), "{format}");
        let file = folder().join(format);
        if std::env::var_os("CONFREV_GOLDENS").is_some_and(|value| value == "write") {
            fs::write(&file, &report).unwrap();
        }
        assert_eq!(report, fs::read_to_string(&file).unwrap(), "{format}");
        assert!(!report.contains("hunter2"), "{format} shows a value");
    }
}

/// A file that is no YAML is a finding with its line, and does not hide those of other files.
#[test]
fn invalid_yaml_hides_no_other_finding() {
    let (code, report, _) = lint(&["-f", "manifests/5-broken.yaml", "-f", "manifests/2-web.yaml"]);
    assert_eq!(code, Some(3));
    let lines: Vec<_> = report.lines().collect();
    assert!(
        lines[0].starts_with("manifests/5-broken.yaml: error: ") && lines[0].ends_with("[yaml]"),
        "{report}"
    );
    assert!(lines[1..].iter().any(|line| line.contains("Deployment \"web\"")), "{report}");
}

#[test]
fn strict_counts_warnings_as_errors() {
    let good = ["-f", "manifests/1-schemas.yaml"];
    assert_eq!(lint(&good), (Some(0), String::new(), String::new()));
    let web = ["-f", "manifests/2-web.yaml"];
    let (code, report, errors) = lint(&web);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(report.contains("warning: Deployment \"web\""), "{report}");
    let (code, again, errors) = lint(&[&web[..], &["--strict"]].concat());
    assert_eq!((code, again), (Some(3), report));
    assert!(errors.contains("found"), "{errors}");
}
