//! Other means than a mouse and usual colours.

use crate::axe;
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::story::shop;

/// The colours of the system replace all others, so states differ by shape and words.
#[test]
fn colours_of_the_system_keep_states_visible() {
    let _confrev = running();
    let (world, _) = shop("dashboard-forced");
    world.set_config("demo", "color: green today\n");
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.sees("paused at step 2");
    for scheme in ["light", "dark"] {
        page.browser.media(&[("forced-colors", "active"), ("prefers-color-scheme", scheme)]);
        assert_eq!(page.browser.eval("matchMedia('(forced-colors: active)').matches"), true);
        let colours = "(() => { const style = getComputedStyle(document.body);
            return [...document.querySelectorAll('.mark')].filter((one) => one.checkVisibility())
              .every((one) => getComputedStyle(one).backgroundColor === style.color && style.color !== style.backgroundColor); })()";
        assert_eq!(page.browser.eval(colours), true, "{scheme}: each mark has the colour of the text");
        let found = axe::violations(&mut page.browser);
        assert!(found.is_empty(), "{scheme}: {found:#?}");
    }
    page.press("Rollout/web");
    page.sees("Revision 2 canary");
    let lines = "[...document.querySelectorAll('.pair mark')].map((one) => getComputedStyle(one).textDecorationLine).join()";
    assert_eq!(page.browser.eval(lines), "underline,underline", "the words that differ");
    let found = axe::violations(&mut page.browser);
    assert!(found.is_empty(), "{found:#?}");
    page.has_no_errors();
}

#[test]
fn keyboard_alone_reaches_a_preview() {
    let _confrev = running();
    let (world, web) = shop("dashboard-keyboard");
    world.set_config("demo", "color: green today\n");
    world.wait_resolved(&web, "demo", "color: green today\n");
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.sees("Rollout/web");
    page.press_by_keyboard("Rollout/web");
    page.sees("Revision 2 canary");
    page.press_by_keyboard("Undo");
    page.sees("Nothing is written yet");
    page.press_by_keyboard("Cancel");
    page.sees("Revision 2 canary");
    page.has_no_errors();
}
