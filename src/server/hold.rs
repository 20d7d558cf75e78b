//! A body that keeps a value until it is sent.
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// A body, and the value that is dropped with it.
struct HoldingBody<T> {
    body: Body,
    _held: T,
}

/// Makes the body keep `held` until it is sent or dropped.
pub(crate) fn hold<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Body::new(HoldingBody { body, _held: held })
}

impl<T: Unpin> HttpBody for HoldingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
