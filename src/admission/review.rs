//! `AdmissionReview` v1 on the wire: the request is borrowed from the body, and the answer is built by hand.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    json::{self, Str},
    snapshot::{is_namespace_name, is_object_name},
    telemetry::metrics,
    text,
};

/// The only version that exists.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The most warnings in an answer: more do not help. The rest is counted.
const MAX_WARNINGS: usize = 5;
/// The API server cuts longer warnings off (`maxLengthWarnings` in its webhook code is 256 characters).
const MAX_WARNING_LENGTH: usize = 256;
/// The longest message of an answer, in characters. A person reads no more, and an answer repeats texts of a review, which may be
/// megabytes long.
pub(super) const MAX_MESSAGE_LENGTH: usize = 4096;
/// The longest text of a review that a message quotes, in characters.
pub(super) const MAX_QUOTE: usize = 64;
/// The longest uid that an answer repeats, in bytes. The API server makes one of 36.
const MAX_UID: usize = 128;

/// A request, borrowed from the body.
#[derive(Debug)]
pub struct Review<'a>(ReviewFields<'a>);

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(default)]
    api_version: Str<'a>,
    #[serde(default)]
    kind: Str<'a>,
    #[serde(default, deserialize_with = "json::object")]
    request: Option<ReviewFields<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct ReviewFields<'a> {
    #[serde(default)]
    uid: Str<'a>,
    #[serde(default, deserialize_with = "json::object")]
    resource: Option<Resource<'a>>,
    #[serde(default)]
    sub_resource: Option<Str<'a>>,
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    namespace: Str<'a>,
    #[serde(default)]
    operation: Str<'a>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "json::flag")]
    dry_run: Option<bool>,
    #[serde(default, deserialize_with = "json::object")]
    user_info: Option<UserInfo<'a>>,
}

/// Who makes a request.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct UserInfo<'a> {
    #[serde(default)]
    username: Str<'a>,
}

impl ReviewFields<'_> {
    /// Takes the name from the deleted object if the request has none: `deletecollection` sends one review for each object, and
    /// states the name only there.
    fn name_deleted(&mut self) {
        let Some(old) = self.old_object.filter(|_| self.name.is_empty() && &*self.operation == "DELETE")
        else {
            return;
        };
        if let Some(metadata) = NamedObject::metadata_of(old.get()) {
            self.name = metadata.name;
        }
    }
}

/// The name of an object.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct NamedObject<'a> {
    #[serde(default, deserialize_with = "json::object")]
    metadata: Option<NamedMetadata<'a>>,
}

impl NamedObject<'_> {
    fn metadata_of(object: &str) -> Option<NamedMetadata<'_>> {
        json::read_object::<NamedObject<'_>>(object.as_bytes()).ok()??.metadata
    }
}

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct NamedMetadata<'a> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    generate_name: Str<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Resource<'a> {
    #[serde(default)]
    group: Str<'a>,
    #[serde(default)]
    resource: Str<'a>,
}

/// A body that is not a review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Not JSON, or not of a review's form.
    #[error("the body is not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// A different object.
    #[error("the body is a {kind:?} of {api_version:?}, not an AdmissionReview of admission.k8s.io/v1")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// There is no request in it.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// An answer could not be matched to the request.
    #[error("the AdmissionReview's request has no uid")]
    NoUid,
    /// The answer would be as long.
    #[error("the uid of the AdmissionReview's request is longer than {MAX_UID} bytes")]
    LongUid,
}

impl<'a> Review<'a> {
    /// Reads a body.
    pub fn parse(body: &'a [u8]) -> Result<Self, ReviewError> {
        let wire: Wire<'a> = json::read_object(body)?.unwrap_or_default();
        if *wire.api_version != *API_VERSION || *wire.kind != *KIND {
            let [kind, api_version] = [&wire.kind, &wire.api_version].map(|text| quoted(text).into_owned());
            return Err(ReviewError::Kind { kind, api_version });
        }
        let mut request = wire.request.ok_or(ReviewError::NoRequest)?;
        if request.uid.is_empty() {
            return Err(ReviewError::NoUid);
        }
        if request.uid.len() > MAX_UID {
            return Err(ReviewError::LongUid);
        }
        request.name_deleted();
        Ok(Self(request))
    }

    /// Why no request to the API server may be built from this review: a name that no object can have, or a namespace that
    /// the webhooks exclude. The API server sends no such review; anyone else can.
    pub fn refusal(&self, is_excluded: impl FnOnce(&str) -> bool) -> Option<String> {
        let (namespace, name) = (self.namespace(), self.name());
        if !namespace.is_empty() && !is_namespace_name(namespace) {
            return Some(format!("invalid namespace {:?}: the review is refused", quoted(namespace)));
        }
        if !name.is_empty() && !is_object_name(name) {
            return Some(format!("invalid object name {:?}: the review is refused", quoted(name)));
        }
        is_excluded(namespace)
            .then(|| format!("namespace {namespace:?} is excluded from confrev: the review is refused"))
    }

    /// The request's uid, which the answer repeats.
    pub fn uid(&self) -> &str {
        &self.0.uid
    }

    /// The name of the user who makes the request. Anyone who reaches the port can send a review with any name.
    pub fn user(&self) -> &str {
        self.0.user_info.as_ref().map_or("", |user| &user.username)
    }

    /// Group and resource of the object.
    pub fn resource(&self) -> (&str, &str) {
        self.0.resource.as_ref().map_or(("", ""), |of| (&of.group, &of.resource))
    }

    /// Whether a whole object is created or updated: no subresource, no deletion.
    pub fn is_write(&self) -> bool {
        matches!(&*self.0.operation, "CREATE" | "UPDATE")
            && self.0.sub_resource.as_deref().unwrap_or_default().is_empty()
    }

    /// Whether an object is deleted.
    pub fn is_deletion(&self) -> bool {
        &*self.0.operation == "DELETE"
    }

    /// The object's name, for a deletion also from the deleted object; empty if the API server has yet to generate it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What to call the object in an answer: its name, or `PREFIX*` if the API server has yet to generate the name from a prefix.
    pub fn display_name(&self) -> Cow<'_, str> {
        if !self.name().is_empty() {
            return Cow::Borrowed(self.name());
        }
        let metadata = self.object().and_then(NamedObject::metadata_of).unwrap_or_default();
        Cow::Owned(format!("{}*", quoted(&metadata.generate_name)))
    }

    /// The object's namespace.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The object as requested.
    pub fn object(&self) -> Option<&'a str> {
        self.0.object.map(RawValue::get)
    }

    /// The object as it is stored; `None` unless this is an update.
    pub fn old_object(&self) -> Option<&'a str> {
        self.0.old_object.map(RawValue::get).filter(|_| &*self.0.operation == "UPDATE")
    }

    /// Whether this is a dry run: nothing may be written.
    pub fn dry_run(&self) -> bool {
        self.0.dry_run.unwrap_or(false)
    }
}

/// An answer.
#[derive(Debug, Default)]
pub struct Answer {
    patch: json_patch::Patch,
    warnings: Vec<String>,
    refusal: Option<(u16, String)>,
}

impl Answer {
    /// Lets the object pass as it is.
    pub fn allowed() -> Self {
        Self::default()
    }

    /// Lets the object pass with changes.
    pub fn patched(patch: json_patch::Patch) -> Self {
        Self { patch, ..Self::default() }
    }

    /// Refuses: another attempt fails too, until the request is changed.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::refused(403, &message.into())
    }

    /// Refuses for now: the same request may succeed later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::refused(503, &message.into())
    }

    fn refused(code: u16, message: &str) -> Self {
        let message = text::short(message, MAX_MESSAGE_LENGTH);
        Self { refusal: Some((code, text::line(&message).into_owned())), ..Self::default() }
    }

    /// The same answer with warnings for the user.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = shorten(warnings);
        self
    }

    /// Whether there is no decision, and the same request may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.refusal, Some((503, _)))
    }

    /// The operations of its patch.
    pub fn operations(&self) -> usize {
        self.patch.0.len()
    }

    /// The outcome in metrics.
    pub fn outcome(&self) -> metrics::ReviewOutcome {
        match &self.refusal {
            Some((403, _)) => metrics::ReviewOutcome::Denied,
            Some(_) => metrics::ReviewOutcome::Failed,
            None if self.patch.0.is_empty() => metrics::ReviewOutcome::Allowed,
            None => metrics::ReviewOutcome::Patched,
        }
    }

    /// The body of the answer to the request with that uid.
    pub fn to_json(&self, uid: &str) -> Vec<u8> {
        let patch = (self.refusal.is_none() && !self.patch.0.is_empty()).then(|| {
            serde_json::to_vec(&self.patch).map(|json| BASE64_STANDARD.encode(json)).unwrap_or_default()
        });
        let response = ReviewResponse {
            uid,
            allowed: self.refusal.is_none(),
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            status: self.refusal.as_ref().map(|(code, message)| ResponseStatus { code: *code, message }),
            warnings: &self.warnings,
        };
        serde_json::to_vec(&Envelope { api_version: API_VERSION, kind: KIND, response }).unwrap_or_default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: ReviewResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<ResponseStatus<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Serialize)]
struct ResponseStatus<'a> {
    code: u16,
    message: &'a str,
}

/// The start of a text of a review, for a message.
fn quoted(text: &str) -> Cow<'_, str> {
    text::short(text, MAX_QUOTE)
}

/// At most [`MAX_WARNINGS`] lines, each of them safe to show, and short enough to arrive whole.
fn shorten(warnings: Vec<String>) -> Vec<String> {
    let count = warnings.len();
    let max = if count > MAX_WARNINGS { MAX_WARNINGS - 1 } else { MAX_WARNINGS };
    let mut short: Vec<_> =
        warnings.into_iter().take(max).map(|warning| truncate_warning(&warning)).collect();
    if count > max {
        short.push(format!("and {} more warnings", count - max));
    }
    short
}

/// An escape is longer than its character, so the text is cut before and after.
fn truncate_warning(warning: &str) -> String {
    let start = text::short(warning, MAX_WARNING_LENGTH);
    text::short(&text::line(&start), MAX_WARNING_LENGTH).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a review holds, what is said of it is short: a client needs no account to send one.
    #[test]
    fn refusals_quote_little() {
        const LONG: usize = 1 << 20;
        let del = "\u{7f}".repeat(LONG);
        let review = |request: &str| {
            format!(r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","request":{request}}}"#)
        };
        let in_request = |field: &str| review(&format!(r#"{{"uid":"u","{field}":"{del}"}}"#));
        let unreadable = [
            format!("\"{del}\""),
            format!(r#"{{"kind":"{del}","apiVersion":"{del}"}}"#),
            review(&format!("\"{del}\"")),
            review(&format!(r#"{{"uid":"{del}"}}"#)),
            in_request("resource"),
            in_request("userInfo"),
            in_request("dryRun"),
        ];
        for body in unreadable {
            let error = Review::parse(body.as_bytes()).unwrap_err();
            // serde holds its message as it is.
            assert!(error.to_string().len() < 1000 && format!("{error:?}").len() < 1000);
        }
        for field in ["namespace", "name"] {
            let body = in_request(field);
            let refusal = Review::parse(body.as_bytes()).unwrap().refusal(|_| false).unwrap();
            assert!(refusal.len() < 1000, "{field}: {}", refusal.len());
        }
        let objects = [r#"{"metadata":"DEL"}"#, r#"{"metadata":{"generateName":"DEL"}}"#, r#""DEL""#];
        for object in objects.map(|object| object.replace("DEL", &del)) {
            let body = review(&format!(r#"{{"uid":"u","object":{object}}}"#));
            let review = Review::parse(body.as_bytes()).unwrap();
            assert!(review.display_name().len() < 1000);
        }
        for answer in [Answer::denied(del.clone()), Answer::allowed().with_warnings(vec![del.clone(); 9])] {
            assert!(answer.to_json("u").len() < 100_000);
        }
    }

    /// `kubectl` prints messages and warnings as they are, and they repeat names and messages of others.
    #[test]
    fn answers_are_safe_to_show() {
        let hostile = "no\n\u{1b}[2J\u{202e}".to_owned();
        for answer in [
            Answer::denied(hostile.clone()),
            Answer::unavailable(hostile.clone()),
            Answer::allowed().with_warnings(vec![hostile.clone()]),
        ] {
            let json: serde_json::Value = serde_json::from_slice(&answer.to_json("u")).unwrap();
            let response = &json["response"];
            let said = response["status"]["message"].as_str().or(response["warnings"][0].as_str());
            assert_eq!(said, Some("no\\n\\u001b[2J\\u202e"), "{response}");
        }
    }
}
