//! A body that keeps a value until it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};

/// A body, and the value that is dropped with it.
struct KeepingBody<B, T> {
    body: B,
    _value: T,
}

/// Makes the body keep `value` until the body is sent or dropped.
pub(crate) fn keep_until_sent<B, T>(body: B, value: T) -> Body
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
    T: Send + Unpin + 'static,
{
    Body::new(KeepingBody { body, _value: value })
}

impl<B: HttpBody<Data = Bytes> + Unpin, T: Unpin> HttpBody for KeepingBody<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
