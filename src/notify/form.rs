//! The body of a notification: a CloudEvent, or a message for Slack.

use clap::ValueEnum;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::cluster::{Event, ObjectRef};

/// The prefix of the types of CloudEvents.
const TYPE: &str = "dev.confrev.";

/// The form of notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NotifyFormat {
    /// CloudEvents 1.0, in the structured mode (JSON).
    #[default]
    Cloudevents,
    /// Text for an incoming webhook of Slack, and of others that accept its form.
    Slack,
}

/// The id of an Event's notification: equal for every attempt, and for every replica that wrote the Event.
pub(super) fn id(event: &Event) -> String {
    let hash: [u8; 32] = Sha256::digest(format!("{}/{}", event.namespace, event.name())).into();
    hash[..16].iter().fold("evt_".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

impl NotifyFormat {
    /// The content type and the body.
    pub(super) fn body(self, event: &Event, id: &str, source: &str) -> (&'static str, Vec<u8>) {
        let reason = event.reason.text();
        let reference = |object: &ObjectRef| {
            json!({"apiVersion": object.api_version, "kind": object.kind, "namespace": *event.namespace,
                "name": object.name, "uid": object.uid})
        };
        let subject = format!("{}/{}/{}", event.namespace, event.regarding.kind, event.regarding.name);
        let (content_type, body) = match self {
            Self::Cloudevents => (
                "application/cloudevents+json; charset=utf-8",
                json!({
                    "specversion": "1.0",
                    "id": id,
                    "source": source,
                    "type": format!("{TYPE}{reason}"),
                    "subject": subject,
                    "time": format!("{:.6}", event.at),
                    "datacontenttype": "application/json",
                    "data": {
                        "reason": reason,
                        "type": if event.reason.is_warning() { "Warning" } else { "Normal" },
                        "namespace": *event.namespace,
                        "regarding": reference(&event.regarding),
                        "related": event.related.as_ref().map(reference),
                        "message": event.safe_note(),
                    },
                }),
            ),
            Self::Slack => {
                let sign = if event.reason.is_warning() { ":warning: " } else { "" };
                let text = format!("{sign}*{reason}* {}: {}", escaped(&subject), escaped(&event.safe_note()));
                ("application/json", json!({"text": text}))
            }
        };
        (content_type, body.to_string().into_bytes())
    }
}

/// Escapes the characters that begin links, mentions and entities. Source: Slack, "Formatting text for app surfaces".
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::Value;

    use super::*;
    use crate::telemetry::metrics::Reason;

    fn event(reason: Reason, note: &str) -> Event {
        let regarding = ObjectRef {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let (note, same) = (note.to_owned(), note.to_owned());
        let at = Timestamp::from_second(600).unwrap();
        Event { namespace: "shop".into(), regarding, related: None, reason, note, same, at }
    }

    fn body(format: NotifyFormat, event: &Event) -> Value {
        serde_json::from_slice(&format.body(event, &id(event), "confrev").1).unwrap()
    }

    #[test]
    fn cloud_event_has_required_attributes() {
        let event = event(Reason::RollHeld, "held");
        let sent = body(NotifyFormat::Cloudevents, &event);
        for (attribute, value) in [
            ("specversion", "1.0"),
            ("type", "dev.confrev.RollHeld"),
            ("source", "confrev"),
            ("subject", "shop/Deployment/web"),
            ("time", "1970-01-01T00:10:00.000000Z"),
        ] {
            assert_eq!(sent[attribute], value);
        }
        assert_eq!(sent["data"]["message"], "held");
        assert_eq!(sent["id"], id(&event), "equal for every attempt");
    }

    #[test]
    fn slack_text_mentions_no_users() {
        let sent = body(NotifyFormat::Slack, &event(Reason::RollRefused, "<!channel> & <https://x|y>"));
        let text = sent["text"].as_str().unwrap();
        assert_eq!(
            text,
            ":warning: *RollRefused* shop/Deployment/web: &lt;!channel&gt; &amp; &lt;https://x|y&gt;"
        );
    }
}
