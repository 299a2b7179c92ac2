//! Runs reach the outside: where they were granted it and nowhere else, with secrets that they never hold, and a request that
//! is finished is never made again, whatever becomes of the host.

use crate::support;

mod audit;
mod bounds;
mod grants;
mod killed;
mod replays;
mod secrets;
mod wasi;

use std::{fs, path::Path};

use agent_host_protocol::RunStatus;
use agent_host_tests::{OutsideServer, World, world::EndedRun};
use serde_json::{Value, json};

/// A configuration for `runner` (`outside/default`), which may reach `hosts`; `more` stands before its binding.
fn config(runner: &str, hosts: &[&str], more: &str) -> String {
    format!(
        "{more}\n[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/{runner}\"\nresources = {{ http_hosts = {} }}\n",
        json!(hosts)
    )
}

/// The rule that allows the server of the tests, which is on this machine.
const LOCAL: &str = "[egress]\nallow_addresses = [\"127.0.0.1\"]\n";

/// A host with the guest that sends requests; it may reach `outside`.
async fn world(outside: &OutsideServer, more: &str) -> World {
    world_of("outside/default", &[&outside.authority], &format!("{LOCAL}{more}")).await
}

async fn world_of(runner: &str, hosts: &[&str], more: &str) -> World {
    let component = runner.split('/').next().unwrap().replace('-', "_");
    World::from_text(&[&component], &config(runner, hosts, more), |_| {}).await
}

/// Takes steps in a run of their own, and gives what came of each.
async fn take(world: &World, steps: &str) -> Vec<Value> {
    outcomes(&world.say(steps).await)
}

#[track_caller]
fn outcomes(ended: &EndedRun) -> Vec<Value> {
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    serde_json::from_str(&ended.answer_text()).unwrap()
}

/// Holds a refusal against its two codes.
#[track_caller]
fn is_refused(outcome: &Value, code: &str, details_code: &str) {
    assert_eq!((&outcome["code"], &outcome["details_code"]), (&json!(code), &json!(details_code)), "{outcome:#}");
}

/// Panics where `mark` is in one of the files below a folder; gives how many there are.
#[track_caller]
fn is_in_no_file(mark: &str, dir: &Path) -> usize {
    let mut looked = 0;
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            looked += is_in_no_file(mark, &path);
            continue;
        }
        is_not_in(mark, &path.display().to_string(), &fs::read(&path).unwrap());
        looked += 1;
    }
    looked
}

#[track_caller]
fn is_not_in(mark: &str, what: &str, bytes: &[u8]) {
    if let Some(place) = bytes.windows(mark.len()).position(|window| window == mark.as_bytes()) {
        let around = String::from_utf8_lossy(&bytes[place.saturating_sub(200)..bytes.len().min(place + 100)]).into_owned();
        panic!("a secret is in {what}: …{around}…");
    }
}
