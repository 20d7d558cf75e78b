//! The driver of the browser itself: a page may be replaced by another one while a test reads it.

use crate::browser::Browser;

#[test]
fn reading_continues_in_the_next_page() {
    let mut browser = Browser::start();
    let page = std::env::temp_dir().join(format!("confrev-replaced-{}.html", std::process::id()));
    std::fs::write(&page, "<!doctype html><title>page</title>").unwrap();
    browser.open(&format!("file://{}", page.display()));
    // The first page never answers: it loads itself again instead.
    let read = browser.eval(
        "sessionStorage.loaded ? 'second' : (sessionStorage.loaded = 'yes', location.reload(), new Promise(() => {}))",
    );
    std::fs::remove_file(&page).unwrap();
    assert_eq!(read, "second");
}
