//! Runs Lua as Argo CD does: version 5.1, with the base, table and package libraries and a part of `os`. There is no string
//! library, so strings have no methods. A crate of its own, so that nothing else links Lua.
#![allow(clippy::missing_errors_doc, reason = "the error is that of the script")]

use mlua::{Lua, LuaOptions, StdLib, Table, Value as LuaValue};
use serde_json::{Map, Number, Value};

/// The functions of `os` that Argo CD keeps.
const OS: [&str; 4] = ["clock", "date", "difftime", "time"];

/// Runs a script with the global `obj`, and `actionParams` if there are any. Returns its result as Argo CD reads it.
pub fn run(script: &str, object: &Value, parameters: Option<&Value>) -> mlua::Result<Value> {
    run_with(StdLib::TABLE | StdLib::OS | StdLib::PACKAGE, script, object, parameters)
}

/// The same for a kind with `useOpenLibs`, which has all libraries.
pub fn run_open(script: &str, object: &Value) -> mlua::Result<Value> {
    run_with(StdLib::ALL_SAFE, script, object, None)
}

fn run_with(
    libraries: StdLib,
    script: &str,
    object: &Value,
    parameters: Option<&Value>,
) -> mlua::Result<Value> {
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    let os: Table = lua.globals().get("os")?;
    let names: Vec<String> =
        os.pairs::<String, LuaValue>().map(|pair| pair.map(|(name, _)| name)).collect::<Result<_, _>>()?;
    for name in names.into_iter().filter(|name| !OS.contains(&name.as_str())) {
        os.set(name, LuaValue::Nil)?;
    }
    lua.globals().set("obj", to_lua(&lua, object)?)?;
    if let Some(parameters) = parameters {
        lua.globals().set("actionParams", to_lua(&lua, parameters)?)?;
    }
    from_lua(lua.load(script).eval()?)
}

fn to_lua(lua: &Lua, value: &Value) -> mlua::Result<LuaValue> {
    Ok(match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(value) => LuaValue::Boolean(*value),
        Value::Number(number) => LuaValue::Number(number.as_f64().unwrap_or_default()),
        Value::String(text) => LuaValue::String(lua.create_string(text)?),
        Value::Array(items) => {
            let table = lua.create_table()?;
            for item in items {
                table.push(to_lua(lua, item)?)?;
            }
            LuaValue::Table(table)
        }
        Value::Object(fields) => {
            let table = lua.create_table()?;
            for (name, field) in fields {
                table.set(name.as_str(), to_lua(lua, field)?)?;
            }
            LuaValue::Table(table)
        }
    })
}

/// An empty table becomes an empty list, as with Argo CD.
fn from_lua(value: LuaValue) -> mlua::Result<Value> {
    Ok(match value {
        LuaValue::Nil => Value::Null,
        LuaValue::Boolean(value) => Value::Bool(value),
        LuaValue::Integer(number) => Value::from(number),
        LuaValue::Number(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        LuaValue::String(text) => Value::String(text.to_str()?.to_owned()),
        LuaValue::Table(table) => {
            let mut fields = Map::new();
            let mut items = Vec::new();
            for pair in table.pairs::<LuaValue, LuaValue>() {
                let (key, field) = pair?;
                match key {
                    LuaValue::String(name) => {
                        fields.insert(name.to_str()?.to_owned(), from_lua(field)?);
                    }
                    _ => items.push(from_lua(field)?),
                }
            }
            if fields.is_empty() { Value::Array(items) } else { Value::Object(fields) }
        }
        other => return Err(mlua::Error::runtime(format!("a result of type {}", other.type_name()))),
    })
}
