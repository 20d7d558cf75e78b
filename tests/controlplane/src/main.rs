//! `controlplane`: a real Kubernetes control plane on loopback, for as long as a command runs.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use confrev_controlplane::binaries::Binaries;
use confrev_controlplane::node::isolate;
use confrev_controlplane::{Result, beside, suites, supervisor};

const USAGE: &str = "\
Usage: controlplane build [NAME...]  builds the binaries, or only these, and prints their folder
       controlplane build -- CMD...  builds the binaries of a control plane while a command runs
       controlplane suites-of-others builds the test suites of other projects, and prints their folder
       controlplane run -- CMD...    runs a command against a new control plane
       controlplane suites -- CMD... runs the tests of a `cargo test` command, some suites at a time, each on a
                                     control plane that it does not share with another meanwhile
       controlplane nodes -- CMD...  runs a command that starts real nodes (root), in namespaces of its own
       controlplane nodes --check    reports whether real nodes can run here
       controlplane serve [FLAG...]  serves one until standard input is closed; the flags are its API server's

The command finds KUBECONFIG, CONFREV_CONTROL_PLANE and kubectl in its environment.
CONFREV_CACHE        where binaries are kept (default: ${XDG_CACHE_HOME:-~/.cache})
KUBEBUILDER_ASSETS   a folder with binaries to use; what it lacks is built
CONFREV_KUBERNETES   the version of Kubernetes (default: the newest there is)
CONFREV_LANES        how many suites run at a time (default: 2)
CONFREV_NODE=optional lets `nodes --check` end with 3 where they cannot run
CONFREV_KEEP=1       keeps the state folder, with the logs";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match command(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("controlplane: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: &[OsString]) -> Result<u8> {
    match arguments {
        [verb] if verb == "build" => {
            println!("{}", Binaries::all()?.folder().display());
            Ok(0)
        }
        [verb, dashes, program, rest @ ..] if verb == "build" && dashes == "--" => {
            beside::build(program, rest)
        }
        [verb, names @ ..] if verb == "build" => {
            let names = names.iter().map(|name| name.to_str().ok_or("a name is not UTF-8"));
            println!(
                "{}",
                Binaries::only(&names.collect::<std::result::Result<Vec<_>, _>>()?)?.folder().display()
            );
            Ok(0)
        }
        [verb] if verb == "suites-of-others" => {
            println!("{}", Binaries::of_compatibility()?.folder().display());
            Ok(0)
        }
        [verb, flags @ ..] if verb == "serve" => supervisor::serve(flags),
        [verb, dashes, program, rest @ ..] if verb == "run" && dashes == "--" => {
            supervisor::run(program, rest)
        }
        [verb, flag] if verb == "nodes" && flag == "--check" => isolate::check(),
        [verb, dashes, program, rest @ ..] if verb == "nodes" && dashes == "--" => {
            isolate::run(program, rest)
        }
        // The two processes that `nodes` starts.
        [verb, binaries, command @ ..] if verb == "first-process" => {
            isolate::first_process(binaries, command)
        }
        [verb, binaries, command @ ..] if verb == "supervise" => isolate::supervise(binaries, command),
        [verb, dashes, program, rest @ ..] if verb == "suites" && dashes == "--" => {
            suites::run(program, rest)
        }
        [verb] if verb == "--help" || verb == "help" => {
            println!("{USAGE}");
            Ok(0)
        }
        _ => Err(USAGE.to_owned()),
    }
}
