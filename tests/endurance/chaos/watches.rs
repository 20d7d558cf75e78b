//! The faults of watch responses on their way through the proxy.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use crate::proxy::{Body, Failure, ProxyState, Trouble, gone, status_object};

/// How often a silent watch sends a bookmark.
const BOOKMARKS: Duration = Duration::from_secs(1);

/// Forwards the response of a watch until a fault ends it. `version`: the version that the watch began from, if any.
pub(crate) fn watched(shared: Arc<ProxyState>, body: Incoming, version: Option<String>) -> Body {
    let trouble = shared.trouble.subscribe();
    let told = Told { version, ..Told::default() };
    let watch = Watch { shared, body: BodyStream::new(body), trouble, told, silent: None, ended: false };
    let frames = futures::stream::unfold(watch, async |mut watch| {
        let frame = watch.next().await?;
        Some((frame, watch))
    });
    StreamBody::new(frames).boxed_unsync()
}

struct Watch {
    shared: Arc<ProxyState>,
    body: BodyStream<Incoming>,
    trouble: Receiver<Trouble>,
    told: Told,
    /// Whether this watch sends only bookmarks during that fault.
    silent: Option<bool>,
    ended: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, Failure>> {
        while !self.ended {
            let trouble = *self.trouble.borrow_and_update();
            let silent = (trouble == Trouble::WatchesWithBookmarksOnly)
                .then(|| self.silent.unwrap_or_else(|| self.shared.strikes("silent watch", 60)));
            self.silent = silent;
            if silent == Some(true) {
                // Events of the API server wait until the fault is over.
                let over = tokio::time::timeout(BOOKMARKS, self.trouble.changed()).await;
                match self.told.bookmark().filter(|_| over.is_err()) {
                    Some(bookmark) => return Some(Ok(Frame::data(bookmark))),
                    None => continue,
                }
            }
            // The fault ends the watch after up to 3 s without an event.
            let until_it_ends = self.shared.until_it_ends(self.trouble.clone());
            tokio::select! {
                frame = self.body.next() => match frame {
                    None => {
                        self.ended = true;
                        let rest = std::mem::take(&mut self.told.rest);
                        return (!rest.is_empty()).then(|| Ok(Frame::data(rest.into())));
                    }
                    Some(frame) => {
                        let frame = self.changed(frame.map_err(Into::into)).await;
                        self.ended = frame.is_err();
                        return Some(frame);
                    }
                },
                last = until_it_ends => {
                    self.ended = true;
                    return last.map(|last| Ok(Frame::data(last)));
                }
                _ = self.trouble.changed() => {}
            }
        }
        None
    }

    /// Forwards a part of the response under the present fault.
    async fn changed(&mut self, frame: Result<Frame<Bytes>, Failure>) -> Result<Frame<Bytes>, Failure> {
        let Ok(data) = frame?.into_data() else { return Ok(Frame::data(Bytes::new())) };
        let trouble = *self.trouble.borrow();
        match trouble {
            Trouble::Slow(limit) => {
                tokio::time::sleep(Duration::from_millis(self.shared.below(limit))).await;
            }
            Trouble::Resets(often) | Trouble::Cuts(often) if self.shared.strikes("cut watch", often) => {
                return Err(gone("cut watch"));
            }
            Trouble::None
            | Trouble::Resets(_)
            | Trouble::Cuts(_)
            | Trouble::WatchesClosed
            | Trouble::WatchesExpired
            | Trouble::WatchesWithBookmarksOnly
            // Only the answer to a request has a status code.
            | Trouble::Answers(..) => {}
        }
        Ok(Frame::data(self.told.lines(&data)))
    }
}

impl ProxyState {
    /// Waits until a fault ends a watch; returns the last bytes of the response.
    async fn until_it_ends(&self, mut trouble: Receiver<Trouble>) -> Option<Bytes> {
        let ends = |trouble: &Trouble| matches!(trouble, Trouble::WatchesClosed | Trouble::WatchesExpired);
        let kind = trouble.wait_for(ends).await.map(|kind| *kind).ok()?;
        tokio::time::sleep(Duration::from_millis(self.below(3000))).await;
        self.strikes("watch ended", 100);
        let event = json!({"type": "ERROR", "object": status_object(410)});
        (kind == Trouble::WatchesExpired).then(|| Bytes::from(format!("{event}\n")))
    }
}

/// The state of a response: the last version sent, and the beginning of an incomplete line.
#[derive(Default)]
struct Told {
    version: Option<String>,
    rest: Vec<u8>,
}

impl Told {
    /// The lines that this data completes: bookmarks are sent only between lines.
    fn lines(&mut self, data: &[u8]) -> Bytes {
        self.rest.extend_from_slice(data);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Bytes = self.rest.drain(..end).collect::<Vec<_>>().into();
        let last = lines.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
        let event: Option<Value> = last.and_then(|line| serde_json::from_slice(line).ok());
        let version = event
            .and_then(|event| event["object"]["metadata"]["resourceVersion"].as_str().map(str::to_owned));
        self.version = version.or(self.version.take());
        lines
    }

    /// Without a version there is no bookmark.
    fn bookmark(&self) -> Option<Bytes> {
        let version = self.version.as_ref()?;
        let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": {"resourceVersion": version}});
        let event = json!({"type": "BOOKMARK", "object": object});
        Some(Bytes::from(format!("{event}\n")))
    }
}
