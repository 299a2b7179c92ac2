//! The document against the router and the code.

use std::collections::BTreeSet;

use agent_host_protocol::Scope;
use serde_json::{Map, Value};

use super::*;
use crate::{http::ProblemCode, openapi::TAGS, routes::routes};

fn parsed() -> Value {
    serde_json::from_str(openapi()).unwrap()
}

/// Each operation with where it is: `GET /api/v1/runs`.
fn operations(document: &Value) -> Vec<(String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, operations): (&String, &Value)| {
        let operations = operations.as_object().unwrap().iter();
        operations.map(|(method, operation)| (format!("{} {path}", method.to_uppercase()), operation.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn objects<'a>(value: &'a Value, all: &mut Vec<&'a Map<String, Value>>) {
    match value {
        Value::Object(object) => {
            all.push(object);
            object.values().for_each(|value| objects(value, all));
        }
        Value::Array(items) => items.iter().for_each(|value| objects(value, all)),
        _ => {}
    }
}

/// The name of axum's fallback in the table of routes, besides `/`, which is a route.
const FALLBACK: &str = "/{*__private__axum_fallback}";

/// The debug form of the router is the only list of its routes: every path is there in quotes.
fn routed() -> BTreeSet<String> {
    let (router, _) = routes().split_for_parts();
    let printed = format!("{router:?}");
    printed.split('"').filter(|text| text.starts_with('/') && *text != FALLBACK).map(str::to_owned).collect()
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = parsed();
    let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let routed = routed();
    assert!(routed.contains("/api/v1/runs/{id}"), "the router does not say its paths any more: {routed:?}");
    assert_eq!(described, routed);
}

#[test]
fn every_audited_route_is_one() {
    let document = parsed();
    for (method, route, action) in crate::control_audit::AUDITED {
        let operation = &document["paths"][route][method.as_str().to_ascii_lowercase()];
        assert!(operation.is_object(), "{action}: there is no {method} {route}");
    }
}

#[test]
fn the_dialect_is_described_at_the_routes_of_its_table_and_nowhere_else() {
    let document = parsed();
    let takes = |operation: &Value| {
        let named = |parameter: &&Value| parameter["name"] == "dialect";
        operation["parameters"].as_array().map_or(0, |all| all.iter().filter(named).count())
    };
    let described: BTreeSet<String> =
        operations(&document).into_iter().filter(|(_, operation)| takes(operation) == 1).map(|(at, _)| at).collect();
    let table: BTreeSet<String> = crate::langbot::routes().map(|(method, path)| format!("{method} {path}")).collect();
    assert_eq!(described, table);
    assert!(operations(&document).iter().all(|(_, operation)| takes(operation) <= 1));
    let default =
        |at: &str| document.pointer(at).unwrap()["parameters"].as_array().unwrap().last().unwrap()["schema"]["default"].clone();
    assert_eq!(default("/paths/~1api~1v1~1runs/get"), "v1");
    assert_eq!(default("/paths/~1api~1v1~1pipeline~1queries/post"), "langbot-4.11");
    // The page of the dialect has a row for each.
    let page = include_str!("../../../../../docs/LANGBOT.md");
    for at in table {
        let short = at.replacen(" /api/v1", " ", 1).replace("{function}", "{action}");
        let last = short.rsplit('/').next().unwrap();
        assert!(page.contains(&format!("`{short}`")) || page.contains(&format!("`{last}`")), "{short} is not in docs/LANGBOT.md");
    }
}

#[test]
fn the_text_is_the_same_each_time() {
    let again = serde_json::to_value(routes().into_openapi()).map(tidy).unwrap();
    assert_eq!(openapi(), serde_json::to_string_pretty(&again).unwrap());
    let document = parsed();
    assert_eq!((&document["openapi"], &document["info"]["version"]), (&"3.1.0".into(), &env!("CARGO_PKG_VERSION").into()));
}

#[test]
fn every_operation_has_a_name_a_part_and_a_scope() {
    let document = parsed();
    let mut names = BTreeSet::new();
    for (at, operation) in operations(&document) {
        let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{at} has no name"));
        assert!(names.insert(name.to_owned()), "{at}: another operation is called {name}: rename the handler");
        let tags: Vec<&str> = operation["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap()).collect();
        assert!(matches!(tags[..], [tag] if TAGS.iter().any(|(known, _)| *known == tag)), "{at}: {tags:?}");
        let summary = operation["summary"].as_str().unwrap_or_else(|| panic!("{at}: its handler has no comment"));
        assert!(!summary.ends_with('.') && summary.len() <= 100, "{at}: its first line is a title: {summary}");
        let security = operation["security"].as_array().unwrap_or_else(|| panic!("{at} does not say who may"));
        for scope in security.iter().filter_map(|way| way.get("bearer")).flat_map(|scopes| scopes.as_array().unwrap()) {
            assert!(Scope::from_name(scope.as_str().unwrap()).is_some(), "{at}: there is no scope {scope}");
        }
        let statuses: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
        assert!(statuses.iter().any(|status| status.starts_with('2')), "{at}: {statuses:?}");
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    let document = parsed();
    let mut all = Vec::new();
    objects(&document, &mut all);
    let referred: BTreeSet<&str> = all.iter().filter_map(|object| object.get("$ref")?.as_str()).collect();
    for target in &referred {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target} is not there");
    }
    for part in ["schemas", "responses"] {
        for name in document["components"][part].as_object().unwrap().keys() {
            let target = format!("#/components/{part}/{name}");
            assert!(referred.contains(target.as_str()), "nothing refers to {target}");
        }
    }
}

#[test]
fn every_problem_code_is_there_with_its_meaning() {
    let document = parsed();
    let named: Vec<&str> = document["components"]["schemas"]["ProblemCode"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code.as_str().unwrap())
        .collect();
    assert_eq!(named, ProblemCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>());
    let mut documented = BTreeSet::new();
    for (at, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(response.pointer("/content/application~1problem+json").is_none(), "{at}: {status} is inline: {response}");
        }
        // The profile of one agent has codes of its own.
        let is_ours = operation["responses"]["400"]["$ref"] == "#/components/responses/BadRequest";
        for (status, codes) in operation["x-problem-codes"].as_object().into_iter().flatten().filter(|_| is_ours) {
            for code in codes.as_array().unwrap() {
                let code = ProblemCode::from_name(code.as_str().unwrap()).unwrap();
                assert_eq!(code.status().as_str(), status, "{at}");
                documented.insert(code.as_str());
            }
        }
    }
    for code in ProblemCode::ALL {
        assert!(code.description().len() > 10, "{code:?}");
        // A path that takes the method cannot refuse it, and a warm host has no operation.
        let of_no_operation = matches!(
            code,
            ProblemCode::MethodNotAllowed
                | ProblemCode::PartitionMoving
                | ProblemCode::PartitionUnreachable
                | ProblemCode::OutcomeUnknown
        );
        assert!(of_no_operation || documented.contains(code.as_str()), "no route gives {code:?}");
    }
}

#[test]
fn request_schemas_have_the_bounds_of_the_code() {
    let schemas = &parsed()["components"]["schemas"];
    // Members of a flattened type are members of the whole, which refuses others.
    let event = &schemas["EventWithRuns"];
    for member in ["event_id", "event_type", "runs"] {
        assert!(event["properties"].get(member).is_some(), "{event:#}");
    }
    assert_eq!(schemas["Envelope"]["additionalProperties"], false);
    assert_eq!(schemas["Envelope"]["required"], serde_json::json!(["event_type"]));
    assert_eq!(schemas["Timestamp"]["maximum"], u64::MAX);
    assert_eq!(schemas["Run"]["properties"]["attempt"]["maximum"], u32::MAX);
}
