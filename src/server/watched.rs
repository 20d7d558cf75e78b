//! A stream that records when a request's head begins and ends, to distinguish a slow head from an idle connection.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::Connection;

/// The length of the preface that an HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// The length of a frame's header.
const FRAME_HEAD: usize = 9;
/// Types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The flag of the last frame of a header block.
const END_HEADERS: u8 = 4;

/// The stream of a connection.
pub(super) struct Watched<S> {
    stream: S,
    connection: Arc<Connection>,
    /// The frames of HTTP/2; `None` for HTTP/1.1.
    frames: Option<Frames>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>, is_http2: bool) -> Self {
        Self { stream, connection, frames: is_http2.then(Frames::default) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(context, buffer);
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        if !bytes.is_empty() {
            match &mut this.frames {
                // While a request is in progress, the bytes are its body.
                None => this.connection.received(|is_busy| !is_busy),
                Some(frames) => {
                    frames.read(bytes);
                    this.connection.received(|_| frames.is_head_open());
                }
            }
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The position in a stream of HTTP/2 frames.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the preface that have arrived.
    preface: usize,
    /// The header of the present frame, as far as it has arrived.
    head: [u8; FRAME_HEAD],
    come: usize,
    /// Bytes of the present frame's payload that have not arrived.
    left: usize,
    /// Whether a header block has begun and its last frame has not.
    is_block_open: bool,
}

impl Frames {
    /// Advances over these bytes.
    fn read(&mut self, mut bytes: &[u8]) {
        let preface = bytes.len().min(PREFACE - self.preface);
        self.preface += preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.come < FRAME_HEAD {
                let count = bytes.len().min(FRAME_HEAD - self.come);
                self.head[self.come..self.come + count].copy_from_slice(&bytes[..count]);
                self.come += count;
                bytes = &bytes[count..];
                if self.come == FRAME_HEAD {
                    let [a, b, c, kind, flags, ..] = self.head;
                    self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                    if matches!(kind, HEADERS | CONTINUATION) {
                        self.is_block_open = flags & END_HEADERS == 0;
                    }
                }
            }
            let count = bytes.len().min(self.left);
            self.left -= count;
            bytes = &bytes[count..];
            if self.come == FRAME_HEAD && self.left == 0 {
                self.come = 0;
            }
        }
    }

    /// Whether the preface, a header block, or any frame but DATA has begun and not ended.
    fn is_head_open(&self) -> bool {
        let is_frame_open = self.come > 0 && !(self.come == FRAME_HEAD && self.head[3] == DATA);
        self.preface < PREFACE || self.is_block_open || is_frame_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], vec![0; length.into()].as_slice()].concat()
    }

    #[test]
    fn open_heads_are_seen_at_every_byte() {
        let preface = vec![b'P'; PREFACE];
        // The bytes of a step, and whether a head is open before the last byte and after it.
        for (what, bytes, within, after) in [
            ("preface", preface.clone(), true, false),
            ("settings", frame(4, 0, 6), true, false),
            ("empty settings", frame(4, 1, 0), true, false),
            ("headers", frame(HEADERS, END_HEADERS, 20), true, false),
            ("headers that continue", frame(HEADERS, 0, 20), true, true),
        ] {
            let mut frames = Frames::default();
            if what != "preface" {
                frames.read(&preface);
            }
            for (index, byte) in bytes.iter().enumerate() {
                frames.read(&[*byte]);
                let wanted = if index + 1 == bytes.len() { after } else { within };
                assert_eq!(frames.is_head_open(), wanted, "{what}, byte {index}");
            }
        }
    }

    #[test]
    fn data_leaves_no_head_open() {
        let mut frames = Frames::default();
        let sent =
            [vec![0; PREFACE], frame(HEADERS, 0, 5), frame(CONTINUATION, END_HEADERS, 5), frame(DATA, 0, 9)];
        let sent = sent.concat();
        frames.read(&sent[..sent.len() - 4]);
        assert!(!frames.is_head_open());
        frames.read(&sent[sent.len() - 4..]);
        frames.read(&[0]);
        assert!(frames.is_head_open(), "the next frame has begun");
    }
}
