//! `make demo`: confrev's promises, one after another, on a real control plane with real Argo Rollouts.
//!
//! It prints what it observes, and fails if a promise does not hold. Pods are fake, unless it runs on real nodes:
//! `make demo NODE=real`. With `make demo DASHBOARD=1`, the dashboard shows the story too, and stays open after it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the crate of the control plane panics on failure; `caught` prints the message"
)]

mod dashboard;
mod node;
mod promises;
mod screen;
mod stage;
mod steps;
mod story;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, panic};

use confrev_controlplane::{ControlPlane, Program};

use crate::dashboard::Page;
use crate::screen::Screen;
use crate::story::Story;

fn main() -> ExitCode {
    let Some(binary) = env::var_os("CONFREV_BIN").and_then(|path| PathBuf::from(path).canonicalize().ok())
    else {
        eprintln!("demo: CONFREV_BIN must name the confrev binary, such as target/release/confrev");
        return ExitCode::from(2);
    };
    // `caught` reports panics in their place.
    panic::set_hook(Box::new(|_| ()));
    let screen = Screen::new();
    screen.title("confrev: every ReplicaSet keeps the config it was born with");
    let (cluster, confrev) = match caught(|| set_up(&screen, &binary)) {
        Ok(ready) => ready,
        Err(problem) => {
            screen.problem(&problem);
            return ExitCode::FAILURE;
        }
    };
    let mut story = Story::new(cluster, confrev, screen);
    let mut page = None;
    let told = caught(|| {
        if dashboard::is_wanted() {
            page = Some(Page::open(cluster, &binary, story.stage.namespace(), &story.screen));
        }
        story.tell();
    });
    if let Err(problem) = told {
        story.interrupted(&problem);
    }
    let code = story.conclude();
    if let Some(page) = page {
        page.leave_open(&story.screen);
    }
    code
}

fn set_up(screen: &Screen, binary: &Path) -> (&'static ControlPlane, Program) {
    let kubelet =
        if node::is_real() { "two nodes with kubelet and containerd" } else { "kwok as the kubelet" };
    screen.seen(&format!("etcd, API server, controller manager, scheduler, {kubelet}, Argo Rollouts ..."));
    let cluster = ControlPlane::shared();
    if node::is_real() {
        node::start();
    }
    screen.command("kubectl apply -f manifests/self-signed.yaml; confrev serve --self-signed ...");
    Program::install(cluster);
    let mut confrev = Program::new(cluster, binary);
    confrev.start();
    screen.seen(&format!("ready after {:.1} s, under its own ServiceAccount", screen.seconds()));
    (cluster, confrev)
}

/// Runs an action. Returns the message of its panic.
fn caught<T>(action: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(panic::AssertUnwindSafe(action)).map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
