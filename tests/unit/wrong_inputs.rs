//! Wrong inputs that need no cluster, each with its answer: one line that says what is wrong and what to do.

use std::{fs, path::PathBuf, process::Command};

/// Wrong arguments: exit code 2.
const ARGUMENTS: &[(&str, &str)] = &[
    ("frobnicate", "unrecognized subcommand 'frobnicate'; see --help"),
    ("statsu", "unrecognized subcommand 'statsu'; a similar subcommand exists: 'status'; see --help"),
    ("status a b", "unexpected argument 'b' found; see --help"),
    (
        "status --outptu json",
        "unexpected argument '--outptu' found; a similar argument exists: '--output'; see --help",
    ),
    (
        "status -o xml",
        "invalid value 'xml' for '--output <FORMAT>' [possible values: table, wide, json, yaml, name]; a similar value \
         exists: 'yaml'; see --help",
    ),
    ("status -n", "a value is required for '--namespace <NAMESPACE>' but none was supplied; see --help"),
    (
        "status web -l app=web",
        "the argument '[WORKLOAD]' cannot be used with '--selector <LABELS>'; see --help",
    ),
    (
        "status -A -n a",
        "the argument '--all-namespaces' cannot be used with '--namespace <NAMESPACE>'; see --help",
    ),
    ("status --as-group=x", "the following required arguments were not provided: --as <USER>; see --help"),
    (
        "status --request-timeout=x",
        "invalid value 'x' for '--request-timeout <DURATION>': expected a duration such as \"30s\", \"5m\" or \"1h30m\"; \
         see --help",
    ),
    (
        "status --kind x",
        "invalid value 'x' for '--kind <GROUP/VERSION/RESOURCE/KIND=PATH>': use the form \
         GROUP/VERSION/RESOURCE/KIND=PATH, such as apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template; see --help",
    ),
    (
        "status --rotated-configmap A_b",
        "invalid value 'A_b' for '--rotated-configmap <NAME>': invalid name of a ConfigMap; see --help",
    ),
    (
        "status --client-key k",
        "the following required arguments were not provided: --client-certificate <FILE>; see --help",
    ),
    ("tree", "the following required arguments were not provided: <WORKLOAD>; see --help"),
    ("history", "the following required arguments were not provided: <SOURCE>; see --help"),
    ("diff", "the following required arguments were not provided: <OBJECT>; see --help"),
    ("diff a b c d", "unexpected value 'd' for '[SNAPSHOT]...' found; no more were expected; see --help"),
    ("wait", "the following required arguments were not provided: <OBJECT>; see --help"),
    (
        "wait demo --timeout soon",
        "invalid value 'soon' for '--timeout <DURATION>': expected a duration such as \"30s\", \"5m\" or \"1h30m\"; see \
         --help",
    ),
    (
        "impact",
        "the following required arguments were not provided: <SOURCE|--filename <FILE>|--kustomize <FOLDER>|--opt-in <NAMESPACE>>; see --help",
    ),
    ("impact demo -f x", "the argument '[SOURCE]' cannot be used with '--filename <FILE>'; see --help"),
    ("impact demo -k x", "the argument '[SOURCE]' cannot be used with '--kustomize <FOLDER>'; see --help"),
    ("undo", "the following required arguments were not provided: <WORKLOAD>; see --help"),
    (
        "undo web --to-revision=x",
        "invalid value 'x' for '--to-revision <N>': expected the number of a revision, such as 2; see --help",
    ),
    (
        "undo web --to-revision=-1",
        "invalid value '-1' for '--to-revision <N>': expected the number of a revision, such as 2; see --help",
    ),
    (
        "undo web --dry-run=maybe",
        "invalid value 'maybe' for '--dry-run[=<MODE>]' [possible values: server, client, none]; see --help",
    ),
    ("pin web", "the following required arguments were not provided: <SOURCE> <SNAPSHOT>; see --help"),
    ("pin web demo", "the following required arguments were not provided: <SNAPSHOT>; see --help"),
    ("unpin web demo", "unexpected argument 'demo' found; see --help"),
    ("pause", "the following required arguments were not provided: <WORKLOAD>; see --help"),
    ("resume web more", "unexpected argument 'more' found; see --help"),
    ("restore", "the following required arguments were not provided: <SOURCE>; see --help"),
    ("restore demo ~0 more", "unexpected argument 'more' found; see --help"),
    (
        "render",
        "the following required arguments were not provided: <--filename <FILE>|--kustomize <FOLDER>>; see --help",
    ),
    (
        "lint -f x -o yaml",
        "invalid value 'yaml' for '--output <FORMAT>' [possible values: text, sarif, junit]; see --help",
    ),
    (
        "digest",
        "the following required arguments were not provided: <--filename <FILE>|--kustomize <FOLDER>>; see --help",
    ),
    (
        "digest -f a -k b",
        "the argument '--filename <FILE>' cannot be used with '--kustomize <FOLDER>'; see --help",
    ),
    (
        "prune -A -n a",
        "the argument '--all-namespaces' cannot be used with '--namespace <NAMESPACE>'; see --help",
    ),
    (
        "check --confrev-namespace=A_b",
        "invalid value 'A_b' for '--confrev-namespace <NAMESPACE>': invalid name of a namespace; see --help",
    ),
    ("check demo", "unexpected argument 'demo' found; see --help"),
    ("version demo", "unexpected argument 'demo' found; see --help"),
    (
        "completion x",
        "invalid value 'x' for '<SHELL>' [possible values: bash, elvish, fish, powershell, zsh]; see --help",
    ),
    ("waves --watch", "give the source, as in `waves demo --watch`"),
    (
        "waves promote demo --al",
        "unexpected argument '--al' found; a similar argument exists: '--all'; see --help",
    ),
    (
        "waves abort",
        "give the source, as in `waves abort demo`; for a source of this name, give configmap/abort",
    ),
    ("waves begin demo", "unknown action \"begin\", use promote, abort or retry"),
    ("waves retry deployment/web", "invalid source \"deployment/web\": use configmap/NAME or secret/NAME"),
    ("revoke", "the following required arguments were not provided: <SOURCE>; see --help"),
    (
        "revoke demo --timeout=x",
        "invalid value 'x' for '--timeout <DURATION>': expected a duration such as \"30s\", \"5m\" or \"1h30m\"; see \
         --help",
    ),
    ("show", "the following required arguments were not provided: <KIND/NAME[@REVISION]>; see --help"),
    (
        "undo web --hold=false",
        "unexpected value 'false' for '--hold' found; no more were expected; see --help",
    ),
    ("pin web demo --hold", "the following required arguments were not provided: <SNAPSHOT>; see --help"),
    // These are only found while the command runs.
    ("status -n Bad_NS", "invalid namespace \"Bad_NS\""),
    ("history pod/x", "invalid source \"pod/x\": use configmap/NAME or secret/NAME"),
    ("history Bad_Name", "invalid object name \"Bad_Name\": use lower case letters, digits, - and ."),
    ("unpin web --source pod/x", "invalid source \"pod/x\": use configmap/NAME or secret/NAME"),
];

/// Files that cannot be read, and clusters that cannot be reached: exit code 1, and 2 for `diff`.
const FILES: &[(&str, &str)] = &[
    ("digest -f none.yaml", "none.yaml: no such file or directory"),
    ("render -f none.yaml", "none.yaml: no such file or directory"),
    ("lint -f none.yaml", "none.yaml: no such file or directory"),
    ("impact -f none.yaml", "none.yaml: no such file or directory"),
    ("digest -f broken.yaml", "broken.yaml: invalid YAML: line 1 column 4: unclosed bracket '['"),
    (
        "digest -f number.yaml",
        "number.yaml: ConfigMap \"a\": data: the value of key \"k\" is not a string: quote it",
    ),
    ("digest -f binary.yaml", "binary.yaml: it is not UTF-8 text"),
    ("digest -f nameless.yaml", "nameless.yaml: ConfigMap \"\": it has no name"),
    ("digest -f http://127.0.0.1:1/a.yaml", "http://127.0.0.1:1/a.yaml: connection refused"),
    ("status", "the API server at http://127.0.0.1:1/ does not answer: connection refused"),
    ("check", "the API server at http://127.0.0.1:1/ does not answer: connection refused"),
    ("undo web", "the API server at http://127.0.0.1:1/ does not answer: connection refused"),
    (
        "status --kubeconfig dns.yaml",
        "the API server at https://no-such-host.invalid:6443/ does not answer: its name cannot be resolved",
    ),
    (
        "status --kubeconfig none.yaml",
        "no usable cluster configuration: kubeconfig none.yaml: no such file or directory: set KUBECONFIG, or give \
         --kubeconfig and --context",
    ),
    (
        "status --kubeconfig broken.yaml",
        "no usable cluster configuration: the kubeconfig is invalid YAML: line 1 column 4: unclosed bracket '['",
    ),
    (
        "status --kubeconfig empty.yaml",
        "no usable cluster configuration: the kubeconfig has no current context: give --context",
    ),
    (
        "status --context nowhere",
        "no usable cluster configuration: the kubeconfig has no context \"nowhere\": set KUBECONFIG, or give --kubeconfig \
         and --context",
    ),
    (
        "status --cluster nowhere",
        "no usable cluster configuration: the kubeconfig has no cluster \"nowhere\"",
    ),
    (
        "status --server nowhere",
        "no usable cluster configuration: invalid API server address \"nowhere\": give a URL such as https://HOST:6443",
    ),
    (
        "status --certificate-authority none.crt",
        "no usable cluster configuration: --certificate-authority none.crt: no such file or directory",
    ),
    (
        "status --certificate-authority empty.yaml",
        "no usable cluster configuration: --certificate-authority empty.yaml: it contains no certificate",
    ),
    (
        "status --client-certificate none.crt --client-key none.key",
        "no usable cluster configuration: client certificate none.crt: no such file or directory",
    ),
    (
        "status --kubeconfig ca.yaml",
        "no usable cluster configuration: CA of the API server /nonexistent: no such file or directory",
    ),
    (
        "status --kubeconfig base64.yaml",
        "no usable cluster configuration: CA of the API server: its data is not base64",
    ),
    (
        "status --kubeconfig login.yaml",
        "no usable cluster configuration: the login program of the kubeconfig cannot be started: no such file or directory",
    ),
    (
        "status --kubeconfig failing.yaml",
        "no usable cluster configuration: the login program of the kubeconfig failed (exit status: 1)",
    ),
    (
        "status --kubeconfig token.yaml",
        "no usable cluster configuration: token file /nonexistent: no such file or directory",
    ),
    (
        "status --kubeconfig proxy.yaml",
        "no usable cluster configuration: the proxy http://127.0.0.1:2/ of the kubeconfig is not supported: use a direct \
         connection",
    ),
    ("version", "the API server at http://127.0.0.1:1/ does not answer: connection refused"),
];

fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{{cluster}}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{{user}}}}}]\n"
    )
}

/// A folder with the files of the tables.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("confrev-wrong-inputs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let exec = |command: &str| {
        format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: '{command}', interactiveMode: Never}}"
        )
    };
    let head = "apiVersion: v1\nkind: ConfigMap\n";
    let https = "server: 'https://127.0.0.1:1'";
    for (name, text) in [
        ("away.yaml", kubeconfig("server: 'http://127.0.0.1:1'", "")),
        ("dns.yaml", kubeconfig("server: 'https://no-such-host.invalid:6443'", "")),
        ("broken.yaml", "x: [".to_owned()),
        ("empty.yaml", String::new()),
        ("number.yaml", format!("{head}metadata: {{name: a}}\ndata: {{k: 1}}\n")),
        ("nameless.yaml", head.to_owned()),
        ("ca.yaml", kubeconfig(&format!("{https}, certificate-authority: /nonexistent"), "")),
        ("base64.yaml", kubeconfig(&format!("{https}, certificate-authority-data: '%'"), "")),
        ("login.yaml", kubeconfig(https, &exec("no-such-program"))),
        ("failing.yaml", kubeconfig(https, &exec("false"))),
        ("token.yaml", kubeconfig(https, "tokenFile: /nonexistent")),
        ("proxy.yaml", kubeconfig(&format!("{https}, proxy-url: 'http://127.0.0.1:2'"), "")),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    folder
}

#[test]
fn wrong_inputs_without_cluster_get_one_line() {
    let folder = folder();
    let mut wrong = Vec::new();
    let tables = [(ARGUMENTS, 2), (FILES, 1)];
    for (line, code, said) in
        tables.iter().flat_map(|(table, code)| table.iter().map(|(l, s)| (*l, *code, *s)))
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
        command.args(line.split(' ')).current_dir(&folder).env("KUBECONFIG", "away.yaml");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(code) || stderr != format!("error: {said}\n") {
            wrong.push(format!("$ {line}\n  {:?} {stderr}  wanted: {code} {said}", output.status.code()));
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Errors of `diff` have exit code 2: with 1, a script would take them for a difference.
#[test]
fn errors_of_diff_have_their_own_code() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(["diff", "demo", "--server", "http://127.0.0.1:1"]).env_remove("KUBECONFIG");
    assert_eq!(command.env("HOME", "/nonexistent").output().unwrap().status.code(), Some(2));
}
