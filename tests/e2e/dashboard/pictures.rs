//! The pictures of the docs, of the real page. `make pictures` makes them again.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::story::shop;

#[test]
#[ignore = "`make pictures` writes the files"]
fn writes_pictures_of_the_pages() {
    let _confrev = running();
    let (world, _) = shop("shop");
    world.set_config("demo", "color: green today\n");
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.browser.media(&[("prefers-color-scheme", "light")]);
    let save = |page: &mut Page, name: &str, height: u32| {
        page.browser.size(1100, height);
        page.browser.eval("scrollTo(0, 0); document.activeElement.blur()");
        let text = page.browser.picture();
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images").join(name);
        std::fs::write(file, BASE64_STANDARD.decode(text).unwrap()).unwrap();
    };
    page.sees("paused at step 2");
    page.sees("live");
    save(&mut page, "dashboard-overview.png", 420);
    page.press("Rollout/web");
    page.sees("Revision 2 canary");
    page.sees("3 Ready");
    page.sees("live");
    page.browser.eval("document.querySelector('.actions').remove()");
    save(&mut page, "dashboard-workload.png", 800);
    page.press("ConfigMap/demo");
    page.sees("Impact of the present content");
    page.sees("live");
    save(&mut page, "dashboard-source.png", 760);
    page.press("confrev");
    page.press("Rollout/web");
    page.press("Undo");
    page.sees("Nothing is written yet");
    save(&mut page, "dashboard-preview.png", 460);
    page.has_no_errors();
}

#[test]
fn pictures_of_the_pages_exist() {
    for name in ["overview", "workload", "source", "preview"] {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("docs/images/dashboard-{name}.png"));
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(bytes.starts_with(b"\x89PNG"), "{}: run make pictures", file.display());
    }
}
