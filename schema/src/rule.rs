//! What a failure says: the path in the content, and the rule of the schema. It contains no value of the content.

use std::collections::BTreeSet;

use boon::{CompileError, ErrorKind, InstanceToken, ValidationError};
use serde_json::Value;

/// The longest part of a schema that a message quotes.
const QUOTED: usize = 120;

/// All names in a schema: the keys of its objects, and its strings.
pub(crate) fn names(schema: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                names.extend(fields.keys().cloned());
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            Value::String(text) => {
                names.insert(text.clone());
            }
            _ => {}
        }
    }
    names
}

/// Reports each rule that the content fails. `known`: the only names that may be reported.
pub(crate) fn describe(
    error: &ValidationError<'_, '_>,
    known: Option<&BTreeSet<String>>,
    report: &mut impl FnMut(String),
) {
    let is_group =
        matches!(error.kind, ErrorKind::Group | ErrorKind::Schema { .. } | ErrorKind::Reference { .. })
            || matches!(error.kind, ErrorKind::AllOf | ErrorKind::ContentSchema);
    if is_group && !error.causes.is_empty() {
        error.causes.iter().for_each(|cause| describe(cause, known, report));
        return;
    }
    let shown = |name: &str| known.is_none_or(|known| known.contains(name));
    let mut path = String::new();
    for token in &error.instance_location.tokens {
        path.push('/');
        match token {
            InstanceToken::Prop(name) if shown(name) => {
                path.push_str(&name.replace('~', "~0").replace('/', "~1"));
            }
            InstanceToken::Prop(_) => path.push('*'),
            InstanceToken::Item(index) => path.push_str(&index.to_string()),
        }
    }
    let place = if path.is_empty() { "the whole content".to_owned() } else { path };
    let rule = error.schema_url.split_once('#').map_or("", |(_, rule)| rule);
    report(format!("{place} {} (rule #{rule})", text(&error.kind, &shown)));
}

/// The rule in words.
fn text(kind: &ErrorKind<'_, '_>, shown: &impl Fn(&str) -> bool) -> String {
    let list = |names: &[&str]| {
        let names: Vec<_> =
            names.iter().map(|name| if shown(name) { format!("{name:?}") } else { "*".to_owned() }).collect();
        cut(&names.join(", "))
    };
    match kind {
        ErrorKind::Type { want, .. } => {
            let types: Vec<_> = want.iter().map(|kind| kind.to_string()).collect();
            format!("must be of type {}", types.join(" or "))
        }
        ErrorKind::Enum { want } => {
            format!("must be one of {}", cut(&Value::from((*want).clone()).to_string()))
        }
        ErrorKind::Const { want } => format!("must be {}", cut(&want.to_string())),
        ErrorKind::Format { want, .. } => format!("must have the format {want:?}"),
        ErrorKind::Pattern { want, .. } => format!("must match the pattern {:?}", cut(want)),
        ErrorKind::Required { want } => format!("lacks {}", list(want)),
        ErrorKind::Dependency { prop, missing } | ErrorKind::DependentRequired { prop, missing } => {
            format!("has {} and lacks {}", list(&[prop]), list(missing))
        }
        ErrorKind::AdditionalProperties { got } => {
            let got: Vec<_> = got.iter().map(AsRef::as_ref).collect();
            format!("may not have {}", list(&got))
        }
        ErrorKind::AdditionalItems { .. } => "has too many items".to_owned(),
        ErrorKind::PropertyName { prop } => format!("may not have {}", list(&[prop])),
        ErrorKind::FalseSchema => "is not allowed".to_owned(),
        ErrorKind::MinProperties { want, .. } => format!("must have at least {want} properties"),
        ErrorKind::MaxProperties { want, .. } => format!("must have at most {want} properties"),
        ErrorKind::MinItems { want, .. } => format!("must have at least {want} items"),
        ErrorKind::MaxItems { want, .. } => format!("must have at most {want} items"),
        ErrorKind::Contains => "must contain a matching item".to_owned(),
        ErrorKind::MinContains { want, .. } => format!("must contain at least {want} matching items"),
        ErrorKind::MaxContains { want, .. } => format!("must contain at most {want} matching items"),
        ErrorKind::UniqueItems { got: [first, second] } => format!("has equal items at {first} and {second}"),
        ErrorKind::MinLength { want, .. } => format!("must have at least {want} characters"),
        ErrorKind::MaxLength { want, .. } => format!("must have at most {want} characters"),
        ErrorKind::Minimum { want, .. } => format!("must be at least {want}"),
        ErrorKind::Maximum { want, .. } => format!("must be at most {want}"),
        ErrorKind::ExclusiveMinimum { want, .. } => format!("must be more than {want}"),
        ErrorKind::ExclusiveMaximum { want, .. } => format!("must be less than {want}"),
        ErrorKind::MultipleOf { want, .. } => format!("must be a multiple of {want}"),
        ErrorKind::ContentEncoding { want, .. } | ErrorKind::ContentMediaType { want, .. } => {
            format!("must hold {want}")
        }
        ErrorKind::Not => "must not match".to_owned(),
        ErrorKind::AnyOf => "must match at least one of several schemas".to_owned(),
        ErrorKind::OneOf(None) => "must match one of several schemas".to_owned(),
        ErrorKind::OneOf(Some((first, second))) => {
            format!("must match exactly one of several schemas, and matches {first} and {second}")
        }
        ErrorKind::RefCycle { .. } => "is checked by a reference to itself".to_owned(),
        ErrorKind::Group
        | ErrorKind::Schema { .. }
        | ErrorKind::Reference { .. }
        | ErrorKind::ContentSchema
        | ErrorKind::AllOf => "does not match".to_owned(),
    }
}

/// Why a schema cannot be compiled.
pub(crate) fn compilation(error: &CompileError) -> String {
    match error {
        CompileError::LoadUrlError { url, .. } | CompileError::UnsupportedUrlScheme { url } => {
            format!("it refers to {}, and nothing is fetched: include that schema in it", cut(url))
        }
        CompileError::ValidationError { src, .. } => {
            let mut failures = Vec::new();
            describe(src, None, &mut |text| failures.push(text));
            format!("it is no valid JSON Schema: {}", failures.into_iter().next().unwrap_or_default())
        }
        CompileError::InvalidRegex { regex, .. } => format!("invalid regular expression {:?}", cut(regex)),
        other => cut(&other.to_string().replace(crate::SCHEMA, "")),
    }
}

/// The start of a text that is too long for a message.
fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
