//! Interfaces of messages and tool calls: schemas of version 2.0, checked before a client draws them, and hints that become one.
//!
//! A schema is written by a runner, and perhaps by its model: it has components that clients know, a bounded size, and addresses
//! that run nothing.

use agent_host_protocol::encoded::json_len;
use serde_json::{Map, Value, json};

/// The one version.
const VERSION: &str = "2.0";
/// Largest schema, in bytes of JSON: as a result of a runner.
const MAX_BYTES: usize = 32 * 1024;
/// Levels of components within each other.
const MAX_LEVELS: usize = 12;
/// Components of one schema: a page, and no application.
const MAX_NODES: usize = 500;
/// Entries of a hint that is a list.
const MAX_ENTRIES: usize = 50;

const STATUSES: [&str; 5] = ["info", "success", "warning", "error", "pending"];
const THEMES: [&str; 3] = ["default", "light", "dark"];
const ROLES: [&str; 4] = ["title", "subtitle", "body", "caption"];

/// A component: its type, members that it must have as texts, and members that have one of these values.
struct Component {
    name: &'static str,
    texts: &'static [&'static str],
    choices: &'static [(&'static str, &'static [&'static str])],
    /// True if the member `children` has components.
    has_children: bool,
}

const COMPONENTS: [Component; 7] = [
    Component {
        name: "stack",
        texts: &[],
        choices: &[("appearance", &["plain", "card"]), ("direction", &["vertical", "horizontal"])],
        has_children: true,
    },
    Component { name: "text", texts: &["content"], choices: &[("role", &ROLES)], has_children: false },
    Component { name: "badge", texts: &["label"], choices: &[("status", &STATUSES)], has_children: false },
    Component { name: "field", texts: &["label", "content"], choices: &[], has_children: false },
    Component { name: "link", texts: &["label", "url"], choices: &[], has_children: false },
    Component { name: "image", texts: &["url"], choices: &[], has_children: false },
    Component { name: "divider", texts: &[], choices: &[], has_children: false },
];

/// Checks a schema.
///
/// # Errors
/// Fails with the place and the problem.
pub(crate) fn check(schema: &Map<String, Value>) -> Result<(), String> {
    if schema.get("version").and_then(Value::as_str) != Some(VERSION) {
        return Err(format!("`version` must be \"{VERSION}\""));
    }
    let bytes = json_len(schema);
    if bytes > MAX_BYTES {
        return Err(format!("the schema has {bytes} bytes; there may be {MAX_BYTES}"));
    }
    if schema.get("locale").is_some_and(|locale| !locale.is_string()) {
        return Err("`locale` must be a text".to_owned());
    }
    choice(schema, "status", &STATUSES, "")?;
    choice(schema, "theme", &THEMES, "")?;
    let root = schema.get("root").ok_or("`root` is missing")?;
    node(root, "root", MAX_LEVELS, &mut 0)
}

fn node(value: &Value, at: &str, levels: usize, count: &mut usize) -> Result<(), String> {
    let Some(members) = value.as_object() else { return Err(format!("`{at}` must be an object")) };
    *count += 1;
    if *count > MAX_NODES {
        return Err(format!("the schema has more than {MAX_NODES} components"));
    }
    let Some(left) = levels.checked_sub(1) else {
        return Err(format!("`{at}` is nested in more than {MAX_LEVELS} components"));
    };
    let name = members.get("type").and_then(Value::as_str).unwrap_or_default();
    let component = COMPONENTS.iter().find(|component| component.name == name).ok_or_else(|| {
        let known = COMPONENTS.map(|component| component.name).join("`, `");
        format!("`{at}.type` must be `{known}`")
    })?;
    for text in component.texts {
        let Some(given) = members.get(*text).and_then(Value::as_str) else { return Err(format!("`{at}.{text}` must be a text")) };
        if *text == "url" && !is_safe(given) {
            return Err(format!("`{at}.url` must begin with `https://`, or with `/api/v1/`"));
        }
    }
    for (member, values) in component.choices {
        choice(members, member, values, at)?;
    }
    match members.get("children") {
        None => Ok(()),
        Some(Value::Array(children)) if component.has_children => {
            let mut numbered = children.iter().enumerate();
            numbered.try_for_each(|(place, child)| node(child, &format!("{at}.children[{place}]"), left, count))
        }
        Some(_) => Err(format!("`{at}.children` must be a list, and `{name}` must be `stack`")),
    }
}

fn choice(members: &Map<String, Value>, name: &str, values: &[&str], at: &str) -> Result<(), String> {
    let Some(given) = members.get(name) else { return Ok(()) };
    if given.as_str().is_some_and(|given| values.contains(&given)) {
        return Ok(());
    }
    let place = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    Err(format!("`{place}` must be `{}`", values.join("`, `")))
}

/// True if a page may link to an address: neither a script nor a place inside of a network.
fn is_safe(url: &str) -> bool {
    !url.chars().any(char::is_control) && (url.starts_with("https://") || url.starts_with("/api/v1/"))
}

/// The schema of hints: what an agent says of its answer, as a card. `status` (default `info`), `title`, `body`, `label` of the badge
/// (the status in capitals), `fields` (an object of texts, numbers and booleans), `links` (a list of `label` and `url`), `locale` and
/// `theme`.
///
/// # Errors
/// Fails with the problem.
pub(crate) fn compile(hints: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let text = |name: &str| match hints.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("`{name}` must be a text")),
    };
    let status = text("status")?.unwrap_or_else(|| "info".to_owned());
    let mut children = Vec::new();
    children.extend(text("title")?.map(|title| json!({ "type": "text", "content": title, "role": "title" })));
    if hints.contains_key("status") || hints.contains_key("label") {
        let label = text("label")?.unwrap_or_else(|| status.to_uppercase());
        children.push(json!({ "type": "badge", "label": label, "status": status }));
    }
    children.extend(text("body")?.map(|body| json!({ "type": "text", "content": body, "role": "body" })));
    match hints.get("fields") {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) if fields.len() <= MAX_ENTRIES => {
            for (label, value) in fields {
                let content = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) => value.to_string(),
                    _ => return Err(format!("`fields` has `{label}`, which must be a text, a number or a boolean")),
                };
                children.push(json!({ "type": "field", "label": label, "content": content }));
            }
        }
        Some(_) => return Err(format!("`fields` must be an object with at most {MAX_ENTRIES} members")),
    }
    match hints.get("links") {
        None | Some(Value::Null) => {}
        Some(Value::Array(links)) if links.len() <= MAX_ENTRIES => {
            let link = |link: &Value| json!({ "type": "link", "label": link.get("label"), "url": link.get("url") });
            children.extend(links.iter().map(link));
        }
        Some(_) => return Err(format!("`links` must be a list with at most {MAX_ENTRIES} entries")),
    }
    if children.is_empty() {
        return Err("the hints have neither `title`, `status`, `label`, `body`, `fields` nor `links`".to_owned());
    }
    let schema = json!({
        "version": VERSION,
        "locale": text("locale")?.unwrap_or_else(|| "und".to_owned()),
        "status": status,
        "theme": text("theme")?.unwrap_or_else(|| "default".to_owned()),
        "root": { "type": "stack", "appearance": "card", "children": children },
    });
    let Value::Object(schema) = schema else { return Err("the hints give no schema".to_owned()) };
    check(&schema).map(|()| schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn with_root(root: Value) -> Result<(), String> {
        check(&object(json!({ "version": "2.0", "root": root })))
    }

    #[test]
    fn the_example_of_the_profile_is_a_schema() {
        let example = json!({
            "version": "2.0", "locale": "zh-CN", "status": "success", "theme": "default",
            "root": { "type": "stack", "appearance": "card", "children": [
                { "type": "text", "content": "日程已创建", "role": "title" },
                { "type": "badge", "label": "SUCCESS", "status": "success" },
                { "type": "text", "content": "您的会议日程创建成功", "role": "body" },
            ] },
        });
        assert_eq!(check(&object(example.clone())), Ok(()));
        // And hints become it.
        let hints = json!({ "locale": "zh-CN", "status": "success", "title": "日程已创建", "body": "您的会议日程创建成功" });
        assert_eq!(Value::Object(compile(&object(hints)).unwrap()), example);
    }

    #[test]
    fn what_is_no_schema_is_refused_with_its_place() {
        let text = json!({ "type": "text", "content": "x" });
        let nested = |levels: usize| (0..levels).fold(text.clone(), |child, _| json!({ "type": "stack", "children": [child] }));
        assert_eq!(with_root(nested(MAX_LEVELS - 1)), Ok(()));
        for (root, says) in [
            (json!(null), "`root` must be an object"),
            (json!({ "type": "script", "content": "x" }), "`root.type`"),
            (json!({ "type": "text" }), "`root.content`"),
            (json!({ "type": "text", "content": 1 }), "`root.content`"),
            (json!({ "type": "text", "content": "x", "role": "h1" }), "`root.role`"),
            (json!({ "type": "text", "content": "x", "children": [] }), "`root.children`"),
            (json!({ "type": "stack", "children": [{ "type": "badge" }] }), "`root.children[0].label`"),
            (json!({ "type": "badge", "label": "x", "status": "good" }), "`root.status`"),
            (json!({ "type": "link", "label": "x", "url": "javascript:alert(1)" }), "`root.url`"),
            (json!({ "type": "image", "url": "http://169.254.169.254/" }), "`root.url`"),
            (json!({ "type": "text", "content": "x".repeat(MAX_BYTES) }), "bytes"),
            (nested(MAX_LEVELS), "nested"),
            (json!({ "type": "stack", "children": vec![json!({ "type": "divider" }); MAX_NODES] }), "components"),
        ] {
            let problem = with_root(root.clone()).expect_err(says);
            assert!(problem.contains(says), "{problem}");
        }
        for (schema, says) in [
            (json!({ "root": text }), "version"),
            (json!({ "version": "1.0", "root": text }), "version"),
            (json!({ "version": "2.0" }), "root"),
            (json!({ "version": "2.0", "status": "great", "root": text }), "status"),
            (json!({ "version": "2.0", "theme": "blue", "root": text }), "theme"),
        ] {
            assert!(check(&object(schema)).unwrap_err().contains(says), "{says}");
        }
    }

    #[test]
    fn hints_are_checked_as_schemas_are() {
        let full = json!({ "title": "T", "status": "error", "label": "Late", "fields": { "n": 1, "on": true, "s": "x" },
            "links": [{ "label": "More", "url": "https://a.example" }] });
        let schema = compile(&object(full)).unwrap();
        assert_eq!(schema["root"]["children"].as_array().unwrap().len(), 6);
        assert_eq!(schema["root"]["children"][1]["label"], "Late");
        for (hints, says) in [
            (json!({}), "neither"),
            (json!({ "title": 1 }), "`title`"),
            (json!({ "title": "T", "status": "great" }), "status"),
            (json!({ "fields": { "a": [] } }), "`a`"),
            (json!({ "fields": [] }), "`fields`"),
            (json!({ "links": [{ "label": "x", "url": "data:text/html,x" }] }), "url"),
            (json!({ "links": [{}] }), "label"),
        ] {
            assert!(compile(&object(hints)).unwrap_err().contains(says), "{says}");
        }
    }
}
