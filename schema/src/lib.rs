//! Checks the content of a source against a JSON Schema. Pure: no I/O, no clock, and nothing is fetched.
//!
//! The check may take arbitrarily long: schemas and contents come from users. Its caller must be able to end it.

mod format;
mod properties;
mod rule;

use std::{collections::BTreeMap, error::Error};

use boon::{Compiler, Draft, SchemaIndex, Schemas, UrlLoader};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the schema in the library.
const SCHEMA: &str = "schema:/schema";

/// How many failures a message names.
const NAMED: usize = 3;

/// A schema, and the entries to check against it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    /// The text of the schema, in JSON.
    pub schema: String,
    /// The entries by their keys.
    pub entries: BTreeMap<String, String>,
}

/// Why a content is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The schema is no JSON Schema.
    Schema(String),
    /// The content fails the schema: the keys, the paths and the keywords of the rules. It contains no values.
    Content(String),
}

impl Job {
    /// Checks the schema, and each entry against it.
    pub fn run(&self) -> Result<(), Failure> {
        let schema: Value = serde_json::from_str(&self.schema).map_err(|error| {
            Failure::Schema(format!("it is not JSON (line {}, column {})", error.line(), error.column()))
        })?;
        let (schemas, index) = compile(schema)?;
        let mut failures = Vec::new();
        for (key, text) in &self.entries {
            match format::parse(key, text) {
                Err(error) => failures.push(format!("key {key:?}: {error}")),
                Ok(value) => {
                    if let Err(error) = schemas.validate(&value, index) {
                        rule::describe(&error, &mut |text| {
                            failures.push(format!("key {key:?}: {text}"));
                        });
                    }
                }
            }
            if failures.len() > NAMED {
                break;
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        let more = if failures.len() > NAMED { "; and more" } else { "" };
        failures.truncate(NAMED);
        Err(Failure::Content(failures.join("; ") + more))
    }
}

/// Refuses every schema that is elsewhere.
struct Nothing;

impl UrlLoader for Nothing {
    fn load(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        Err(format!("{url} is not part of the schema").into())
    }
}

fn compile(schema: Value) -> Result<(Schemas, SchemaIndex), Failure> {
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err(Failure::Schema("it is neither an object nor true or false".to_owned()));
    }
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(Nothing));
    compiler.set_default_draft(Draft::V2020_12);
    compiler.enable_format_assertions();
    let mut schemas = Schemas::new();
    let failure = |error| Failure::Schema(rule::compilation(&error));
    compiler.add_resource(SCHEMA, schema).map_err(failure)?;
    let index = compiler.compile(SCHEMA, &mut schemas).map_err(failure)?;
    Ok((schemas, index))
}
