//! The options of `serve` for notifications.

use std::{convert::Infallible, path::PathBuf};

use clap::Args;

use crate::notify::{
    ClientError, KeyFormatError, KeySource, KeySourceError, NotifyFormat, NotifyKey, NotifyOptions,
    NotifyUrl, NotifyUrlError,
};

/// A URL or a key, or why the value is neither. The parser of the command line would print the wrong value, which may be a secret.
type UrlFlag = Result<NotifyUrl, NotifyUrlError>;
type KeyFlag = Result<NotifyKey, KeyFormatError>;

/// Options for notifications.
#[derive(Debug, Args)]
pub(super) struct NotifyFlags {
    /// Post important Events to this URL. The log never shows the URL.
    #[arg(long, env = "CONFREV_NOTIFY", value_name = "URL", hide_env_values = true, value_parser = url)]
    notify: Option<UrlFlag>,
    /// The form of the posts: CloudEvents 1.0, or the text of Slack's incoming webhooks.
    #[arg(
        long,
        env = "CONFREV_NOTIFY_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        requires = "notify"
    )]
    notify_format: NotifyFormat,
    /// The key that signs the posts by Standard Webhooks: the base64 of 24 to 64 bytes, with or without whsec_ before it.
    #[arg(long, env = "CONFREV_NOTIFY_KEY", value_name = "KEY", hide_env_values = true, requires = "notify",
          value_parser = key)]
    notify_key: Option<KeyFlag>,
    /// A file with that key; read again for each post. While the key is rotated, the file has a line for each key.
    #[arg(
        long,
        env = "CONFREV_NOTIFY_KEY_FILE",
        value_name = "FILE",
        requires = "notify",
        conflicts_with = "notify_key"
    )]
    notify_key_file: Option<PathBuf>,
    /// The CA certificates of an https receiver (PEM). Default: those of the system.
    #[arg(long, env = "CONFREV_NOTIFY_CA", value_name = "FILE", requires = "notify")]
    notify_ca: Option<PathBuf>,
    /// The source of CloudEvents, such as the name of the cluster.
    #[arg(long, env = "CONFREV_NOTIFY_SOURCE", value_name = "NAME", default_value = "confrev", requires = "notify",
          value_parser = source)]
    notify_source: String,
}

/// Why notifications cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotifyError {
    /// There is no usable key.
    #[error(transparent)]
    Key(#[from] KeySourceError),
    /// There is no usable client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a value parser")]
fn url(text: &str) -> Result<UrlFlag, Infallible> {
    Ok(text.parse())
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a value parser")]
fn key(text: &str) -> Result<KeyFlag, Infallible> {
    Ok(text.parse())
}

/// A reference to a URI is never empty, and has no spaces.
fn source(text: &str) -> Result<String, &'static str> {
    let is_part = |c: char| c.is_ascii_graphic() && !"<>\"{}|\\^`".contains(c);
    if !text.is_empty() && text.chars().all(is_part) {
        Ok(text.to_owned())
    } else {
        Err("use a name or a URI without spaces")
    }
}

impl NotifyFlags {
    /// Why an option is invalid.
    pub(super) fn wrong(&self) -> Option<String> {
        let url =
            self.notify.as_ref().and_then(|url| url.as_ref().err()).map(|error| format!("--notify: {error}"));
        let key = self.notify_key.as_ref().and_then(|key| key.as_ref().err());
        url.or_else(|| key.map(|error| format!("--notify-key: {error}")))
    }

    /// What the options ask for; `None` if there are no notifications.
    pub(super) async fn in_force(&self) -> Result<Option<NotifyOptions>, NotifyError> {
        let Some(Ok(url)) = self.notify.clone() else { return Ok(None) };
        let given = self.notify_key.clone().and_then(Result::ok).map(KeySource::Given);
        let key = given.or_else(|| self.notify_key_file.clone().map(KeySource::File));
        match &key {
            Some(key) => drop(key.keys().await?),
            None if self.notify_format == NotifyFormat::Cloudevents => tracing::warn!(
                "notifications are not signed: the receiver cannot tell them from others; give --notify-key-file"
            ),
            None => {}
        }
        let (format, ca, source) = (self.notify_format, self.notify_ca.clone(), self.notify_source.clone());
        Ok(Some(NotifyOptions { url, format, key, ca, source }))
    }
}
