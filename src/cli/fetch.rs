//! Manifests from a URL, and those that `kubectl kustomize` builds.

use std::{path::Path, process::Command, time::Duration};

use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;

use super::explain;
use crate::cluster::connect;

/// The most bytes of a manifest that are read from a URL.
const MAX_BYTES: usize = 16 << 20;
/// The most redirects that are followed.
const MAX_REDIRECTS: usize = 5;
/// The timeouts of a connection and of each read.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// Whether kubectl would take this for a URL.
pub(super) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("https://") || text.starts_with("http://"))
}

/// The text at a URL; `Err`: why it cannot be read. Some callers run inside a runtime and others do not, so this has a thread and a
/// runtime of its own.
pub(super) fn url(url: &str) -> Result<String, String> {
    let get = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| explain::io_error(&error))?.block_on(follow(url))
    };
    let answer = std::thread::scope(|scope| scope.spawn(get).join());
    answer.unwrap_or_else(|_| Err("it cannot be read".to_owned()))
}

async fn follow(url: &str) -> Result<String, String> {
    let mut uri: Uri = url.parse().map_err(|_| "it is not a URL".to_owned())?;
    for _ in 0..=MAX_REDIRECTS {
        match get(&uri).await? {
            Fetched::Text(text) => return Ok(text),
            Fetched::Elsewhere(location) => {
                let wrong = || format!("it redirects to {location:?}");
                let next: Uri = location.parse().map_err(|_| wrong())?;
                let mut parts = next.into_parts();
                // A location without a host is on the same host.
                let (scheme, authority) = (uri.scheme().cloned(), uri.authority().cloned());
                parts.authority = parts.authority.or(authority);
                parts.scheme = parts.scheme.or(scheme);
                uri = Uri::from_parts(parts).map_err(|_| wrong())?;
            }
        }
    }
    Err(format!("it redirects more than {MAX_REDIRECTS} times"))
}

enum Fetched {
    Text(String),
    Elsewhere(String),
}

/// One request, with the client of the API server's calls: the program links no other.
async fn get(uri: &Uri) -> Result<Fetched, String> {
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("it is not a URL".to_owned());
    };
    let base = format!("{scheme}://{authority}").parse().map_err(|_| "it is not a URL".to_owned())?;
    let mut config = kube::Config::new(base);
    (config.connect_timeout, config.read_timeout) = (Some(TIMEOUTS.0), Some(TIMEOUTS.1));
    let client = connect(config).map_err(|error| explain::cause(&error))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(header::ACCEPT, "*/*").body(Body::empty());
    let request = request.map_err(|_| "it is not a URL".to_owned())?;
    let response = client.send(request).await.map_err(|error| explain::cause(&error))?;
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    if let Some(location) = location.filter(|_| status.is_redirection()) {
        return Ok(Fetched::Elsewhere(location.to_owned()));
    }
    if !status.is_success() {
        return Err(format!("the server answered {status}"));
    }
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
    let bytes = body.map_err(|error| explain::cause(&*error))?.to_bytes();
    String::from_utf8(bytes.to_vec()).map(Fetched::Text).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// The manifests of a folder with a kustomization; `Err`: why they cannot be built.
pub(super) fn kustomization(folder: &Path) -> Result<String, String> {
    let output = Command::new("kubectl").arg("kustomize").arg(folder).output();
    let output = output.map_err(|error| format!("kubectl kustomize: {}", explain::io_error(&error)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it failed");
        return Err(format!("kubectl kustomize: {}", line.strip_prefix("error: ").unwrap_or(line)));
    }
    String::from_utf8(output.stdout).map_err(|_| "kubectl kustomize: it is not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, io::Write as _, net::TcpListener};

    use super::*;

    /// A server that gives these answers, one for each connection, and its address.
    fn server(answers: &[&str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: Vec<_> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        format!("http://{address}")
    }

    fn ok(text: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len())
    }

    #[test]
    fn text_of_url_is_read_after_redirects() {
        let moved =
            "HTTP/1.1 302 Found\r\nlocation: /b.yaml\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let base = server(&[moved, &ok("a: b")]);
        assert_eq!(url(&format!("{base}/a.yaml")), Ok("a: b".to_owned()));
    }

    #[test]
    fn failed_requests_say_why() {
        let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let base = server(&[missing]);
        assert_eq!(url(&base), Err("the server answered 404 Not Found".to_owned()));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        assert_eq!(url(&format!("http://127.0.0.1:{port}/a")), Err("connection refused".to_owned()));
        assert!(is_url(Path::new("https://a/b.yaml")) && !is_url(Path::new("https.yaml")));
    }
}
