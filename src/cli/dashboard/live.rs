//! Updates of open pages: one stream of server-sent events for each page.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream};
use http::header;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use super::{layout, model::Model, overview};

/// How often a stream without changes sends a comment, which shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The events of a reader. With `rows`, each has the changed rows as HTML; otherwise only the namespace.
pub(super) fn stream(model: Arc<Model>, rows: bool) -> Response {
    let updates = model.subscribe();
    // The reader compares this with the version of its page: changes may lie between both.
    let hello = format!("retry: 1000\nevent: hello\ndata: {}\n\n", json!({"version": model.version()}));
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from(hello))]);
    let changes = stream::unfold((updates, model), move |(mut updates, model)| async move {
        let text = match tokio::time::timeout(KEEP_ALIVE, updates.recv()).await {
            Err(_) => ": alive\n\n".to_owned(),
            Ok(Err(RecvError::Closed)) => return None,
            // The reader was too slow: its page is loaded again.
            Ok(Err(RecvError::Lagged(_))) => "event: reload\ndata: {}\n\n".to_owned(),
            Ok(Ok(update)) => {
                let mut data = json!({"version": update.version, "namespace": update.namespace});
                if rows {
                    data["rows"] = update.rows.iter().map(|(id, row)| json!([id, row])).collect();
                    let views = model.views();
                    let all = views.values().flat_map(|view| view.rows.values());
                    data["counts"] = layout::to_text(overview::counts(all)).into();
                    data["section"] = super::digest_id::of(&format!("namespace {}", update.namespace)).into();
                }
                format!("event: change\ndata: {data}\n\n")
            }
        };
        Some((Ok(Bytes::from(text)), (updates, model)))
    });
    let body = Body::from_stream(first.chain(changes));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}
