//! The identity of a ConfigMap or Secret.

use std::{fmt, sync::Arc};

use confrev_core::snapshot::ObjectName;

/// A ConfigMap or Secret of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Kind and name.
    pub object: ObjectName,
}

impl Name {
    /// An object of a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, object: ObjectName) -> Self {
        Self { namespace: namespace.into(), object }
    }

    /// Another object of the same kind and namespace.
    #[must_use]
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: Arc::clone(&self.namespace), object: ObjectName::new(self.object.kind, name) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.object.kind, self.namespace, self.object.name)
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::snapshot::SourceKind;

    use super::*;

    #[test]
    fn name_is_printed_with_kind_and_namespace() {
        let secret = Name::new("shop", ObjectName::new(SourceKind::Secret, "token"));
        assert_eq!(secret.to_string(), "Secret shop/token");
        assert_eq!(secret.sibling("token-0123456789").to_string(), "Secret shop/token-0123456789");
    }
}
