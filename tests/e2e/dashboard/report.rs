//! The report on disk.

use std::process::Command;

use confrev_controlplane::ControlPlane;

use crate::browser::Browser;
use crate::page::Page;
use crate::shared::running;
use crate::story::shop;

#[test]
fn report_has_the_pages_without_server() {
    let _confrev = running();
    let (world, _) = shop("dashboard-report");
    let folder = std::env::temp_dir().join(format!("confrev-{}", world.name()));
    let path = folder.to_str().unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
        command.args(["dashboard", "-n", world.name(), "--output", path]);
        command.env("KUBECONFIG", ControlPlane::shared().kubeconfig()).output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("5 pages written: open "), "{output:?}");
    assert_eq!(run().status.code(), Some(2), "a report is not overwritten");

    let mut page = Page { browser: Browser::start() };
    page.browser.open(&format!("file://{path}/index.html"));
    page.sees("Rollout/web");
    page.browser.eval("document.getElementById('words').focus()");
    page.browser.insert("api");
    page.sees("1 shown");
    page.press("Deployment/api");
    page.sees("Revision 1");
    page.press("ConfigMap/other");
    page.sees("Impact of the present content");
    page.is_accessible();
    page.press("confrev");
    page.sees("2 shown");
    assert_eq!(page.browser.eval("document.querySelectorAll('form[method=post]').length"), 0);
    page.has_no_errors();
    std::fs::remove_dir_all(&folder).unwrap();
}
