//! What calls to the API server may use: a place among the concurrent calls, and the memory of answers, counted from their
//! first byte until they are parsed.

use std::{any::Any, fmt, ops::Deref, sync::Arc};

use futures::future::BoxFuture;

/// A place among the concurrent calls, until it is dropped.
pub type Call = Box<dyn Any + Send>;

/// The bytes from which a content is large.
pub(super) const LARGE: usize = 128 << 10;

/// Grants places and memory to calls. The size of an answer is unknown before it has arrived: the API server escapes characters,
/// so an object of 1 MiB may be 6 MiB of JSON.
pub trait Meter: fmt::Debug + Send + Sync {
    /// Waits until a call may begin. `None` if it may not begin in time.
    fn begin(&self) -> BoxFuture<'_, Option<Call>>;
    /// Takes that many more bytes. Returns false and takes nothing if they exceed the limit.
    fn take(&self, bytes: usize) -> bool;
    /// Returns that many bytes.
    fn give_back(&self, bytes: usize);
    /// Waits until the caller may have a large content in memory: that of a ConfigMap or Secret of more than 128 KiB.
    fn large_content(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The memory of one answer, returned when dropped.
#[derive(Debug)]
pub(super) struct MeteredBytes {
    meter: Option<Arc<dyn Meter>>,
    bytes: usize,
}

impl MeteredBytes {
    /// No memory yet. Without a meter, there is no limit.
    pub(super) fn new(meter: Option<&Arc<dyn Meter>>) -> Self {
        Self { meter: meter.cloned(), bytes: 0 }
    }

    /// Takes that many more bytes. Returns false and takes nothing if they exceed the limit.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        if self.meter.as_ref().is_some_and(|meter| !meter.take(bytes)) {
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl MeteredBytes {
    /// Waits until the caller may have a large content in memory.
    pub(super) async fn large_content(&self) {
        if let Some(meter) = &self.meter {
            meter.large_content().await;
        }
    }
}

impl Drop for MeteredBytes {
    fn drop(&mut self) {
        if let Some(meter) = &self.meter {
            meter.give_back(self.bytes);
        }
    }
}

/// The body of an answer. Its memory is counted until it is dropped.
#[derive(Debug)]
pub(super) struct ResponseBody {
    bytes: Vec<u8>,
    metered: MeteredBytes,
}

impl ResponseBody {
    pub(super) fn new(bytes: Vec<u8>, metered: MeteredBytes) -> Self {
        Self { bytes, metered }
    }

    /// The bytes, and their memory.
    pub(super) fn into_parts(self) -> (Vec<u8>, MeteredBytes) {
        (self.bytes, self.metered)
    }
}

impl Deref for ResponseBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
