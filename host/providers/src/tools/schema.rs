//! Parameters against the JSON Schema of a tool, before the tool is called.
//!
//! Both sides may be hostile: a schema of a few lines can require more steps than there are atoms. The cost of a validation
//! is therefore computed first, and too much is refused. No request is made: a `$ref` leads within the schema.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use agent_host_protocol::ApiError;
use jsonschema::{PatternOptions, Validator};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::{failure, output::json_bytes};
use crate::redact::cut;

/// The largest schema, as JSON.
pub(super) const MAX_SCHEMA: usize = 64 << 10;
/// Steps of one validation. A step is well under a microsecond.
const MAX_STEPS: u64 = 500_000;
/// Steps that are taken where the call is, and the bytes of parameters; more go to a thread of their own.
const MAX_STEPS_INLINE: u64 = 20_000;
/// See [`MAX_STEPS_INLINE`].
const MAX_INLINE: usize = 16 << 10;
/// Pairs of schema and value that are looked at to count the steps.
const MAX_PAIRS: usize = 200_000;
/// Largest nesting of schema and value together.
const MAX_DEPTH: usize = 200;
/// Limit of backtracking of a regular expression; the other limit is the size of its program, in bytes.
const MAX_BACKTRACKS: usize = 50_000;
/// See [`MAX_BACKTRACKS`].
const MAX_PATTERN: usize = 1 << 20;
/// Violations that an error names, and the bytes that one has.
const MAX_VIOLATIONS: usize = 16;
/// See [`MAX_VIOLATIONS`].
const MAX_VIOLATION: usize = 300;

/// Checks `parameters` against `schema`.
///
/// # Errors
/// `invalid_argument` (`details.code` is `invalid_parameters`) with the path of every violation, at most 16;
/// `runtime_error` (`invalid_tool_schema`) where the schema cannot be used.
pub fn validate(schema: &Value, parameters: &Value) -> Result<(), ApiError> {
    let schema = Schema::new(Arc::new(schema.clone()));
    schema.steps("the call", parameters)?;
    schema.check("the call", parameters)
}

/// Checks a schema.
///
/// # Errors
/// `invalid_argument` that says why not.
pub fn check_schema(schema: &Value) -> Result<(), ApiError> {
    let bytes = json_bytes(schema);
    if bytes > MAX_SCHEMA {
        return Err(ApiError::too_large("a JSON Schema", bytes, MAX_SCHEMA));
    }
    match compile(schema) {
        Ok(_) => Ok(()),
        Err(problem) => Err(ApiError::invalid_argument(format!("this is no JSON Schema that can be used: {problem}"))),
    }
}

/// The schema of a tool, compiled when it is first needed.
#[derive(Debug)]
pub(super) struct Schema {
    source: Arc<Value>,
    compiled: OnceLock<Result<Validator, String>>,
}

impl Schema {
    pub(super) fn new(source: Arc<Value>) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// Checks the parameters of `tool`; gives them back.
    pub(super) async fn admit(self: &Arc<Self>, tool: &str, parameters: Value) -> Result<Value, ApiError> {
        if self.compiled.get().is_some()
            && json_bytes(&parameters) <= MAX_INLINE
            && self.steps(tool, &parameters)? <= MAX_STEPS_INLINE
        {
            return self.check(tool, &parameters).map(|()| parameters);
        }
        let (schema, name) = (self.clone(), tool.to_owned());
        let check = tokio::task::spawn_blocking(move || {
            schema.steps(&name, &parameters)?;
            schema.check(&name, &parameters).map(|()| parameters)
        });
        check.await.unwrap_or_else(|_| Err(failure::invalid_schema(tool, "the check did not end")))
    }

    /// The cost of a validation, in steps. Fails if it is too high.
    fn steps(&self, what: &str, parameters: &Value) -> Result<u64, ApiError> {
        let mut count = Count { root: &self.source, known: HashMap::new() };
        match count.steps(&self.source, parameters, 0) {
            Ok(steps) if steps <= MAX_STEPS => Ok(steps),
            Ok(_) => Err(failure::invalid_schema(what, "checking these parameters would take too long")),
            Err(problem) => Err(failure::invalid_schema(what, &cut(&problem, MAX_VIOLATION))),
        }
    }

    fn check(&self, what: &str, parameters: &Value) -> Result<(), ApiError> {
        let compiled = self.compiled.get_or_init(|| compile(&self.source));
        let validator = compiled.as_ref().map_err(|problem| failure::invalid_schema(what, problem))?;
        if validator.is_valid(parameters) {
            return Ok(());
        }
        let violation = |error: jsonschema::ValidationError<'_>| {
            let path = error.instance_path().as_str().to_owned();
            let path = if path.is_empty() { "/".to_owned() } else { path };
            json!({ "path": cut(&path, MAX_VIOLATION), "problem": cut(&error.to_string(), MAX_VIOLATION) })
        };
        let violations: Vec<Value> = validator.iter_errors(parameters).take(MAX_VIOLATIONS).map(violation).collect();
        Err(failure::invalid_parameters(what, &violations))
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    let patterns =
        PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN);
    jsonschema::options()
        .offline()
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| cut(&error.to_string(), MAX_VIOLATION).into_owned())
}

/// Keywords whose schemas say something about the same value.
const SAME: [&str; 6] = ["allOf", "anyOf", "oneOf", "not", "if", "then"];
/// More of them, which hold a schema for each name.
const SAME_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords whose schemas say something about every element or member.
const EVERY: [&str; 8] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// Ways to refer to a schema that are not followed here. Tools do not use them.
const NOT_FOLLOWED: [&str; 4] = ["$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"];

/// Counts the steps of a validation, each pair of a schema and a value once, so that the counting itself is cheap.
struct Count<'a> {
    root: &'a Value,
    /// By the addresses of schema and value. `None` while the pair is being counted.
    known: HashMap<(usize, usize), Option<u64>>,
}

impl<'a> Count<'a> {
    fn steps(&mut self, schema: &'a Value, value: &Value, depth: usize) -> Result<u64, String> {
        let Value::Object(keywords) = schema else { return Ok(1) };
        if depth > MAX_DEPTH {
            return Err("it leads too deep".into());
        }
        let pair = (std::ptr::from_ref(schema).addr(), std::ptr::from_ref(value).addr());
        match self.known.get(&pair) {
            Some(Some(steps)) => return Ok(*steps),
            Some(None) => return Err("a `$ref` in it leads back to itself".into()),
            None => {}
        }
        if self.known.len() >= MAX_PAIRS {
            return Err("it is too large for these parameters".into());
        }
        self.known.insert(pair, None);
        let steps = self.of_keywords(keywords, std::ptr::eq(schema, self.root), value, depth + 1)?;
        self.known.insert(pair, Some(steps));
        Ok(steps)
    }

    fn of_keywords(
        &mut self,
        keywords: &'a Map<String, Value>,
        is_root: bool,
        value: &Value,
        depth: usize,
    ) -> Result<u64, String> {
        let mut steps = own_steps(value, keywords);
        if let Some(keyword) = NOT_FOLLOWED.iter().find(|keyword| keywords.contains_key(**keyword)) {
            return Err(format!("it uses `{keyword}`"));
        }
        if !is_root && ["$id", "id"].iter().any(|id| keywords.get(*id).is_some_and(Value::is_string)) {
            return Err("a schema within it has an `$id`".into());
        }
        for (keyword, schemas) in keywords {
            let mut add = |more: u64| steps = steps.saturating_add(more);
            match keyword.as_str() {
                "$ref" => add(self.steps(self.follow(schemas)?, value, depth)?),
                "else" => add(self.steps(schemas, value, depth)?),
                keyword if SAME.contains(&keyword) => {
                    for schema in each(schemas) {
                        add(self.steps(schema, value, depth)?);
                    }
                }
                keyword if SAME_BY_NAME.contains(&keyword) => {
                    for schema in schemas.as_object().into_iter().flat_map(Map::values) {
                        add(self.steps(schema, value, depth)?);
                    }
                }
                "properties" => {
                    for (name, schema) in schemas.as_object().into_iter().flatten() {
                        if let Some(member) = value.get(name) {
                            add(self.steps(schema, member, depth)?);
                        }
                    }
                }
                "patternProperties" => {
                    for schema in schemas.as_object().into_iter().flat_map(Map::values) {
                        for member in members(value) {
                            add(self.steps(schema, member, depth)?.saturating_add(1));
                        }
                    }
                }
                keyword if EVERY.contains(&keyword) => {
                    for schema in each(schemas) {
                        for member in members(value) {
                            add(self.steps(schema, member, depth)?);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(steps)
    }

    fn follow(&self, reference: &Value) -> Result<&'a Value, String> {
        let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
        let pointer = pointer.ok_or("a `$ref` in it leads outside, and nothing is fetched")?;
        if !(pointer.is_empty() || pointer.starts_with('/')) {
            return Err("a `$ref` in it uses a name instead of a path".into());
        }
        let decoded = percent_decode_str(pointer).decode_utf8().map_err(|_| "a `$ref` in it cannot be read")?;
        self.root.pointer(&decoded).ok_or_else(|| "a `$ref` in it leads nowhere".into())
    }
}

fn each(schemas: &Value) -> impl Iterator<Item = &Value> {
    let (one, many) = match schemas {
        Value::Array(many) => (None, many.as_slice()),
        one => (Some(one), [].as_slice()),
    };
    one.into_iter().chain(many)
}

fn members(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

/// The cost of the keywords of a schema itself. Keywords that look at the whole value cost its size.
fn own_steps(value: &Value, keywords: &Map<String, Value>) -> u64 {
    let mut steps = keywords.len() as u64 + 1;
    let size = match value {
        Value::String(text) => text.len() / 64,
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    } as u64;
    for (keyword, argument) in keywords {
        steps = steps.saturating_add(match keyword.as_str() {
            "pattern" | "format" | "minLength" | "maxLength" | "contentEncoding" | "contentMediaType" => size,
            // Whole values are compared, each with some others.
            "uniqueItems" => size.saturating_mul(16),
            "enum" => argument.as_array().map_or(0, |options| options.len() as u64),
            "patternProperties" | "propertyNames" | "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" => {
                size.saturating_mul(1 + keywords.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len) as u64)
            }
            _ => 0,
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn code(error: &ApiError) -> String {
        error.details.as_ref().unwrap()["code"].as_str().unwrap().to_owned()
    }

    #[test]
    fn every_violation_has_its_path() {
        let schema = json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "type": "number" }, "b": { "type": "array", "items": { "$ref": "#/$defs/s" } } },
            "$defs": { "s": { "type": "string" } },
        });
        validate(&schema, &json!({ "a": 1, "b": ["x"] })).unwrap();
        let error = validate(&schema, &json!({ "a": "one", "b": ["x", 2] })).unwrap_err();
        assert_eq!((error.code.as_str(), code(&error).as_str()), ("invalid_argument", "invalid_parameters"));
        let details = error.details.unwrap();
        let paths: Vec<&str> = details["violations"].as_array().unwrap().iter().map(|v| v["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/a", "/b/1"]);
        let error = validate(&schema, &json!({})).unwrap_err();
        assert_eq!(error.details.unwrap()["violations"][0]["path"], "/");
    }

    #[test]
    fn an_error_is_bounded_whatever_the_parameters_are() {
        let schema = json!({ "type": "array", "items": { "type": "number" } });
        let error = validate(&schema, &json!(vec!["x".repeat(10_000); 200])).unwrap_err();
        assert_eq!(error.details.as_ref().unwrap()["violations"].as_array().unwrap().len(), MAX_VIOLATIONS);
        assert!(serde_json::to_vec(&error).unwrap().len() < 16 << 10);
    }

    #[test]
    fn a_schema_that_cannot_be_used_is_refused_and_nothing_is_fetched() {
        for schema in [
            json!({ "type": "nonsense" }),
            json!({ "$ref": "https://127.0.0.1:1/schema.json" }),
            json!({ "$ref": "file:///etc/passwd" }),
            json!({ "properties": { "a": { "$ref": "file:///etc/passwd" } } }),
            json!({ "$ref": "#" }),
            json!({ "$ref": "#/$defs/nowhere" }),
            json!({ "pattern": "(" }),
            json!({ "allOf": [{ "$id": "http://x/", "$ref": "#" }] }),
        ] {
            let error = validate(&schema, &json!({ "a": 1 })).unwrap_err();
            assert_eq!(code(&error), "invalid_tool_schema", "{schema}");
        }
        for schema in [json!(true), json!({}), json!({ "$id": "http://x/y", "$ref": "#/$defs/a%2Fb", "$defs": { "a/b": {} } })] {
            let fits = validate(&schema, &json!({ "a": 1 }));
            assert!(fits.is_ok() || code(&fits.unwrap_err()) == "invalid_tool_schema", "{schema}");
        }
    }

    #[test]
    fn patterns_as_libraries_write_them_work() {
        let email = json!({ "properties": { "e": { "type": "string", "format": "email",
            "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$" } } });
        validate(&email, &json!({ "e": "a@example.com" })).unwrap();
        assert_eq!(code(&validate(&email, &json!({ "e": ".a@example.com" })).unwrap_err()), "invalid_parameters");
    }

    /// Each would take longer than the universe lasts, or a great part of it.
    #[test]
    fn hostile_schemas_end_soon() {
        let mut defs = Map::new();
        for n in 0..100 {
            let next = format!("#/$defs/{}", n + 1);
            defs.insert(n.to_string(), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }));
        }
        defs.insert("100".into(), json!({}));
        let doubling = json!({ "$ref": "#/$defs/0", "$defs": defs });
        let recursive = json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }] } } });
        let mut deep = json!(1);
        for _ in 0..60 {
            deep = json!({ "a": deep });
        }
        let backtracking = json!({ "pattern": "^(?=x)(x+x+)+y$" });
        let huge_pattern = json!({ "pattern": "((a{1000}){1000}){1000}" });
        // The part is never applied; compiling must not visit all its paths either.
        let unused = json!({ "properties": { "a": doubling.clone() } });
        let began = Instant::now();
        let _ = validate(&unused, &json!({}));
        let _ = compile(&doubling);
        for (schema, parameters) in [
            (doubling, json!(1)),
            (recursive, deep),
            (backtracking, json!("x".repeat(5000))),
            (huge_pattern, json!("a")),
            (json!({ "items": { "uniqueItems": true } }), json!(vec![vec![json!({ "a": 1 }); 300]; 300])),
        ] {
            validate(&schema, &parameters).unwrap_err();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn a_recursive_schema_that_means_well_works() {
        let tree = json!({ "$ref": "#/$defs/node", "$defs": { "node": { "type": "object", "properties": {
            "name": { "type": "string" }, "children": { "type": "array", "items": { "$ref": "#/$defs/node" } } } } } });
        let leaf = json!({ "name": "leaf" });
        let branch = json!({ "name": "branch", "children": vec![leaf; 50] });
        validate(&tree, &json!({ "name": "root", "children": vec![branch; 50] })).unwrap();
        assert_eq!(code(&validate(&tree, &json!({ "children": [{ "name": 1 }] })).unwrap_err()), "invalid_parameters");
    }
}
