//! The examples at the end of each command's help.

use std::fmt::Write as _;

use clap::Command;

/// Commands with their examples: what each does, and the line to type. The first entry is the program itself.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[
            ("Which config does each workload run, and why does one not roll?", "kubectl confrev status"),
            ("Does confrev work in this cluster?", "kubectl confrev check"),
        ],
    ),
    (
        "status",
        &[
            ("All opted-in workloads of the namespace", "kubectl confrev status"),
            ("Those of an app, in all namespaces", "kubectl confrev status -A -l app=web"),
            ("Those that do not roll", "kubectl confrev status -A --state pending,refused"),
            ("One workload, for a program", "kubectl confrev status deployment/web -o json"),
        ],
    ),
    (
        "tree",
        &[("Also the revisions without pods, with their numbers", "kubectl confrev tree rollout/web --all")],
    ),
    (
        "history",
        &[
            ("The snapshots of ConfigMap demo", "kubectl confrev history demo"),
            ("Those of a Secret", "kubectl confrev history secret/keys"),
        ],
    ),
    (
        "show",
        &[
            (
                "Which content does a pod run with, and since when?",
                "kubectl confrev show pod/web-6b6b957dc7-x2x4k",
            ),
            ("What did the first revision read?", "kubectl confrev show rollout/web@1"),
        ],
    ),
    (
        "diff",
        &[
            ("The last change of ConfigMap demo", "kubectl confrev diff demo"),
            ("Two of its snapshots", "kubectl confrev diff demo '~2' '~1'"),
            ("What a workload would get with the next roll", "kubectl confrev diff deployment/web"),
        ],
    ),
    (
        "wait",
        &[
            ("Until all workloads run the present content", "kubectl confrev wait configmap/demo"),
            (
                "Until one does, or its canary pauses",
                "kubectl confrev wait rollout/web --allow-paused --timeout 2m",
            ),
        ],
    ),
    (
        "impact",
        &[
            ("Who would roll if all of ConfigMap demo changed?", "kubectl confrev impact demo"),
            ("Before an apply", "kubectl confrev impact -f demo.yaml"),
            ("Before an apply of a kustomization", "kubectl confrev impact -k overlays/production"),
            ("Before a namespace opts in", "kubectl confrev impact --opt-in shop"),
        ],
    ),
    (
        "waves",
        &[
            ("Which wave, and why it waits", "kubectl confrev waves demo"),
            ("Until all workloads have moved", "kubectl confrev waves demo --watch"),
            ("Begin the next wave at once", "kubectl confrev waves promote demo"),
            ("Stop a change, and let it continue", "kubectl confrev waves abort demo"),
        ],
    ),
    (
        "undo",
        &[
            ("Back to the previous config", "kubectl confrev undo deployment/web"),
            ("What would change?", "kubectl confrev undo deployment/web --dry-run"),
            ("Back to a revision that tree shows", "kubectl confrev undo deployment/web --to-revision 2"),
        ],
    ),
    (
        "pin",
        &[
            ("The snapshot before the present one", "kubectl confrev pin rollout/web demo '~1'"),
            ("A snapshot by the digits at its end", "kubectl confrev pin rollout/web demo 3a18d34e26"),
        ],
    ),
    (
        "unpin",
        &[
            ("To the present content of all sources", "kubectl confrev unpin rollout/web"),
            ("Of one source", "kubectl confrev unpin rollout/web --source demo"),
        ],
    ),
    (
        "roll",
        &[
            (
                "To the present content, without waiting for a window or a wave",
                "kubectl confrev roll rollout/web",
            ),
            ("What would happen", "kubectl confrev roll rollout/web --dry-run"),
        ],
    ),
    ("pause", &[("Keep the config during an incident", "kubectl confrev pause deployment/web")]),
    ("resume", &[("Follow changes again", "kubectl confrev resume deployment/web")]),
    (
        "restore",
        &[
            ("Show the difference first", "kubectl confrev restore demo '~1' --dry-run"),
            ("Write the content back to the ConfigMap", "kubectl confrev restore demo '~1' --yes"),
            ("Create a deleted ConfigMap again", "kubectl confrev restore demo --yes"),
        ],
    ),
    (
        "revoke",
        &[
            (
                "What still runs with an earlier content of a Secret?",
                "kubectl confrev revoke secret/db --dry-run",
            ),
            ("Remove a leaked password, after it was changed", "kubectl confrev revoke secret/db --yes"),
            ("One content, in all namespaces", "kubectl confrev revoke secret/db '~1' -A --yes"),
        ],
    ),
    #[cfg(feature = "dashboard")]
    (
        "dashboard",
        &[
            ("The workloads of all namespaces, without actions", "kubectl confrev dashboard -A --read-only"),
            ("The same pages as files", "kubectl confrev dashboard --output report"),
        ],
    ),
    (
        "render",
        &[
            (
                "As admission would change them, with the snapshots",
                "kubectl confrev render -f all.yaml --snapshots",
            ),
            ("A kustomization", "kubectl confrev render -k overlays/production"),
        ],
    ),
    (
        "lint",
        &[
            ("Manifests in a folder", "kubectl confrev lint -f manifests/"),
            ("For code scanning", "kubectl confrev lint -f manifests/ -o sarif > confrev.sarif"),
        ],
    ),
    (
        "migrate",
        &[
            ("What do other tools roll in this namespace?", "kubectl confrev migrate"),
            (
                "Replace Reloader's annotations, without a restart",
                "kubectl confrev migrate --from reloader --yes",
            ),
            ("Manifests as they become", "kubectl confrev migrate -f web.yaml --opt-in -o yaml"),
        ],
    ),
    (
        "prune",
        &[
            ("Which snapshots can be deleted, and why", "kubectl confrev prune"),
            ("Delete them", "kubectl confrev prune --yes"),
        ],
    ),
    (
        "check",
        &[
            ("The installation, and admission in one namespace", "kubectl confrev check -n shop"),
            ("Also the order of manifests", "kubectl confrev check -f deploy/"),
        ],
    ),
    (
        "digest",
        &[
            ("The digests and names of the snapshots", "kubectl confrev digest -f demo.yaml"),
            ("For a program", "kubectl confrev digest -f demo.yaml -o json"),
        ],
    ),
    (
        "version",
        &[
            ("Of the client, the installation and Kubernetes", "kubectl confrev version"),
            ("Of the client alone", "kubectl confrev version --client"),
        ],
    ),
    (
        "serve",
        &[(
            "Outside the cluster",
            "confrev serve --self-signed --webhook-url https://127.0.0.1:8443 --listen 127.0.0.1:8443",
        )],
    ),
    (
        "completion",
        &[("For bash", "confrev completion bash > ~/.local/share/bash-completion/completions/confrev")],
    ),
];

/// Adds the examples to the help of each command.
pub(super) fn attach(mut program: Command) -> Command {
    for (name, examples) in EXAMPLES {
        let mut text = "Examples:\n".to_owned();
        for (what, line) in *examples {
            // Writing to a String cannot fail.
            let _ = write!(text, "  # {what}\n  {line}\n");
        }
        program = match *name {
            "" => program.after_help(text),
            name => program.mut_subcommand(name, |command| command.after_help(text)),
        };
    }
    program
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_has_examples_that_parse() {
        let cli = Cli::command();
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown.map(Command::get_name).chain([""]) {
            let of = EXAMPLES.iter().find(|(name, _)| *name == command);
            let (_, examples) = of.unwrap_or_else(|| panic!("src/cli/examples.rs has no {command:?}"));
            for (_, line) in *examples {
                let line = line.split(" > ").next().unwrap_or_default().replace('\'', "");
                let words: Vec<_> = line.split_whitespace().skip_while(|word| *word == "kubectl").collect();
                let parsed = Cli::command().try_get_matches_from(&words);
                let matches = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
                let used = matches.subcommand_name().unwrap_or_default();
                assert!(command.is_empty() || used == command, "{line} is an example of {command}");
            }
        }
        attach(Cli::command()).debug_assert();
        assert!(attach(Cli::command()).render_help().to_string().contains("Examples:"));
    }
}
