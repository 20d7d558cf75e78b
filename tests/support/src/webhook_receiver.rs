//! A receiver of notifications for the tests. It answers by a script, and keeps every post.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// An answer to one post.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// This status, at once.
    Status(u16),
    /// The connection is closed without an answer.
    Closed,
    /// 204 after this time.
    After(Duration),
}

/// A post.
#[derive(Clone, Debug)]
pub struct Post {
    /// The headers, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

/// A receiver on loopback.
pub struct Receiver {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The next answers. If there are none, every post is accepted.
    script: Vec<Reply>,
    posts: Vec<Post>,
}

impl Receiver {
    /// Listens on a free port, and answers the first posts by the script, in order.
    pub fn start(script: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("the listener has an address");
        let state = Arc::new(Mutex::new(State { script: script.to_vec(), posts: Vec::new() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || take(&stream, &shared));
            }
        });
        Self { address, state }
    }

    /// The address to post to.
    pub fn url(&self) -> String {
        format!("http://{}/hook?token=secret", self.address)
    }

    /// The posts so far.
    pub fn posts(&self) -> Vec<Post> {
        self.state().posts.clone()
    }

    /// Answers the next posts by another script.
    pub fn answers(&self, script: &[Reply]) {
        self.state().script = script.to_vec();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one post, and answers it.
fn take(mut stream: &TcpStream, shared: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    if !line.starts_with("POST /hook?token=secret ") {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok()?;
        return None;
    }
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let reply = {
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.posts.push(Post { headers, body });
        if state.script.is_empty() { Reply::Status(204) } else { state.script.remove(0) }
    };
    let status = match reply {
        Reply::Closed => return None,
        Reply::Status(status) => status,
        Reply::After(time) => {
            thread::sleep(time);
            204
        }
    };
    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).ok()
}

impl Post {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }

    /// A header; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Whether the post has the signature of this key (`whsec_…`), computed independently of confrev.
    pub fn is_signed_by(&self, key: &str) -> bool {
        let key = BASE64_STANDARD.decode(key.strip_prefix("whsec_").expect("a key")).expect("base64");
        let start = format!("{}.{}.", self.header("webhook-id"), self.header("webhook-timestamp"));
        let signed = [start.as_bytes(), &self.body].concat();
        let expected = format!("v1,{}", BASE64_STANDARD.encode(hmac_sha256(&key, &signed)));
        self.header("webhook-signature").split(' ').any(|signature| signature == expected)
    }
}

/// HMAC as RFC 2104 defines it, for keys of at most 64 bytes.
fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let pad =
        |byte: u8| -> Vec<u8> { (0..64).map(|i| key.get(i).copied().unwrap_or_default() ^ byte).collect() };
    let inner = Sha256::digest([pad(0x36).as_slice(), message].concat());
    Sha256::digest([pad(0x5c).as_slice(), &inner].concat()).to_vec()
}
