//! The connection to the API server, without Nagle's algorithm.
//!
//! kube's own connector leaves Nagle's algorithm on (kube-rs/kube#2056). A request then waits for the acknowledgement
//! of the previous request, and an idle receiver delays that acknowledgement by 40 ms. A decision makes several small
//! requests in sequence, so these delays made up most of its time.

use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

/// A client for this configuration. It sends each request at once.
///
/// The stack of [`Client::try_from`] without its log lines, over a connector with `TCP_NODELAY`.
///
/// # Errors
/// The errors of [`Client::try_from`]: unreadable credentials, a malformed certificate, or a proxy, for which kube
/// needs features that confrev does not link.
pub fn connect(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let retries = config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retries)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// The connector below TLS.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::tcp;

    #[tokio::test]
    async fn connections_send_small_requests_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let stream = tcp().oneshot(uri).await.unwrap();
        assert!(stream.inner().nodelay().unwrap(), "Nagle's algorithm is on");
    }
}
