//! Components in a cluster: a run goes on with the one that it began with, whatever is in the plugins directory of the next host.

use std::{
    fs,
    time::{Duration, Instant},
};

use agent_host_tests::{Process, component, process::command, world::PATIENCE};
use serde_json::Value;

use crate::{
    cluster::{Member, World, is_numbered, is_over, types},
    postgres::free_port,
};

const GONE: &str = "components that no run needs were removed from the ledger";

fn steps(events: &[Value]) -> usize {
    types(events).iter().filter(|kind| **kind == "x.step").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_goes_on_at_a_host_without_its_component() {
    let world = &World::start().await;
    // Nothing is kept for longer than a second after it was needed, and is looked for every second.
    let config = "[retention]\njournals_ms = 1000\n[limits]\ngc_interval_ms = 1000\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let start = |dir| Member::start(dir, &world.url, free_port(), config);
    let first = start(Process::lay_out(&["steps"]));
    first.is_active();
    let (other, nothing) = (Process::lay_out(&[]), Process::lay_out(&[]));
    fs::copy(component("steps_next"), other.path().join("plugins").join("steps.wasm")).unwrap();

    // Its component stays, though the host looks several times for what is not needed any more.
    let run = first.send("say one; timer 4000; say two; await go; say three").await;
    first.until(&run, |events| steps(events) > 2).await;
    assert!(!first.log().contains(GONE), "{}", first.log());
    let second = start(other);
    let dir = first.kill();
    second.is_active();
    let resumed = |events: &[Value]| events.iter().filter(|event| event["data"]["reason"] == "resumed").count();
    second.until(&run, |events| resumed(events) == 1).await;
    // A new run has the build that is installed there.
    let fresh = second.send("say more").await;
    let said = second.until(&fresh, is_over).await;
    assert!(
        said.iter().any(|event| event["type"] == "message.completed" && event.to_string().contains("another version")),
        "{said:#?}"
    );
    assert!(second.log().contains("a run goes on with a component of the ledger"), "{}", second.log());

    // A host without any build of the plugin, then one that can end the run.
    let third = start(nothing);
    drop(second.kill());
    third.is_active();
    third.until(&run, |events| resumed(events) == 2).await;
    let first = start(dir);
    drop(third.kill());
    first.is_active();
    let go = first.send("set go yes").await;
    first.until(&go, is_over).await;
    let events = first.until(&run, is_over).await;
    is_numbered(&events);
    assert_eq!((types(&events).last(), steps(&events)), (Some(&"run.completed"), 5), "{events:#?}");

    // Nobody needs any of the builds.
    let began = Instant::now();
    while !first.log().contains(GONE) {
        assert!(began.elapsed() < PATIENCE, "{}", first.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let dir = first.terminate();
    let check = command(dir.path()).args(["ledger", "check", "--json"]).output().unwrap();
    assert!(check.status.success(), "{check:?}");
}

/// The content of a file is compared with its name before other hosts get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_component_is_not_put_into_the_ledger() {
    let world = &World::start().await;
    let config = "[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Member::start(Process::lay_out(&["steps"]), &world.url, free_port(), config);
    host.is_active();
    for file in fs::read_dir(host.dir.path().join("data").join("components")).unwrap() {
        fs::copy(component("steps_next"), file.unwrap().path()).unwrap();
    }
    let run = host.send("say one").await;
    let events = host.until(&run, is_over).await;
    assert_eq!(types(&events).last(), Some(&"run.completed"), "{events:#?}");
    assert!(host.log().contains("has another content"), "{}", host.log());
}
