//! What a failure says: the path in the content, and the keyword of the rule. It contains no value of the content, and nothing of
//! the schema but keywords: a person who may name a schema could otherwise read it in refusals.

use boon::{CompileError, ErrorKind, InstanceToken, ValidationError};

/// The longest path that a message contains.
const LONGEST: usize = 200;

/// Reports each rule that the content fails.
pub(crate) fn describe(error: &ValidationError<'_, '_>, report: &mut impl FnMut(String)) {
    let is_group =
        matches!(error.kind, ErrorKind::Group | ErrorKind::Schema { .. } | ErrorKind::Reference { .. })
            || matches!(error.kind, ErrorKind::AllOf | ErrorKind::ContentSchema);
    if is_group && !error.causes.is_empty() {
        error.causes.iter().for_each(|cause| describe(cause, report));
        return;
    }
    let mut path = String::new();
    for token in &error.instance_location.tokens {
        match token {
            InstanceToken::Prop(name) => add_name(&mut path, name),
            InstanceToken::Item(index) => add_name(&mut path, &index.to_string()),
        }
    }
    let mut fails = |path: &str| {
        let place = if path.is_empty() { "the whole content".to_owned() } else { cut(path) };
        report(format!("{place} fails the rule {:?}", keyword(&error.kind)));
    };
    // These rules are about names of the content.
    let names: Vec<&str> = match &error.kind {
        ErrorKind::AdditionalProperties { got } => got.iter().map(AsRef::as_ref).collect(),
        ErrorKind::PropertyName { prop } => vec![prop],
        _ => Vec::new(),
    };
    if names.is_empty() {
        fails(&path);
    }
    for name in names {
        let mut path = path.clone();
        add_name(&mut path, name);
        fails(&path);
    }
}

/// Adds a name to a JSON Pointer. The name may contain line breaks and terminal escapes.
fn add_name(path: &mut String, name: &str) {
    path.push('/');
    path.extend(name.replace('~', "~0").replace('/', "~1").chars().flat_map(char::escape_debug));
}

/// The keyword of a rule.
fn keyword(kind: &ErrorKind<'_, '_>) -> &'static str {
    match kind {
        ErrorKind::Type { .. } => "type",
        ErrorKind::Enum { .. } => "enum",
        ErrorKind::Const { .. } => "const",
        ErrorKind::Format { .. } => "format",
        ErrorKind::Pattern { .. } => "pattern",
        ErrorKind::Required { .. } => "required",
        ErrorKind::Dependency { .. } => "dependencies",
        ErrorKind::DependentRequired { .. } => "dependentRequired",
        ErrorKind::AdditionalProperties { .. } => "additionalProperties",
        ErrorKind::AdditionalItems { .. } => "additionalItems",
        ErrorKind::PropertyName { .. } => "propertyNames",
        ErrorKind::FalseSchema => "false",
        ErrorKind::MinProperties { .. } => "minProperties",
        ErrorKind::MaxProperties { .. } => "maxProperties",
        ErrorKind::MinItems { .. } => "minItems",
        ErrorKind::MaxItems { .. } => "maxItems",
        ErrorKind::Contains => "contains",
        ErrorKind::MinContains { .. } => "minContains",
        ErrorKind::MaxContains { .. } => "maxContains",
        ErrorKind::UniqueItems { .. } => "uniqueItems",
        ErrorKind::MinLength { .. } => "minLength",
        ErrorKind::MaxLength { .. } => "maxLength",
        ErrorKind::Minimum { .. } => "minimum",
        ErrorKind::Maximum { .. } => "maximum",
        ErrorKind::ExclusiveMinimum { .. } => "exclusiveMinimum",
        ErrorKind::ExclusiveMaximum { .. } => "exclusiveMaximum",
        ErrorKind::MultipleOf { .. } => "multipleOf",
        ErrorKind::ContentEncoding { .. } => "contentEncoding",
        ErrorKind::ContentMediaType { .. } => "contentMediaType",
        ErrorKind::ContentSchema => "contentSchema",
        ErrorKind::Not => "not",
        ErrorKind::AnyOf => "anyOf",
        ErrorKind::OneOf(_) => "oneOf",
        ErrorKind::AllOf | ErrorKind::Group => "allOf",
        ErrorKind::Reference { kw, .. } => kw,
        ErrorKind::Schema { .. } | ErrorKind::RefCycle { .. } => "$ref",
    }
}

/// Why a schema cannot be compiled.
pub(crate) fn compilation(error: &CompileError) -> String {
    match error {
        CompileError::LoadUrlError { .. } | CompileError::UnsupportedUrlScheme { .. } => {
            "it refers to another schema (\"$ref\" or \"$schema\"), and nothing is fetched: include that schema in it"
                .to_owned()
        }
        CompileError::ValidationError { src, .. } => match invalid_keyword(src) {
            Some(keyword) => format!("it is no valid JSON Schema: a keyword {keyword:?} in it is invalid"),
            None => "it is no valid JSON Schema".to_owned(),
        },
        CompileError::InvalidRegex { .. } => "a regular expression in it is invalid".to_owned(),
        CompileError::ParseIdError { .. } | CompileError::DuplicateId { .. } => {
            "a keyword \"$id\" in it is invalid, or occurs twice".to_owned()
        }
        CompileError::ParseAnchorError { .. } | CompileError::DuplicateAnchor { .. } => {
            "a keyword \"$anchor\" in it is invalid, or occurs twice".to_owned()
        }
        CompileError::InvalidJsonPointer(_)
        | CompileError::JsonPointerNotFound(_)
        | CompileError::AnchorNotFound { .. } => "a keyword \"$ref\" in it refers to nothing".to_owned(),
        _ => "a keyword \"$schema\" or \"$ref\" in it cannot be followed".to_owned(),
    }
}

/// The keywords whose values the schema of schemas constrains.
const KEYWORDS: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$ref",
    "$schema",
    "$vocabulary",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];

/// The last keyword on the path to what is invalid in a schema. All other names in it are the author's own.
fn invalid_keyword(error: &ValidationError<'_, '_>) -> Option<&'static str> {
    let deepest = error.causes.iter().find_map(invalid_keyword);
    deepest.or_else(|| {
        error.instance_location.tokens.iter().rev().find_map(|token| {
            let InstanceToken::Prop(name) = token else { return None };
            KEYWORDS.iter().copied().find(|keyword| *keyword == name.as_ref())
        })
    })
}

/// The start of a path that is too long for a message.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
