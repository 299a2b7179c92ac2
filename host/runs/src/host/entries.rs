//! The kinds of entries of a ledger, and where a cluster keeps each: for a ledger that is imported.

use agent_host_ledger::EntryPlace;
use agent_host_protocol::RunId;
use serde::Deserialize;

use crate::{
    intake::{create, delivery, import, scheduler},
    lifecycle::{components, dead_letters, executors, lease},
    policy::{key_limits, keys},
};

/// The members of an entry that say where it is.
#[derive(Deserialize)]
struct EntryHead {
    #[serde(default)]
    run_id: Option<RunId>,
    #[serde(default)]
    workspace: Option<String>,
}

/// The place of an entry, by its key and its JSON. `None` for an entry of no known kind, or that cannot be read.
#[must_use]
pub fn place_of_entry(key: &str, value: &str) -> Option<EntryPlace> {
    let head = || serde_json::from_str::<EntryHead>(value).ok();
    let is = |kind: &str| key.starts_with(kind);
    // Each partition knows leases that were given before; of schedules it forgets those that are not its own.
    if key == lease::ENTRY || is(scheduler::ENTRIES) {
        Some(EntryPlace::Everywhere)
    // Components are storage of no workspace.
    } else if is(keys::ENTRIES) || is(key_limits::ENTRIES) || is(components::ENTRIES) {
        Some(EntryPlace::First)
    } else if is(delivery::ENTRIES) {
        Some(EntryPlace::OfRun(delivery::parse_key(key)?.0))
    } else if let Some(run_id) = key.strip_prefix(dead_letters::DEAD) {
        Some(EntryPlace::OfRun(run_id.parse().ok()?))
    } else if is(create::CREATED) {
        Some(EntryPlace::OfRun(head()?.run_id?))
    } else if is(import::ENTRIES) {
        Some(EntryPlace::OfRun(serde_json::from_str(value).ok()?))
    } else if is(executors::ENTRIES) {
        Some(head()?.workspace.map_or(EntryPlace::Everywhere, |workspace| EntryPlace::OfWorkspace(Some(workspace))))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_entry_has_its_place() {
        let run_id = RunId::new();
        let of_run = Some(EntryPlace::OfRun(run_id));
        let workspace = |name: &str| Some(EntryPlace::OfWorkspace(Some(name.to_owned())));
        for (key, value, expect) in [
            ("key/0123".to_owned(), r#"{"key_id":"0123","workspace":"acme"}"#.to_owned(), Some(EntryPlace::First)),
            ("key-usage/0123".to_owned(), "{}".to_owned(), Some(EntryPlace::First)),
            ("component/sha256:00".to_owned(), "1".to_owned(), Some(EntryPlace::First)),
            ("secret/lease".to_owned(), r#""abc""#.to_owned(), Some(EntryPlace::Everywhere)),
            ("schedule/nightly".to_owned(), "{}".to_owned(), Some(EntryPlace::Everywhere)),
            (format!("delivery/{run_id}/hook"), "{}".to_owned(), of_run.clone()),
            (format!("dead/{run_id}"), "{}".to_owned(), of_run.clone()),
            ("created/acme/key".to_owned(), format!(r#"{{"run_id":"{run_id}"}}"#), of_run.clone()),
            ("import/mcp/0123".to_owned(), format!(r#""{run_id}""#), of_run),
            ("executor/0123".to_owned(), r#"{"executor_id":"0123","workspace":"acme"}"#.to_owned(), workspace("acme")),
            ("executor/0123".to_owned(), r#"{"executor_id":"0123"}"#.to_owned(), Some(EntryPlace::Everywhere)),
            ("created/acme/key".to_owned(), "{}".to_owned(), None),
            ("other/0123".to_owned(), "{}".to_owned(), None),
        ] {
            assert_eq!(place_of_entry(&key, &value), expect, "{key}");
        }
    }
}
