//! A body that keeps a value until it is sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};

/// The most bytes that hyper takes at once. It holds them until the client reads them, and asks for more only then.
const FRAME: usize = 8 << 10;

/// A body, and the value that is dropped with it. hyper drops a body once it has taken the last frame, whether or not the client reads
/// it: so a large body is handed out in small frames, and ends only after the last of them is on its way.
struct KeepingBody<B, T> {
    body: B,
    /// What remains of a large frame.
    rest: Bytes,
    /// The body is larger than a frame, and has not ended.
    is_large: bool,
    _value: T,
}

/// Makes the body keep `value` until the body is sent, but for the last 8 KiB, or dropped.
pub(crate) fn keep_until_sent<B, T>(body: B, value: T) -> Body
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
    T: Send + Unpin + 'static,
{
    Body::new(KeepingBody { body, rest: Bytes::new(), is_large: false, _value: value })
}

impl<B: HttpBody<Data = Bytes> + Unpin, T: Unpin> HttpBody for KeepingBody<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let is_long = |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|data| data.len() > FRAME);
            match frame {
                Some(Ok(frame)) if is_long(&frame) => {
                    self.is_large = true;
                    self.rest = frame.into_data().unwrap_or_default();
                }
                other => {
                    self.is_large &= other.is_some();
                    return Poll::Ready(other);
                }
            }
        }
        let length = self.rest.len().min(FRAME);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        !self.is_large && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use axum::response::Response;
    use http_body_util::{BodyExt as _, Full};
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The sizes of the frames of a body, and whether it keeps its value after each.
    async fn frames(size: usize) -> Vec<(usize, bool)> {
        let kept = Arc::new(());
        let body = Full::<Bytes>::from(vec![7; size]);
        let mut body = Some(keep_until_sent(body, Arc::clone(&kept)));
        let mut frames = Vec::new();
        while let Some(sent) = &mut body {
            assert_eq!(
                sent.size_hint().exact(),
                Some((size - frames.iter().map(|(n, _)| n).sum::<usize>()) as u64)
            );
            let frame = sent.frame().await;
            // As hyper does.
            if frame.is_none() || sent.is_end_stream() {
                body = None;
            }
            if let Some(frame) = frame {
                frames.push((frame.unwrap().into_data().unwrap().len(), Arc::strong_count(&kept) == 2));
            }
        }
        assert_eq!(Arc::strong_count(&kept), 1);
        frames
    }

    #[tokio::test]
    async fn large_body_keeps_its_value_after_each_frame() {
        assert_eq!(frames(FRAME).await, [(FRAME, false)]);
        assert_eq!(frames(FRAME + 1).await, [(FRAME, true), (1, true)]);
        assert_eq!(frames(2 * FRAME).await, [(FRAME, true), (FRAME, true)]);
        let empty = keep_until_sent(Full::<Bytes>::default(), ());
        assert!(empty.is_end_stream());
    }

    /// hyper would otherwise hold a whole answer whose value is dropped already, for as long as the client does not read it.
    #[tokio::test]
    async fn unread_answer_keeps_its_value() {
        let (mut client, server) = tokio::io::duplex(1024);
        let kept = Arc::new(());
        let value = Arc::clone(&kept);
        let service = service_fn(move |_| {
            let body = keep_until_sent(Full::<Bytes>::from(vec![7; 1 << 20]), Arc::clone(&value));
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let serving = tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        client.read_exact(&mut [0; 64]).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // The test's own, that of the service, and that of the answer.
        assert_eq!(Arc::strong_count(&kept), 3);
        let mut rest = vec![0; 1 << 20];
        client.read_exact(&mut rest).await.unwrap();
        drop(client);
        let _ = serving.await;
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[tokio::test]
    async fn bodies_within_bodies_end_together() {
        let inner = keep_until_sent(Full::<Bytes>::from(vec![7; 3 * FRAME]), ());
        let mut outer = keep_until_sent(inner, ());
        let mut bytes = 0;
        while let Some(frame) = outer.frame().await {
            assert!(!outer.is_end_stream());
            bytes += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(bytes, 3 * FRAME);
        assert!(outer.is_end_stream());
    }
}
