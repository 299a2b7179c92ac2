//! The reference of the configuration, made of the very types that read it: keys, types, defaults and documentation.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::file::schema;

/// Sections in the order in which an operator meets them; any other comes after these.
const ORDER: [&str; 24] = [
    "server",
    "identity_providers",
    "limits",
    "quotas",
    "retention",
    "bindings",
    "external_runners",
    "executor_runners",
    "harnesses",
    "runner_aliases",
    "models",
    "mcp_servers",
    "knowledge_bases",
    "skills",
    "static_refs",
    "egress",
    "http_secrets",
    "action_hooks",
    "approvers",
    "schedules",
    "webhook_sources",
    "webhooks",
    "agui",
    "telemetry",
];

/// Tables in tables in tables: no configuration is deeper, and a schema that refers to itself would not end.
const MAX_DEPTH: usize = 4;

/// Every section and key of `agent-host.toml` in Markdown, with the type, the default and the documentation of each.
#[must_use]
pub fn config_reference() -> String {
    let schema = schema();
    let reference = Reference { definitions: schema.get("$defs").and_then(Value::as_object) };
    let mut text = String::new();
    let sections = schema.get("properties").and_then(Value::as_object);
    let mut sections: Vec<_> = sections.into_iter().flatten().collect();
    sections.sort_by_key(|(name, _)| (ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()), name.as_str()));
    for (name, section) in sections {
        reference.table(&mut text, name, section, 0);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

struct Reference<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Reference<'a> {
    /// The schema itself, where there is a reference to it or an option of it.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        // Each step leads to another schema; a chain of them is short.
        for _ in 0..8 {
            let named = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
            let target = named.and_then(|name| self.definitions?.get(name));
            let option = schema.get("anyOf").and_then(Value::as_array).and_then(|any| match any.as_slice() {
                [some, null] if null.get("type").and_then(Value::as_str) == Some("null") => Some(some),
                _ => None,
            });
            match target.or(option) {
                Some(next) => schema = next,
                None => return schema,
            }
        }
        schema
    }

    /// The keys of a table, or of the entries of a list of tables.
    fn keys(&self, schema: &'a Value) -> Option<(&'a Value, bool)> {
        let schema = self.resolved(schema);
        if schema.get("properties").is_some() {
            return Some((schema, false));
        }
        let items = self.resolved(schema.get("items")?);
        items.get("properties").map(|_| (items, true))
    }

    fn table(&self, text: &mut String, path: &str, section: &'a Value, depth: usize) {
        let Some((table, is_list)) = self.keys(section) else { return self.open_table(text, path, section, depth) };
        let heading = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} `{heading}`\n", "#".repeat((depth + 3).min(5)));
        if let Some(about) = described(table) {
            let _ = writeln!(text, "{about}\n");
        }
        let required: Vec<&str> =
            table.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = table.get("properties").and_then(Value::as_object);
        let mut keys: Vec<_> = properties.into_iter().flatten().collect();
        keys.sort_by_key(|(name, _)| (!required.contains(&name.as_str()), name.as_str()));
        let _ = writeln!(text, "| Key | Type | Default | Meaning |\n|---|---|---|---|");
        let mut inner = Vec::new();
        for (name, schema) in keys {
            let nested = self.keys(schema).is_some() && depth < MAX_DEPTH;
            let default = if required.contains(&name.as_str()) { "required".to_owned() } else { default_of(schema, nested) };
            let meaning = described(schema).or_else(|| described(self.resolved(schema))).unwrap_or_default();
            let _ = writeln!(text, "| `{name}` | {} | {default} | {} |", self.kind(schema), cell(&meaning));
            if nested {
                inner.push((name, schema));
            }
        }
        text.push('\n');
        for (name, schema) in inner {
            self.table(text, &format!("{path}.{name}"), schema, depth + 1);
        }
    }

    /// A table whose keys the operator chooses.
    fn open_table(&self, text: &mut String, path: &str, section: &'a Value, depth: usize) {
        let schema = self.resolved(section);
        let Some(values @ Value::Object(_)) = schema.get("additionalProperties") else { return };
        let _ = writeln!(text, "{} `[{path}]`\n", "#".repeat((depth + 3).min(5)));
        if let Some(about) = described(section).or_else(|| described(schema)) {
            let _ = writeln!(text, "{about}\n");
        }
        let _ = writeln!(text, "| Key | Type |\n|---|---|\n| any name | {} |\n", self.kind(values));
    }

    /// The kind of a value, in words.
    fn kind(&self, schema: &'a Value) -> String {
        let schema = self.resolved(schema);
        if let Some(value) = schema.get("const") {
            return format!("`{value}`");
        }
        for choice in ["enum", "oneOf", "anyOf"] {
            let Some(choices) = schema.get(choice).and_then(Value::as_array) else { continue };
            let mut kinds: Vec<String> = Vec::new();
            for one in choices.iter().filter(|one| !one.is_null()) {
                let kind = if choice == "enum" { format!("`{one}`") } else { self.kind(one) };
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            return kinds.join(" or ");
        }
        let named = match schema.get("type") {
            Some(Value::String(name)) => name.as_str(),
            // An option.
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or("any"),
            _ => "any",
        };
        match named {
            "array" => schema.get("items").map_or_else(|| "list".to_owned(), |items| format!("list of {}", self.kind(items))),
            "object" => match schema.get("properties").and_then(Value::as_object) {
                // A variant of an enum that carries something, such as where a secret is.
                Some(keys) if keys.len() == 1 && schema.get("required").is_some() => {
                    let keys = keys.iter().map(|(key, value)| format!("{key} = {}", self.kind(value)));
                    format!("`{{ {} }}`", keys.collect::<String>().replace('`', ""))
                }
                Some(_) => "table".to_owned(),
                None => match schema.get("additionalProperties") {
                    Some(of @ Value::Object(_)) => format!("table of {}", self.kind(of)),
                    _ => "table".to_owned(),
                },
            },
            other => other.to_owned(),
        }
    }
}

fn default_of(schema: &Value, nested: bool) -> String {
    match schema.get("default") {
        // The defaults are listed with the keys of the table.
        Some(Value::Object(_) | Value::Array(_)) if nested => "—".to_owned(),
        None | Some(Value::Null) => "—".to_owned(),
        Some(value) => format!("`{}`", cell(&value.to_string())),
    }
}

/// The documentation of a key, in one line.
fn described(schema: &Value) -> Option<String> {
    let text = schema.get("description")?.as_str()?;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // A link of rustdoc leads nowhere here.
    Some(line.replace("[`", "`").replace("`]", "`")).filter(|line| !line.is_empty())
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_every_section_is_there() {
        let text = config_reference();
        for expected in [
            "### `[server]`",
            "| `listen` | string | `\"127.0.0.1:7070\"` | Address of the HTTP server. |",
            "| `max_live_runs` | integer | `2000` | Guests that are in memory",
            "### `[[bindings]]`",
            "| `id` | string | required | Names the binding;",
            "#### `[bindings.match]`",
            "#### `[[bindings.approvals]]`",
            "| `policy` | `\"allow\"` or `\"ask\"` or `\"deny\"` | required |",
            "| `durability` | `\"resume\"` or `\"retry\"` or `\"fail\"` | `\"resume\"` |",
            "`{ env = string }` or `{ file = string }`",
            "| `scopes` | list of `\"conversation\"` or `\"actor\"`",
        ] {
            assert!(text.contains(expected), "{expected}\nin\n{text}");
        }
        assert!(!text.contains("| any |"), "{text}");
    }

    #[test]
    fn every_key_says_what_it_means() {
        let undocumented: Vec<_> = ["|  |"]
            .iter()
            .flat_map(|empty| {
                config_reference().lines().filter(|line| line.ends_with(empty)).map(ToOwned::to_owned).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(undocumented, Vec::<String>::new());
    }
}
