//! Headless Chromium, driven by its DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

/// The names of the program.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// The message where there is none.
const MISSING: &str = "no Chromium: install Debian's package `chromium`, or set CONFREV_CHROMIUM";
/// The limit for an answer of the browser. The machine may be busy.
const LIMIT: Duration = Duration::from_mins(1);
/// The errors of a call whose page was replaced by another one before the answer.
const REPLACED: [&str; 5] = [
    "Inspected target navigated or closed",
    "Execution context was destroyed",
    "Cannot find context with specified id",
    "Cannot find default execution context",
    "Promise was collected",
];

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    folder: PathBuf,
    socket: WebSocket<TcpStream>,
    session: String,
    last: u64,
    /// Errors of the page: exceptions, and errors on its console.
    pub(crate) problems: Vec<String>,
}

fn program() -> PathBuf {
    if let Some(given) = std::env::var_os("CONFREV_CHROMIUM") {
        return given.into();
    }
    let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let mut all = folders.iter().flat_map(|folder| PROGRAMS.map(|name| folder.join(name)));
    all.find(|path| path.is_file()).expect(MISSING)
}

impl Browser {
    /// Starts a browser without any state.
    pub(crate) fn start() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("confrev-browser-{}-{number}", std::process::id()));
        // An earlier process may have had the same number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for the browser");
        let mut command = Command::new(program());
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-default-apps",
            "--remote-debugging-port=0",
            "--window-size=1280,900",
        ]);
        command.arg(format!("--user-data-dir={}", folder.display())).arg("about:blank");
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect(MISSING);
        let mut said = BufReader::new(process.stderr.take().expect("standard error"));
        let mut url = None;
        let mut line = String::new();
        while url.is_none() && said.read_line(&mut line).is_ok_and(|count| count > 0) {
            url = line.split_once("DevTools listening on ").map(|(_, url)| url.trim().to_owned());
            line.clear();
        }
        let url = url.expect("the browser listens");
        // The browser must be able to write further lines.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let host = url.trim_start_matches("ws://").split('/').next().unwrap().to_owned();
        let stream = TcpStream::connect(host).expect("the browser accepts");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let (socket, _) = tungstenite::client(&url, stream).expect("the browser speaks WebSocket");
        let mut browser =
            Self { process, folder, socket, session: String::new(), last: 0, problems: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        attached["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    #[allow(clippy::needless_pass_by_value, reason = "every caller makes the parameters for the call")]
    /// Calls a method, and returns its result or the message of its error. Events that arrive meanwhile are errors of the page, or
    /// ignored.
    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket.send(Message::text(message.to_string())).expect("the browser reads");
        loop {
            let message = self.socket.read().unwrap_or_else(|error| panic!("{method}: {error}"));
            let Ok(text) = message.to_text() else { continue };
            let Ok(answer) = serde_json::from_str::<Value>(text) else { continue };
            if answer["id"] == self.last {
                if answer["error"].is_null() {
                    return Ok(answer["result"].clone());
                }
                return Err(answer["error"].to_string());
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.problems.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.problems.push(params["entry"].to_string());
            }
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                self.problems.push(params["args"].to_string());
            }
            _ => {}
        }
    }

    /// Calls a method; `None` if another page replaced the page before the answer. A link that was pressed replaces it at any time.
    fn call_page(&mut self, method: &str, params: Value) -> Option<Value> {
        match self.try_call(method, params) {
            Ok(result) => Some(result),
            Err(error) if REPLACED.iter().any(|known| error.contains(known)) => None,
            Err(error) => panic!("{method}: {error}"),
        }
    }

    /// The value of an expression in the page. If another page replaces the page meanwhile, the value in that page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let begun = Instant::now();
        let answer = loop {
            if let Some(answer) = self.call_page("Runtime.evaluate", params.clone()) {
                break answer;
            }
            assert!(begun.elapsed() < LIMIT, "one page replaces the other, forever");
        };
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{}: {failed}", expression.chars().take(200).collect::<String>());
        answer["result"]["value"].clone()
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", json!({"url": address}));
        assert!(opened["errorText"].is_null(), "{address}: {}", opened["errorText"]);
    }

    /// Moves the mouse to a point, and presses its button.
    pub(crate) fn press(&mut self, x: f64, y: f64) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let point = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call_page("Input.dispatchMouseEvent", point);
        }
    }

    /// Types text into the element with the focus.
    pub(crate) fn insert(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key.
    pub(crate) fn key(&mut self, key: &str, code: u32) {
        // Without its character, Enter presses nothing.
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in [if text.is_empty() { "rawKeyDown" } else { "keyDown" }, "keyUp"] {
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call_page("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets features of the display, such as `prefers-color-scheme`.
    pub(crate) fn media(&mut self, features: &[(&str, &str)]) {
        let features: Vec<_> =
            features.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Sets the size of the page.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// A picture of the page, as PNG in base64.
    pub(crate) fn picture(&mut self) -> String {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        picture["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
