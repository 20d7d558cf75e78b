//! Attacks from other pages in the browser of a person who has the dashboard open. A browser sends a cookie to all ports of a host, so
//! the path of the cookie is a secret, and the server checks each request.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use confrev_controlplane::wait_for;

use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::story::shop;
use crate::world::LIMIT;

/// A web server on another port that answers every request with this page, and the requests that it received.
fn hostile(page: String) -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Arc::new(Mutex::new(String::new()));
    let heads = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 8192];
            let length = stream.read(&mut request).unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            heads.lock().unwrap_or_else(PoisonError::into_inner).push_str(&request);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                page.len()
            );
            let _ = stream.write_all((head + &page).as_bytes());
        }
    });
    (address, received)
}

#[test]
fn other_pages_can_neither_read_nor_act() {
    let _confrev = running();
    let (world, web) = shop("dashboard-attacks");
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.press("Rollout/web");
    page.sees("Actions");
    // The page knows even the secret of the forms.
    let secret = page.browser.eval("document.querySelector('[name=form]').value");
    // The page even knows the path, which no page of another origin can learn.
    let (root, secret) = (dashboard.root().to_owned(), secret.as_str().unwrap());
    let fields =
        [("form", secret), ("action", "pause"), ("namespace", world.name()), ("workload", "Rollout/web")]
            .map(|(name, value)| format!("<input name='{name}' value='{value}'>"))
            .concat();
    let (attack, received) = hostile(format!(
        "<form id=f method=post action='{root}/actions/preview'>{fields}</form><iframe src='{root}/'></iframe>
         <script>window.read = fetch('{root}/', {{credentials: 'include'}}).then((a) => a.text(), () => 'refused');</script>"
    ));
    page.browser.open(&attack);
    page.browser.eval(
        "new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))",
    );
    assert_eq!(page.browser.eval("window.read"), "refused", "another page reads nothing");
    page.browser.eval("setTimeout(() => document.getElementById('f').submit()); 0");
    page.sees("another web page asked for this");
    // A name that resolves to loopback.
    page.browser.open(&format!("{}/", root.replace("127.0.0.1", "localhost")));
    page.sees("no session");
    let live = world.live(&web);
    assert_eq!(
        live["metadata"]["annotations"]["confrev.dev/track"],
        serde_json::Value::Null,
        "nothing was written"
    );
    page.browser.open(&format!("{root}/"));
    page.sees("Rollout/web");
    // The other server was visited with the cookie in the browser, at several paths, and got none.
    page.browser.open(&format!("{attack}/sources/shop/configmap/demo"));
    wait_for("the visit of another path", LIMIT, || {
        let received = received.lock().unwrap_or_else(PoisonError::into_inner).to_lowercase();
        assert!(!received.contains("cookie:"), "{received}");
        if received.contains("get /sources/shop") { Ok(()) } else { Err(received) }
    });
}

/// Names of keys and contents come from users of the cluster.
#[test]
fn hostile_content_is_shown_as_text() {
    let _confrev = running();
    let (world, _) = shop("dashboard-hostile");
    let hostile =
        "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>\n";
    world.set_config("demo", hostile);
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.press("Rollout/web");
    page.sees("onerror=");
    page.press("ConfigMap/demo");
    page.sees("onerror=");
    assert_ne!(page.browser.eval("document.title"), "attacked");
    assert_eq!(page.browser.eval("document.querySelectorAll('main img, main script').length"), 0);
    page.has_no_errors();
}
