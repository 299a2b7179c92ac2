//! The plugins directory: what is admitted, what is refused and why, and what happens when files change.

use std::{fs, time::Duration};

use agent_host_protocol::{ImportVerdict, Limits, PluginReport, PluginStatus, RefusalCode, RunStatus, event::Envelope};
use agent_host_tests::{
    World, component,
    world::{PATIENCE, bound, limits},
};

const ECHO: &str = "plugin:agent-host/echo/default";

fn refused(world: &World, file: &str) -> (RefusalCode, PluginReport) {
    let report = world.report(file).unwrap_or_else(|| panic!("{file} is not reported: {:#?}", world.host.plugins()));
    assert_eq!(report.status, PluginStatus::Refused, "{report:#?}");
    let refusal = report.refusal.clone().unwrap();
    assert!(!refusal.message.is_empty() && !refusal.fix.is_empty(), "{refusal:?}");
    (refusal.code, report)
}

/// Waits until the watched directory shows what it should.
async fn until(world: &World, file: &str, shown: impl Fn(Option<&PluginReport>) -> bool) {
    let shows = async {
        while !shown(world.report(file).as_ref()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shows)
        .await
        .unwrap_or_else(|_| panic!("{file} never became what it should: {:#?}", world.report(file)));
}

#[tokio::test]
async fn every_component_that_cannot_be_admitted_says_why() {
    let guests = [
        ("manifest_loops", RefusalCode::ManifestFailed),
        ("manifest_grows", RefusalCode::ManifestFailed),
        ("manifest_traps", RefusalCode::ManifestFailed),
        ("manifest_bad_name", RefusalCode::ManifestInvalid),
        ("manifest_bad_version", RefusalCode::ManifestInvalid),
        ("manifest_bad_json", RefusalCode::ManifestInvalid),
        ("manifest_none", RefusalCode::ManifestInvalid),
        ("manifest_many_hosts", RefusalCode::ManifestInvalid),
        ("manifest_undeclared", RefusalCode::UndeclaredImport),
        ("unknown_import", RefusalCode::UnknownImport),
        ("newer_minor", RefusalCode::ImportMismatch),
        ("wrong_world", RefusalCode::WrongWorld),
    ];
    let mut names: Vec<_> = guests.iter().map(|(name, _)| *name).collect();
    names.push("echo");
    let world = World::with(&names, Limits { manifest_ms: 1_000, ..limits() }, vec![bound(ECHO)]).await;
    for (name, code) in guests {
        let (found, report) = refused(&world, &format!("{name}.wasm"));
        assert_eq!(found, code, "{name}: {report:#?}");
    }
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed, "the good one beside them serves");

    let verdict = |file: &str, import: &str| {
        let imports = world.report(file).unwrap().imports;
        let report = imports.into_iter().find(|report| report.name.contains(import)).unwrap();
        assert!(report.verdict.is_fine() || report.fix.is_some(), "{report:?}");
        report.verdict
    };
    assert_eq!(verdict("manifest_undeclared.wasm", "agent-host:runner/state@"), ImportVerdict::Undeclared);
    assert_eq!(verdict("unknown_import.wasm", "example:unknown/thing"), ImportVerdict::Unknown);
    assert_eq!(verdict("newer_minor.wasm", "log@1.1.0"), ImportVerdict::NewerVersion);
    assert_eq!(verdict("echo.wasm", "agent-host:runner/history@"), ImportVerdict::Provided);
    assert_eq!(verdict("echo.wasm", "wasi:cli/"), ImportVerdict::Inert);
}

#[tokio::test]
async fn files_that_are_no_components_say_why() {
    let world = World::with(&["echo"], Limits { component_bytes: 1024 * 1024, ..limits() }, vec![bound(ECHO)]).await;
    let echo = fs::read(component("echo")).unwrap();
    let noise: Vec<u8> = (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let files: [(&str, Vec<u8>, RefusalCode); 6] = [
        ("empty.wasm", vec![], RefusalCode::NotWasm),
        ("noise.wasm", noise.clone(), RefusalCode::NotWasm),
        ("noise_behind_a_header.wasm", [b"\0asm\x0d\0\x01\0".as_slice(), &noise].concat(), RefusalCode::NotWasm),
        ("module.wasm", b"\0asm\x01\0\0\0".to_vec(), RefusalCode::CoreModule),
        ("cut.wasm", echo[..echo.len() / 2].to_vec(), RefusalCode::NotWasm),
        ("large.wasm", vec![0; 1024 * 1024 + 1], RefusalCode::TooLarge),
    ];
    for (name, bytes, _) in &files {
        fs::write(world.plugin(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink(component("echo"), world.plugin("link.wasm")).unwrap();
    fs::create_dir(world.plugin("folder.wasm")).unwrap();
    fs::write(world.plugin("readme.txt"), "not looked at").unwrap();
    fs::write(world.plugin(".hidden.wasm"), "not looked at").unwrap();
    for (name, _, code) in &files {
        until(&world, name, |report| report.is_some()).await;
        assert_eq!(refused(&world, name).0, *code, "{name}");
        assert!(world.plugin(name).exists(), "a refused file stays where it is");
    }
    for name in ["link.wasm", "folder.wasm"] {
        until(&world, name, |report| report.is_some()).await;
        assert_eq!(refused(&world, name).0, RefusalCode::Unreadable, "{name}");
    }
    assert!(world.report("readme.txt").is_none() && world.report(".hidden.wasm").is_none());
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_component_cut_anywhere_is_refused_and_harms_nobody() {
    let echo = fs::read(component("echo")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.wasm");
    // Every byte of the beginning, where the sections are, then in steps.
    let places = (0..200).chain((200..echo.len()).step_by(4099));
    for place in places {
        fs::write(&file, &echo[..place]).unwrap();
        let report = agent_host_runs::inspect(&file, &limits()).await.unwrap();
        assert_eq!(report.status, PluginStatus::Refused, "cut at {place}: {report:#?}");
    }
}

#[tokio::test]
async fn a_dropped_file_is_live_and_a_removed_one_is_gone() {
    let world = World::new(&[], ECHO).await;
    let ended = world.say("hi").await;
    assert_eq!(
        (ended.run.status, ended.failure()),
        (RunStatus::Failed, "runner_not_found"),
        "an event that nobody can answer leaves a trace"
    );

    fs::copy(component("echo"), world.plugin("echo.wasm")).unwrap();
    until(&world, "echo.wasm", |report| report.is_some_and(|report| report.status == PluginStatus::Ready)).await;
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);

    fs::remove_file(world.plugin("echo.wasm")).unwrap();
    until(&world, "echo.wasm", |report| report.is_none()).await;
    assert_eq!(world.say("hi").await.failure(), "runner_not_found");
}

#[tokio::test]
async fn a_replaced_file_serves_new_runs_and_the_old_ones_end_on_the_old_code() {
    let world = World::new(&["hostile"], "plugin:test/hostile/default").await;
    let old = world.report("hostile.wasm").unwrap().digest;
    let running = world.send(Envelope::message("sleep 2000", "api")).await;
    while world.host.ledger().run(running).unwrap().unwrap().run.started_at.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The same component with another byte at its end: a custom section that means nothing.
    let mut other = fs::read(component("hostile")).unwrap();
    other.extend([0, 2, 1, b'x']);
    fs::write(world.plugin("hostile.wasm"), other).unwrap();
    until(&world, "hostile.wasm", |report| {
        report.is_some_and(|report| report.digest != old && report.status == PluginStatus::Ready)
    })
    .await;

    let digest = |id| {
        let terms = world.host.ledger().terms(id).unwrap().unwrap();
        let terms: serde_json::Value = serde_json::from_str(terms.get()).unwrap();
        terms["grant"]["component"].as_str().map(str::to_owned)
    };
    let new = world.say("ok new").await;
    assert_ne!(digest(new.run.run_id), old);
    let ended = world.ended(running).await;
    assert!(ended.answer_text().starts_with("ok slept"), "{ended:#?}");
    assert_eq!(digest(running), old);
}

#[tokio::test]
async fn a_replacement_that_is_refused_leaves_the_old_version_serving() {
    let world = World::new(&["echo"], ECHO).await;
    fs::write(world.plugin("echo.wasm"), "half of a file").unwrap();
    until(&world, "echo.wasm", |report| report.is_some_and(|report| report.refusal.is_some())).await;
    let (code, report) = refused(&world, "echo.wasm");
    assert_eq!((code, report.serves_previous), (RefusalCode::NotWasm, true));
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn of_two_plugins_with_one_id_the_first_serves_until_it_goes() {
    let world = World::new(&["echo", "manifest_twin"], ECHO).await;
    let (code, report) = refused(&world, "manifest_twin.wasm");
    assert_eq!(code, RefusalCode::DuplicateRunner);
    assert!(report.refusal.unwrap().message.contains("echo.wasm"), "it says who has the id");
    assert_eq!(world.report("echo.wasm").unwrap().status, PluginStatus::Ready);

    fs::remove_file(world.plugin("echo.wasm")).unwrap();
    until(&world, "manifest_twin.wasm", |report| report.is_some_and(|report| report.status == PluginStatus::Ready)).await;
}

#[tokio::test]
async fn compiled_code_is_kept_and_only_the_hosts_own_is_loaded() {
    let world = World::new(&["echo"], ECHO).await;
    assert!(!world.report("echo.wasm").unwrap().from_cache);
    let world = world.restarted(limits(), vec![bound(ECHO)]).await;
    assert!(world.report("echo.wasm").unwrap().from_cache);
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);

    let code = fs::read_dir(world.dir.path().join("data/code"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "code"))
        .unwrap();
    let mut bytes = fs::read(&code).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&code, bytes).unwrap();
    let world = world.restarted(limits(), vec![bound(ECHO)]).await;
    assert!(!world.report("echo.wasm").unwrap().from_cache, "changed code was loaded");
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn one_component_may_hold_several_runners() {
    let world = World::with(&["two_runners"], limits(), vec![bound("plugin:test/two-runners/alpha")]).await;
    let report = world.report("two_runners.wasm").unwrap();
    let names: Vec<_> = report.runners.iter().map(|runner| runner.name.as_str()).collect();
    assert_eq!(names, ["alpha", "beta"], "{report:#?}");
}

#[tokio::test]
async fn a_configuration_that_does_not_fit_the_form_fails_the_run_and_says_how() {
    let id = "plugin:test/configured/default";
    let with = |config: serde_json::Value| {
        let mut binding = bound(id);
        binding.config = config.as_object().unwrap().clone();
        binding
    };
    let world = World::with(&["configured"], limits(), vec![with(serde_json::json!({ "count": "three", "mood": 1 }))]).await;
    let ended = world.say("hi").await;
    assert_eq!(ended.failure(), "invalid_config");
    let message = ended.run.failure.unwrap().message;
    assert!(["`name`", "`count`", "`mood`"].iter().all(|key| message.contains(key)), "{message}");
    assert!(!world.host.bindings()[0].ready);

    let world = world.restarted(limits(), vec![with(serde_json::json!({ "name": "x" }))]).await;
    let ended = world.say("hi").await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    let context = world.host.ledger().context(ended.run.run_id).unwrap().unwrap();
    let context: serde_json::Value = serde_json::from_str(context.get()).unwrap();
    assert_eq!(context["config"]["count"], 3, "defaults of the form are filled in");
}
