//! What a user may not do.

use serde_json::json;

use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::story::shop;

#[test]
fn missing_rights_disable_actions_with_reason() {
    let _confrev = running();
    let (world, _) = shop("dashboard-rights");
    let read = json!(["get", "list", "watch"]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": read}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]});
    world.apply(&role).ok();
    world.apply(&binding).ok();
    let dashboard = Dashboard::start(&["-n", world.name(), "--as", "reader"]);
    let mut page = Page::open(&dashboard);
    page.press("Rollout/web");
    page.sees(&format!("you may not patch rollouts.argoproj.io in namespace {}", world.name()));
    for button in ["Undo", "Pin", "Unpin", "Pause"] {
        let why = page.why_disabled(button).to_string();
        assert!(why.contains("Not possible: you may not patch"), "{button}: {why}");
    }
    page.is_accessible();
    page.press("ConfigMap/demo");
    page.sees("you may not patch configmaps");
    assert!(page.why_disabled("Restore").is_string());
    page.has_no_errors();
}

#[test]
fn read_only_page_shows_no_action() {
    let _confrev = running();
    let (world, _) = shop("dashboard-readonly");
    let dashboard = Dashboard::start(&["-n", world.name(), "--read-only"]);
    let mut page = Page::open(&dashboard);
    page.press("Rollout/web");
    page.sees("The page is read-only");
    assert_eq!(page.browser.eval("document.querySelectorAll('form[method=post], button').length"), 0);
    page.has_no_errors();
}
