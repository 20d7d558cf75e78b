//! Starts the log: lines of text or JSON on standard error.
use std::io::Write;

use tracing::Dispatch;
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use super::Traces;
use crate::text;

/// The environment variable that holds the log filter, in the syntax of `tracing_subscriber::filter::Targets`.
pub const FILTER_VARIABLE: &str = "CONFREV_LOG";

/// The log levels of libraries; spans are not logged. They come first in the filter, so that the user's settings win.
const LIBRARIES: &str =
    "kube=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,opentelemetry=warn,confrev::spans=off";

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Plain text.
    Text,
}

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `CONFREV_LOG` is not a filter.
    #[error("invalid log filter {FILTER_VARIABLE}={value:?}: give a level (\"debug\") or TARGET=LEVEL,…")]
    Filter {
        /// The value of the variable.
        value: String,
        /// The parser's error.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log was already started in this process.
    #[error("the log was started twice")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Starts the log for the whole process, at the level in `CONFREV_LOG` (default: info, libraries at warn), and the
/// traces if they are wanted. Call it once, before anything else.
pub fn init(format: LogFormat, traces: Option<&Traces>) -> Result<(), LogError> {
    let asked = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    subscriber(&asked, format, traces)?.try_init().map_err(|error| LogError::Twice(error.into()))
}

fn subscriber(asked: &str, format: LogFormat, traces: Option<&Traces>) -> Result<Dispatch, LogError> {
    // Colours are escapes, and no line has any.
    let lines =
        tracing_subscriber::fmt::layer().with_writer(|| SafeLines(std::io::stderr())).with_ansi(false);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => lines.boxed(),
    };
    let lines = tracing_subscriber::registry().with(lines.with_filter(filter(asked)?));
    // A layer that is `None` would still make every span, without any use.
    Ok(match traces {
        Some(traces) => lines.with(traces.layer()).into(),
        None => lines.into(),
    })
}

/// Writes lines of the log, each in one call. A line names objects and repeats messages of others, which must not end it, and must not
/// act on a terminal. In JSON, the escapes are those of its strings.
struct SafeLines<W>(W);

impl<W: Write> Write for SafeLines<W> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let whole = String::from_utf8_lossy(line);
        let safe = text::line(whole.strip_suffix('\n').unwrap_or(&whole));
        self.0.write_all(format!("{safe}\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn filter(asked: &str) -> Result<Targets, LogError> {
    let asked = if asked.trim().is_empty() { "info" } else { asked };
    format!("{LIBRARIES},{asked}")
        .parse::<Targets>()
        .map_err(|source| LogError::Filter { value: asked.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spans_exist_without_tracing() {
        let lines = subscriber("", LogFormat::Text, None).unwrap();
        tracing::dispatcher::with_default(&lines, || {
            assert!(!tracing::info_span!("another").is_disabled(), "other spans are enabled");
            assert!(crate::telemetry::traces::admission("/mutate/workloads", None).is_disabled());
            assert!(crate::telemetry::traces::call("get", "/api").is_disabled());
        });
    }

    /// Each call of the log is one line, whatever the text of others in it.
    #[test]
    fn lines_cannot_be_forged() {
        let mut lines = SafeLines(Vec::new());
        lines.write_all(b"rolled \x1b[2J\nINFO forged\n").unwrap();
        lines.write_all("{\"message\":\"\u{202e}\u{9b}\"}\n".as_bytes()).unwrap();
        let written = String::from_utf8(lines.0).unwrap();
        assert_eq!(written, "rolled \\u001b[2J\\nINFO forged\n{\"message\":\"\\u202e\\u009b\"}\n");
    }

    /// The default for libraries is `warn`.
    #[test]
    fn log_level_defaults_to_info_for_confrev_only() {
        let filter = filter("").unwrap().to_string();
        assert!(filter.contains("info"), "{filter}");
        assert!(filter.contains("kube=warn"), "{filter}");
    }

    #[test]
    fn user_filter_overrides_default_of_a_library() {
        let filter = filter("kube=debug").unwrap().to_string();
        assert!(filter.contains("kube=debug"), "{filter}");
        assert!(!filter.contains("kube=warn"), "{filter}");
    }

    #[test]
    fn rejects_invalid_log_filter() {
        let error = filter("confrev=loudly").unwrap_err().to_string();
        assert!(error.contains("CONFREV_LOG"), "{error}");
    }
}
