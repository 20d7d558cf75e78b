//! The checks of every request: host, origin, session and form. They keep out other web pages, other users of the machine and names
//! that resolve to loopback.

use std::fmt::Write as _;

use http::{HeaderMap, Method, StatusCode, Uri, header};
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};

use super::links::{Links, RunPath};

/// The bytes of each secret.
const SECRET_BYTES: usize = 32;
/// The bytes of the path, which is also a secret.
const PATH_BYTES: usize = 16;
/// The query parameter of the first address.
pub(super) const TOKEN: &str = "token";

/// A random secret in hexadecimal digits. Comparisons take the same time for all wrong values.
#[derive(Clone)]
pub(super) struct Secret {
    text: String,
    key: std::sync::Arc<hmac::Key>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    fn random<const BYTES: usize>(random: &SystemRandom) -> Result<Self, std::io::Error> {
        let failed = |_| std::io::Error::other("the system has no random numbers");
        let mut bytes = [0; BYTES];
        random.fill(&mut bytes).map_err(failed)?;
        let text = bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        let key = hmac::Key::generate(hmac::HMAC_SHA256, random).map_err(failed)?;
        Ok(Self { text, key: std::sync::Arc::new(key) })
    }

    /// The secret itself.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether this is the secret. Both are hashed under a random key, so the time reveals nothing about the secret.
    pub(super) fn is(&self, given: &str) -> bool {
        let wanted = hmac::sign(&self.key, self.text.as_bytes());
        hmac::verify(&self.key, given.as_bytes(), wanted.as_ref()).is_ok()
    }
}

/// The secrets of one run of the command.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// The port on loopback.
    port: u16,
    /// The first part of each path. A browser sends a cookie to all ports of a host, but only to paths below that of the cookie: no
    /// server of another user gets it.
    path: Secret,
    /// The secret in the address that the command prints.
    token: Secret,
    /// The secret in the cookie.
    session: Secret,
    /// The secret in every form.
    form: Secret,
}

/// The answer to a request before it reaches a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GuardAnswer {
    /// The page may answer.
    Pass,
    /// The token is right: set this cookie and go to this path.
    Enter {
        /// The value of `Set-Cookie`.
        cookie: String,
        /// The path without the token.
        to: String,
    },
    /// The request is rejected.
    Reject(StatusCode, &'static str),
}

impl Guard {
    /// New secrets for a server on this port.
    pub(super) fn new(port: u16) -> Result<Self, std::io::Error> {
        let random = SystemRandom::new();
        let secret = || Secret::random::<SECRET_BYTES>(&random);
        let path = Secret::random::<PATH_BYTES>(&random)?;
        Ok(Self { port, path, token: secret()?, session: secret()?, form: secret()? })
    }

    /// The address that opens the page.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}{}?{TOKEN}={}", self.port, self.links().overview(), self.token.text())
    }

    /// The addresses of the pages.
    pub(super) fn links(&self) -> Links {
        Links::Server(RunPath::new(self.path.text()))
    }

    /// The secret of the forms.
    pub(super) const fn form(&self) -> &Secret {
        &self.form
    }

    /// The cookie's name. Cookies of one host are sent to all its ports, so the name has the port.
    fn cookie_name(&self) -> String {
        format!("confrev-{}", self.port)
    }

    /// Judges a request. The form's secret is checked where the form is read.
    pub(super) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> GuardAnswer {
        let reject = |message| GuardAnswer::Reject(StatusCode::FORBIDDEN, message);
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let hosts = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        let host = text(header::HOST).unwrap_or_default();
        if headers.get_all(header::HOST).iter().count() != 1 || !hosts.iter().any(|known| known == host) {
            return reject(
                "this address does not belong to the page: open the address that the command printed",
            );
        }
        match text(header::ORIGIN) {
            Some(origin) if origin != format!("http://{host}") => {
                return reject("another web page asked for this");
            }
            None if method != Method::GET && method != Method::HEAD => {
                return reject("the request does not state the page that it comes from");
            }
            _ => {}
        }
        let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"));
        if !matches!(site, None | Some("same-origin" | "none")) {
            return reject("another web page asked for this");
        }
        if ![Method::GET, Method::HEAD, Method::POST].contains(method) {
            return GuardAnswer::Reject(StatusCode::METHOD_NOT_ALLOWED, "the page has no such method");
        }
        let first = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
        if !self.path.is(first) {
            return GuardAnswer::Reject(
                StatusCode::NOT_FOUND,
                "no page has this path: open the address that the command printed",
            );
        }
        if let Some(token) = parameter(uri, TOKEN).filter(|_| method == Method::GET) {
            if !self.token.is(token) {
                return GuardAnswer::Reject(
                    StatusCode::UNAUTHORIZED,
                    "the token of the address is wrong: open the address that the command printed",
                );
            }
            let name = self.cookie_name();
            let path = self.links().overview();
            let cookie = format!("{name}={}; Path={path}; HttpOnly; SameSite=Strict", self.session.text());
            return GuardAnswer::Enter { cookie, to: without_token(uri) };
        }
        if !self.has_session(headers) {
            return GuardAnswer::Reject(
                StatusCode::UNAUTHORIZED,
                "no session: open the address that the command printed",
            );
        }
        GuardAnswer::Pass
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut ours = pairs.filter(|(key, _)| *key == name);
        ours.any(|(_, value)| self.session.is(value))
    }
}

/// The value of a query parameter, as it is written.
fn parameter<'u>(uri: &'u Uri, name: &str) -> Option<&'u str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
}

/// The path and query without the token. Always on this server: a path that begins with two slashes would name another host.
fn without_token(uri: &Uri) -> String {
    let rest: Vec<_> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.starts_with("token=") && !pair.is_empty())
        .collect();
    let path = uri.path().trim_start_matches('/');
    if rest.is_empty() { format!("/{path}") } else { format!("/{path}?{}", rest.join("&")) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    fn status(verdict: &GuardAnswer) -> Option<u16> {
        match verdict {
            GuardAnswer::Reject(status, _) => Some(status.as_u16()),
            GuardAnswer::Pass | GuardAnswer::Enter { .. } => None,
        }
    }

    fn session(guard: &Guard) -> String {
        format!("{}={}", guard.cookie_name(), guard.session.text())
    }

    fn root(guard: &Guard) -> Uri {
        guard.links().overview().parse().unwrap()
    }

    /// A web page under another name that resolves to loopback sends its own name.
    #[test]
    fn other_hosts_are_rejected() {
        let guard = Guard::new(4000).unwrap();
        let cookie = session(&guard);
        for (host, wanted) in [
            ("127.0.0.1:4000", None),
            ("localhost:4000", None),
            ("127.0.0.1:4001", Some(403)),
            ("127.0.0.1", Some(403)),
            ("evil.example:4000", Some(403)),
            ("localhost.evil.example:4000", Some(403)),
            ("", Some(403)),
        ] {
            let headers = headers(&[("host", host), ("cookie", &cookie)]);
            let found = guard.judge(&Method::GET, &root(&guard), &headers);
            assert_eq!(status(&found), wanted, "{host}: {found:?}");
        }
        let none = guard.judge(&Method::GET, &root(&guard), &headers(&[("cookie", &cookie)]));
        assert_eq!(status(&none), Some(403), "no host");
        let mut two = headers(&[("host", "127.0.0.1:4000"), ("cookie", &cookie)]);
        two.append("host", HeaderValue::from_static("evil.example"));
        assert_eq!(status(&guard.judge(&Method::GET, &root(&guard), &two)), Some(403), "two hosts");
    }

    #[test]
    fn requests_of_other_pages_are_rejected() {
        let guard = Guard::new(4000).unwrap();
        let cookie = session(&guard);
        let own = "http://127.0.0.1:4000";
        for (method, pairs, wanted) in [
            (Method::POST, vec![("origin", own)], None),
            (Method::POST, vec![], Some(403)),
            (Method::POST, vec![("origin", "null")], Some(403)),
            (Method::POST, vec![("origin", "http://evil.example")], Some(403)),
            (Method::POST, vec![("origin", "http://127.0.0.1:4001")], Some(403)),
            (Method::POST, vec![("origin", "http://localhost:4000")], Some(403)),
            (Method::POST, vec![("origin", own), ("sec-fetch-site", "same-site")], Some(403)),
            (Method::GET, vec![("origin", "http://evil.example")], Some(403)),
            (Method::GET, vec![("sec-fetch-site", "cross-site")], Some(403)),
            (Method::GET, vec![("sec-fetch-site", "same-origin")], None),
            (Method::DELETE, vec![("origin", own)], Some(405)),
            (Method::OPTIONS, vec![("origin", own)], Some(405)),
        ] {
            let mut all = vec![("host", "127.0.0.1:4000"), ("cookie", cookie.as_str())];
            all.extend(pairs);
            let found = guard.judge(&method, &root(&guard), &headers(&all));
            assert_eq!(status(&found), wanted, "{method} {all:?}: {found:?}");
        }
    }

    #[test]
    fn session_needs_token_of_this_run() {
        let (guard, other) = (Guard::new(4000).unwrap(), Guard::new(4000).unwrap());
        let host = ("host", "127.0.0.1:4000");
        let ask = |uri: &str, cookie: &str| {
            let headers = headers(&[host, ("cookie", cookie)]);
            let uri = format!("{}{}", guard.links().overview(), uri.trim_start_matches('/'));
            guard.judge(&Method::GET, &uri.parse().unwrap(), &headers)
        };
        assert_eq!(status(&ask("/", "")), Some(401));
        assert_eq!(status(&ask("/", &session(&other))), Some(401));
        assert_eq!(status(&ask("/", &format!("confrev-4001={}", guard.session.text()))), Some(401));
        assert_eq!(status(&ask("/", &format!("{}={}", guard.cookie_name(), guard.token.text()))), Some(401));
        assert_eq!(ask("/", &format!("a=b; {}", session(&guard))), GuardAnswer::Pass);
        for wrong in [String::new(), other.token.text().to_owned(), guard.token.text()[1..].to_owned()] {
            assert_eq!(status(&ask(&format!("/?token={wrong}"), &session(&guard))), Some(401), "{wrong}");
        }
        let GuardAnswer::Enter { cookie, to } =
            ask(&format!("evil.example/?a=b&token={}", guard.token.text()), "")
        else {
            panic!("the token is right");
        };
        assert_eq!(
            to,
            format!("{}evil.example/?a=b", guard.links().overview()),
            "no other host, and no token"
        );
        assert!(cookie.starts_with("confrev-4000=") && !cookie.contains(guard.token.text()), "{cookie}");
        assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
    }

    /// RFC 6265, section 5.1.4: a cookie is sent to paths that begin with its own.
    fn is_sent(cookie: &str, path: &str) -> bool {
        let own = cookie.split("; ").find_map(|part| part.strip_prefix("Path=")).unwrap();
        path == own || (path.starts_with(own) && (own.ends_with('/') || path[own.len()..].starts_with('/')))
    }

    /// Cookies ignore ports: without a path of its own, every server on this machine that the browser visits would get it.
    #[test]
    fn cookie_reaches_paths_of_this_run_alone() {
        let (guard, other) = (Guard::new(4000).unwrap(), Guard::new(4000).unwrap());
        let headers_with = |cookie: &str| headers(&[("host", "127.0.0.1:4000"), ("cookie", cookie)]);
        let entered = format!("{}?token={}", guard.links().overview(), guard.token.text());
        let answer = guard.judge(&Method::GET, &entered.parse().unwrap(), &headers_with(""));
        let GuardAnswer::Enter { cookie, to } = answer else { panic!("the token is right: {answer:?}") };
        assert!(is_sent(&cookie, &to) && is_sent(&cookie, &format!("{to}assets/page.js")));
        for foreign in ["/", "/favicon.ico", "/sources/shop/configmap/demo", &other.links().overview()] {
            assert!(!is_sent(&cookie, foreign), "{foreign} {cookie}");
            // The server has nothing there either, for any client.
            for uri in [foreign.to_owned(), format!("{foreign}?token={}", guard.token.text())] {
                let found = guard.judge(&Method::GET, &uri.parse().unwrap(), &headers_with(&session(&guard)));
                assert_eq!(status(&found), Some(404), "{uri}: {found:?}");
            }
        }
    }

    #[test]
    fn secrets_are_random_and_not_printed() {
        let guard = Guard::new(1).unwrap();
        let all = [&guard.token, &guard.session, &guard.form];
        for (i, secret) in all.iter().enumerate() {
            assert_eq!(secret.text().len(), 2 * SECRET_BYTES);
            assert!(all.iter().skip(i + 1).all(|other| !other.is(secret.text())));
            assert!(!format!("{guard:?}").contains(secret.text()));
        }
        assert_eq!(guard.path.text().len(), 2 * PATH_BYTES);
        assert!(!format!("{guard:?} {:?}", guard.links()).contains(guard.path.text()));
        assert_ne!(guard.path.text(), Guard::new(1).unwrap().path.text());
    }
}
