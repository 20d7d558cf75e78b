//! A JSON patch under construction, operation by operation, on the raw object.

use std::collections::BTreeMap;

use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation, jsonptr::PointerBuf};
use serde_json::Value;

use crate::{annotations::pointer_token, json::Str};

type StringMap<'a> = BTreeMap<Str<'a>, Str<'a>>;

/// Operations in the order in which they apply. A value that is already as wanted needs no operation.
#[derive(Debug, Default)]
pub struct Patch(Vec<PatchOperation>);

impl Patch {
    /// Replaces the string at `pointer`, which is known to exist.
    pub fn replace(&mut self, pointer: &str, value: impl Into<String>) {
        let op = ReplaceOperation { path: path(pointer), value: Value::String(value.into()) };
        self.0.push(PatchOperation::Replace(op));
    }

    /// Adds a value at `pointer`, or replaces it.
    pub fn add(&mut self, pointer: &str, value: Value) {
        self.0.push(PatchOperation::Add(AddOperation { path: path(pointer), value }));
    }

    /// Removes the value at `pointer`.
    pub fn remove(&mut self, pointer: &str) {
        self.0.push(PatchOperation::Remove(RemoveOperation { path: path(pointer) }));
    }

    /// Sets keys of the string map at `pointer` (labels or annotations) to their wanted values; `None` removes a key. `present`
    /// is the current map. Other keys stay as they are. Call it once for each map.
    pub fn set_keys(
        &mut self,
        pointer: &str,
        present: Option<&StringMap<'_>>,
        wanted: &[(&str, Option<String>)],
    ) {
        let missing: Vec<_> =
            wanted.iter().filter_map(|(key, value)| Some((*key, value.as_ref()?))).collect();
        let Some(present) = present else {
            if !missing.is_empty() {
                let map = missing.iter().map(|&(key, value)| (key.to_owned(), Value::String(value.clone())));
                self.add(pointer, Value::Object(map.collect()));
            }
            return;
        };
        for (key, value) in wanted {
            let at = format!("{pointer}/{}", pointer_token(key));
            match (present.get(*key), value) {
                (Some(old), Some(new)) if **old == **new => {}
                (_, Some(new)) => self.add(&at, Value::String(new.clone())),
                (Some(_), None) => self.remove(&at),
                (None, None) => {}
            }
        }
    }

    /// The finished patch.
    pub fn finish(self) -> json_patch::Patch {
        json_patch::Patch(self.0)
    }
}

/// A pointer that this crate built itself, token by token.
fn path(pointer: &str) -> PointerBuf {
    PointerBuf::parse(pointer).unwrap_or_default()
}
