//! The cookie of the dashboard. A browser sends it to every port of 127.0.0.1, so its path is a secret of the run.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use confrev_controlplane::ControlPlane;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::World;

/// A running dashboard, and the address that it printed.
struct Dashboard {
    process: Child,
    host: String,
    /// The path of the run, with a slash at its end.
    path: String,
    token: String,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Dashboard {
    fn start(namespace: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
        command.args(["dashboard", "-n", namespace]).env("KUBECONFIG", ControlPlane::shared().kubeconfig());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).expect("an address");
        let rest = line.trim().strip_prefix("http://").expect("an address");
        let (host, rest) = rest.split_once('/').expect("a path");
        let (path, token) = rest.split_once("?token=").expect("a token");
        Self { process, host: host.to_owned(), path: format!("/{path}"), token: token.to_owned() }
    }

    /// The status, the headers and the body of the answer to a GET.
    fn get(&self, path: &str, cookie: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.host).expect("the server accepts");
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.host);
        let cookie = if cookie.is_empty() { String::new() } else { format!("cookie: {cookie}\r\n") };
        stream.write_all(format!("{head}{cookie}\r\n").as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        (answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"), answer)
    }
}

#[test]
fn cookie_has_the_path_of_its_run() {
    let _confrev = running();
    let world = World::new("dashboard-cookie");
    world.set_config("demo", "A");
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0).manifest()).ok();
    let (dashboard, other) = (Dashboard::start(world.name()), Dashboard::start(world.name()));
    assert!(dashboard.path.len() > 32 && dashboard.path != other.path, "{}", dashboard.path);
    let (status, answer) = dashboard.get(&format!("{}?token={}", dashboard.path, dashboard.token), "");
    let header = |name: &str| {
        let mut lines = answer.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).expect("a header").to_owned()
    };
    assert_eq!((status, header("location")), (303, dashboard.path.clone()));
    let cookie = header("set-cookie");
    // A server of another user would have to serve this very path to receive the cookie.
    assert!(cookie.contains(&format!("; Path={}; ", dashboard.path)), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let (status, page) = dashboard.get(&dashboard.path, pair);
    assert!(status == 200 && page.contains("Deployment/web"), "{page}");
    for part in page.split("href=\"/").skip(1) {
        assert!(part.starts_with(&dashboard.path[1..]), "each link has the path: {part}");
    }
    for path in ["/", "/sources/x/configmap/demo", "/assets/page.js", &other.path] {
        let (status, answer) = dashboard.get(path, pair);
        assert!(status == 404 && !answer.contains(&dashboard.path[1..33]), "{path}: {answer}");
    }
}
