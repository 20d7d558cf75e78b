//! The answers of watches on their way through the proxy, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use crate::proxy::{Body, Failure, Shared, Trouble, gone, status_object};

/// How often a watch that tells nothing new says how far it is.
const BOOKMARKS: Duration = Duration::from_secs(1);

/// A watch's answer, until trouble ends it. It was asked for from a version on, or from the beginning.
pub(crate) fn watched(shared: Arc<Shared>, body: Incoming, version: Option<String>) -> Body {
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
    shared: Arc<Shared>,
    body: BodyStream<Incoming>,
    trouble: Receiver<Trouble>,
    told: Told,
    /// Whether it tells bookmarks only, while that is the trouble.
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
                // What the API server tells meanwhile waits, and comes when it is over.
                let over = tokio::time::timeout(BOOKMARKS, self.trouble.changed()).await;
                match self.told.bookmark().filter(|_| over.is_err()) {
                    Some(bookmark) => return Some(Ok(Frame::data(bookmark))),
                    None => continue,
                }
            }
            // It ends at once where it began before the trouble, else after a while.
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

    /// A part of the answer under the present trouble.
    async fn changed(&mut self, frame: Result<Frame<Bytes>, Failure>) -> Result<Frame<Bytes>, Failure> {
        let Ok(data) = frame?.into_data() else { return Ok(Frame::data(Bytes::new())) };
        let trouble = *self.trouble.borrow();
        match trouble {
            Trouble::Slow(most) => {
                tokio::time::sleep(Duration::from_millis(self.shared.below(most))).await;
            }
            Trouble::Resets(often) | Trouble::Cuts(often) if self.shared.strikes("cut watch", often) => {
                return Err(gone("cut watch"));
            }
            _ => {}
        }
        Ok(Frame::data(self.told.lines(&data)))
    }
}

impl Shared {
    /// Waits until trouble ends a watch; answers with what it says last.
    async fn until_it_ends(&self, mut trouble: Receiver<Trouble>) -> Option<Bytes> {
        let ends = |trouble: &Trouble| matches!(trouble, Trouble::WatchesClosed | Trouble::WatchesExpired);
        let kind = trouble.wait_for(ends).await.map(|kind| *kind).ok()?;
        tokio::time::sleep(Duration::from_millis(self.below(3000))).await;
        self.strikes("watch ended", 100);
        let event = json!({"type": "ERROR", "object": status_object(410)});
        (kind == Trouble::WatchesExpired).then(|| Bytes::from(format!("{event}\n")))
    }
}

/// What a watch has told: how far it is, and the beginning of a line that has not ended yet.
#[derive(Default)]
struct Told {
    version: Option<String>,
    rest: Vec<u8>,
}

impl Told {
    /// The lines that are whole with this: a bookmark may come between lines only.
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

    /// Where nothing was told yet there is nothing to say.
    fn bookmark(&self) -> Option<Bytes> {
        let version = self.version.as_ref()?;
        let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": {"resourceVersion": version}});
        let event = json!({"type": "BOOKMARK", "object": object});
        Some(Bytes::from(format!("{event}\n")))
    }
}
