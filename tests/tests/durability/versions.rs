//! Runners come and go; a run ends with the one that it began with.

use std::{
    fs,
    time::{Duration, Instant},
};

use agent_host_tests::{component, world::PATIENCE};

use crate::support::Host;

const STEPS: &str = "say one; await go; say two";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_goes_on_with_the_version_that_it_began_with() {
    let mut host = Host::steps("");
    let begun = host.send_in("c", STEPS).await;
    // Created for the same version, and it has not begun when the host dies.
    let waiting = host.send_in("c", "say three").await;
    host.until_step(&begun, "say one").await;
    host.until_status(&waiting, "queued").await;
    host.kill();
    fs::copy(component("steps_next"), host.dir().join("plugins").join("steps.wasm")).unwrap();
    host.revive();
    // A new run uses the present component.
    let fresh = host.send("set go yes").await;
    assert_eq!(host.ended(&fresh).await.completed().message_texts(), ["another version"]);
    assert_eq!(host.run(&begun).await["status"], "running");

    host.kill();
    fs::copy(component("steps"), host.dir().join("plugins").join("steps.wasm")).unwrap();
    host.revive();
    host.take("set go yes").await;
    host.kill();
    fs::copy(component("steps_next"), host.dir().join("plugins").join("steps.wasm")).unwrap();
    host.revive();
    let ended = host.ended(&begun).await.completed();
    assert_eq!(ended.outcomes().len(), 3, "{ended}");
    let ended = host.ended(&waiting).await.completed();
    assert_eq!(ended.outcomes(), ["three"], "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_goes_on_though_its_plugin_is_gone() {
    let mut host = Host::steps("");
    let begun = host.send("say one; timer 3000; say two").await;
    host.until_step(&begun, "say one").await;
    host.kill();
    fs::remove_file(host.dir().join("plugins").join("steps.wasm")).unwrap();
    host.revive();
    let ended = host.ended(&begun).await.completed();
    assert_eq!((ended.message_texts().first(), ended.resumes()), (Some(&"one"), 1), "{ended}");
    assert_eq!(ended.outcomes().len(), 3);
    let fresh = host.send("say three").await;
    host.ended(&fresh).await.failed("runner_not_found");
    host.check();
}

/// Builds that no run needs are removed after their time; that of a parked run stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_component_of_a_parked_run_stays_and_others_go() {
    let config = "[retention]\njournals_ms = 1000\n[limits]\ngc_interval_ms = 1000\npark_after_ms = 300\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let host = Host::limited(&["steps"], config);
    let (plugin, kept) = (host.dir().join("plugins").join("steps.wasm"), host.dir().join("data").join("components"));
    let count = async |expect: usize| {
        let began = Instant::now();
        while fs::read_dir(&kept).unwrap().count() != expect {
            assert!(began.elapsed() < PATIENCE, "{:?}", fs::read_dir(&kept).unwrap().collect::<Vec<_>>());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let begun = host.send("say one; timer 9000; say two").await;
    host.until_step(&begun, "say one").await;
    fs::copy(component("steps_next"), &plugin).unwrap();
    count(2).await;
    fs::remove_file(&plugin).unwrap();
    count(1).await;
    assert_eq!(host.run(&begun).await["status"], "waiting");
    let ended = host.ended(&begun).await.completed();
    assert_eq!(ended.outcomes().len(), 3, "{ended}");
    count(0).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_whose_component_is_lost_altogether_says_so() {
    let mut host = Host::steps("");
    let begun = host.send("say one; await go; say two").await;
    host.until_step(&begun, "say one").await;
    host.kill();
    fs::remove_file(host.dir().join("plugins").join("steps.wasm")).unwrap();
    let kept = host.dir().join("data").join("components");
    let files: Vec<_> = fs::read_dir(&kept).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty(), "components are kept in {}", kept.display());
    // As a disk does it: the bytes are others than the name says.
    for file in files {
        fs::copy(component("steps_next"), file).unwrap();
    }
    host.revive();
    let ended = host.ended(&begun).await.failed("runner_not_found");
    assert!(ended.run["failure"]["message"].as_str().unwrap().contains("plugin:test/steps/default"), "{ended}");
    host.check();
}
