//! A guest that is executed again sees what it saw: the world, its memory, the artifacts that it was at.

use std::time::{Duration, Instant};

use agent_host_ledger::RunWrite;
use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json, value::RawValue};

use crate::support::{EndedRun, Host};

/// As the guest makes it (`tests/guests/examples/deterministic.rs`).
fn digest(before: u64, text: &str) -> u64 {
    text.bytes().fold(before, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn time_chance_and_the_order_of_hash_maps_are_the_same_when_a_run_comes_back() {
    let config = "[[bindings]]\nid = \"d\"\nrunner = \"plugin:test/deterministic/default\"\n";
    let mut host = Host::start(&["deterministic"], config);
    let run = host.send("12 200").await;
    for step in [2, 5, 6, 9] {
        host.until(&run, |event| event["data"]["step"] == step).await;
        host.kill_and_revive();
    }
    let ended = host.ended(&run).await.completed();
    assert!(ended.resumes() >= 1 && ended.resumes() <= 4, "{ended}");

    let looks = ended.of("x.seen");
    assert_eq!(looks.len(), 12, "{ended}");
    let mut state = 0xcbf2_9ce4_8422_2325;
    for look in &looks {
        // Made of all that the guest remembers: of every look before, whichever execution it was first seen by.
        state = digest(state, &look["seen"].to_string());
        assert_eq!(look["digest"], format!("{state:016x}"), "the guest remembers something else: {ended}");
    }
    assert_eq!(ended.message_texts(), [format!("{state:016x}")]);

    // Time and random values differ all the same.
    let all = |field: &str| looks.iter().map(|look| look["seen"][field].clone()).collect::<Vec<_>>();
    for field in ["wall_ns", "elapsed_ns", "timers_now"] {
        let times: Vec<_> = all(field).iter().map(|time| time.as_u64().unwrap()).collect();
        let unit = if field == "timers_now" { 1 } else { 1_000_000 };
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 200 * unit), "{field} does not pass: {times:?}");
    }
    for field in ["random", "random_bytes", "insecure", "insecure_bytes"] {
        let mut values: Vec<_> = all(field).iter().map(Value::to_string).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), looks.len(), "{field} is no chance");
    }
    assert_eq!(all("counted"), (1..=12).map(Value::from).collect::<Vec<_>>(), "{ended}");
    assert!(all("refused").iter().all(Value::is_null), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_resumed_run_reads_the_values_of_before() {
    let mut host = Host::steps("");
    host.take("set k one; store k one").await;
    let run = host.send("get k; load k; say read; await go; get k; load k").await;
    host.until_step(&run, "say read").await;
    host.kill_and_revive();
    host.until(&run, |event| event["data"]["reason"] == "resumed").await;
    host.take("set k two; store k two").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    assert_eq!((&seen[0], &seen[1]), (&json!("\"one\""), &json!("one")), "{ended}");
    assert_eq!((&seen[4], &seen[5]), (&json!("\"two\""), &json!("two")), "{ended}");
    assert_eq!(ended.resumes(), 2);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn values_that_a_run_has_read_are_kept_for_its_replay() {
    let config = "[limits]\nmax_live_runs = 50\ngc_interval_ms = 1000\nartifact_unreferenced_ms = 1\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let mut host = Host::limited(&["steps"], config);
    host.take("fill b 3000000; fill-state b 200000").await;
    let run = host.send("weigh b; weigh-state b; say read; await go; weigh b; weigh-state b").await;
    host.until_step(&run, "say read").await;
    host.kill_and_revive();
    host.take("fill b 1; fill-state b 2; sleep 3000").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    let b = u64::from(b'b');
    // The state has its quotation marks.
    let quotes = 2 * u64::from(b'"');
    let seen = ended.outcomes();
    assert_eq!(seen[0], json!([3_000_000, 3_000_000 * b]), "{ended}");
    assert_eq!(seen[1], json!([200_002, 200_000 * b + quotes]), "{ended}");
    assert_eq!(seen[4], json!([1, b]), "{ended}");
    assert_eq!(seen[5], json!([4, 2 * b + quotes]), "{ended}");
    assert_eq!(ended.resumes(), 2, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_artifact_that_was_half_written_is_written_to_its_end() {
    let mut host = Host::steps("");
    let run = host.send("create; write ab 40000; write c 5; say half; await go; write xy 40000; finish; open; rest").await;
    host.until_step(&run, "say half").await;
    host.kill_and_revive();
    host.kill_and_revive();
    // The run is executed again, and what it has written is on disk, not in memory.
    let unfinished = host.dir().join("data/ledger/blobs/tmp");
    let size = || std::fs::read_dir(&unfinished).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>();
    let began = Instant::now();
    while size() != 80_005 {
        assert!(began.elapsed() < PATIENCE, "{} bytes are on disk", size());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    let whole = format!("{}ccccc{}", "ab".repeat(40_000), "xy".repeat(40_000));
    assert_eq!(seen[6]["size"], whole.len(), "{ended}");
    assert_eq!(seen[8], json!([whole.len(), whole.bytes().map(u64::from).sum::<u64>()]), "{ended}");
    let id = seen[6]["artifact_id"].as_str().unwrap();
    assert!(host.bytes(&format!("/api/v1/artifacts/{id}")).await == whole.as_bytes(), "its content is another");
    assert_eq!(ended.of("artifact.created").len(), 1, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_artifact_that_was_half_read_is_read_on() {
    let mut host = Host::steps("");
    let run = host.send("create; write ab 90000; finish; open; read 100; read 70001; say half; await go; read 7; rest").await;
    host.until_step(&run, "say half").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    let whole = "ab".repeat(90_000);
    let part = |from: usize, to: usize| {
        let part = &whole.as_bytes()[from..to];
        json!([part.len(), part.iter().map(|byte| u64::from(*byte)).sum::<u64>()])
    };
    let seen = ended.outcomes();
    assert_eq!(seen[4], part(0, 100), "{ended}");
    // A read gives at most what was asked for, and may give less.
    let second = seen[5][0].as_u64().unwrap() as usize;
    assert_eq!(seen[5], part(100, 100 + second), "{ended}");
    let third = seen[8][0].as_u64().unwrap() as usize;
    assert_eq!(seen[8], part(100 + second, 100 + second + third), "{ended}");
    assert_eq!(seen[9], part(100 + second + third, whole.len()), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_artifact_goes_on_after_a_write_that_was_refused_as_it_would_have() {
    let mut host = Host::steps("");
    let steps = "create; write a 3; write b 2000000; write c 4; say half; await go; write d 5; finish; open; rest";
    let killed = host.send(steps).await;
    host.until_step(&killed, "say half").await;
    host.kill_and_revive();
    let calm = host.send(steps).await;
    host.until_step(&calm, "say half").await;
    host.take("set go yes").await;
    let (calm, killed) = (host.ended(&calm).await.completed(), host.ended(&killed).await);
    assert_eq!(calm.outcomes()[2], "payload_too_large", "{calm}");
    assert_eq!(calm.outcomes()[9][0], 12, "{calm}");
    let killed = killed.completed();
    assert_eq!(killed.outcomes()[9], calm.outcomes()[9], "{killed}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_knows_what_it_has_seen_of_state_and_what_it_has_not() {
    let mut host = Host::steps("");
    host.take("set k one; set own one").await;
    let run = host.send("get k; get own; set own two; say read; await go; set own three; set k three; get k; set k four").await;
    host.until_step(&run, "say read").await;
    host.kill_and_revive();
    host.take("set k two").await;
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    assert_eq!((&seen[2], &seen[5]), (&Value::Null, &Value::Null), "nobody else has changed it: {ended}");
    assert!(seen[6].as_str().is_some_and(|refusal| refusal.starts_with("conflict")), "what another run wrote is lost: {ended}");
    assert_eq!((&seen[7], &seen[8]), (&json!("\"two\""), &Value::Null), "{ended}");
    host.check();
}

/// Makes the guest see another context than the one with which it began, which is how a guest diverges that has no other
/// way: its text then has `to` where it had `from`.
async fn resumed_with_another_text(steps: &str, from: &str, to: &str) -> EndedRun {
    let mut host = Host::steps("");
    let run = host.send(steps).await;
    host.until_step(&run, "say began").await;
    host.kill();
    let ledger = host.ledger();
    let id = run.parse().unwrap();
    let run_no = ledger.run(id).unwrap().unwrap().run_no;
    let context = ledger.context(id).unwrap().unwrap();
    assert!(context.get().contains(from), "{context}");
    let altered = RawValue::from_string(context.get().replace(from, to)).unwrap();
    let write = RunWrite { run_no, context: Some(altered.into()), ..RunWrite::default() };
    ledger.submit(write).await.unwrap().await.unwrap();
    ledger.close().await.unwrap();
    host.revive();
    let ended = host.ended(&run).await.failed("replay_diverged");
    host.check();
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_guest_that_asks_for_something_else_than_before_fails_and_the_difference_is_said() {
    let ended = resumed_with_another_text("say hello; get this; say began; await go", "get this", "get that").await;
    let details = &ended.run["failure"]["details"];
    // Before it: the message and its step.
    assert_eq!(details["call"], 3, "{ended}");
    assert_eq!(details["recorded"]["function"], "state.get", "{ended}");
    assert_eq!(details["now"]["function"], "state.get", "{ended}");
    assert!(details["recorded"]["request"].to_string().contains("this"), "{ended}");
    assert!(details["now"]["request"].to_string().contains("that"), "{ended}");
    let difference = &details["difference"];
    assert_eq!((&difference["recorded"], &difference["now"]), (&json!("this"), &json!("that")), "{ended}");
    let at = difference["at"].as_str().unwrap();
    assert_eq!(details["recorded"]["request"].pointer(at), Some(&json!("this")), "{ended}");
    assert_eq!(ended.events.last().unwrap()["data"]["details"], *details, "{ended}");
    // Earlier output stays.
    assert_eq!(ended.message_texts(), ["hello", "began"], "{ended}");

    // Another function.
    let ended = resumed_with_another_text("get this; say began; await go", "get this", "load this").await;
    let details = &ended.run["failure"]["details"];
    assert_eq!(details["call"], 1, "{ended}");
    assert_eq!(
        (&details["recorded"]["function"], &details["now"]["function"]),
        (&json!("state.get"), &json!("storage.get")),
        "{ended}"
    );

    // Emitted results are not in the journal, and are compared all the same.
    let ended = resumed_with_another_text("get this; say hello; say began; await go", "say hello", "say hullo").await;
    let details = &ended.run["failure"]["details"];
    assert_eq!(details["call"], 3, "{ended}");
    assert_eq!(
        (&details["recorded"]["function"], &details["now"]["function"]),
        (&json!("results.emit"), &json!("results.emit")),
        "{ended}"
    );

    // Fewer calls than before.
    let ended = resumed_with_another_text("get this; say hello; say began; await go", "say hello; ", "").await;
    assert_eq!(ended.run["failure"]["details"]["call"], 3, "{ended}");
}
