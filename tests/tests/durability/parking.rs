//! A run that waits long leaves memory, and neither its host nor its conversation forgets it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};

use crate::support::{Host, Random, follow, in_order, lines_of, now};

/// A host that parks early.
fn host(more: &str) -> Host {
    let config = format!(
        "[limits]\nmax_live_runs = 50\npark_after_ms = 300\n[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n{more}"
    );
    Host::limited(&["steps"], &config)
}

/// Waits until so many runs are parked, and none is in memory.
async fn parked(host: &Host, runs: u64) {
    host.until_ready(|ready| ready["parked_runs"] == runs && ready["live_runs"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_long_sleep_parks_and_wakes_in_time() {
    let host = host("");
    for sleep in ["sleep 3000", "timer 3000"] {
        let run = host.send(&format!("now; {sleep}; now; sleep 10; say done")).await;
        let follower = tokio::spawn(follow(host.urls(), run.clone()));
        host.until_status(&run, "waiting").await;
        parked(&host, 1).await;
        let ended = host.ended(&run).await.completed();
        let seen = ended.outcomes();
        let [before, after] = [&seen[0], &seen[2]].map(|time| time.as_str().unwrap().parse::<u64>().unwrap());
        assert!(after - before >= 3_000, "{ended}");
        let [waits] = &*ended.statuses("timer") else { panic!("{ended}") };
        assert_eq!(waits["status"], "waiting", "{ended}");
        let until = waits["until"].as_u64().unwrap();
        assert!((before + 3_000..=after).contains(&until), "{ended}");
        let [woken] = &*ended.statuses("woken") else { panic!("{ended}") };
        assert_eq!(woken["status"], "running", "{ended}");
        let seen = tokio::time::timeout(PATIENCE, follower).await.expect("who follows sees the end").unwrap();
        assert_eq!(seen, ended.events);
        // The host has not stopped.
        assert_eq!(ended.resumes(), 0, "{ended}");
        assert!(Duration::from_millis(ended.at("say done") - until) < PATIENCE / 2, "it overslept: {ended}");
    }
    parked(&host, 0).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parked_run_outlives_its_host_and_wakes_in_time() {
    let mut host = host("");
    let runs = [host.send("say began; sleep 8000; say done").await, host.send("say began; timer 8000; say done").await];
    for run in &runs {
        host.until_status(run, "waiting").await;
    }
    parked(&host, 2).await;
    host.kill_and_revive();
    // On a machine that is slow enough, they wake meanwhile.
    let ready = host.get("/readyz").await;
    let waiting = host.run(&runs[0]).await["status"] == "waiting" && host.run(&runs[1]).await["status"] == "waiting";
    assert!(!waiting || ready["parked_runs"] == 2, "{ready}");
    host.kill_and_revive();
    for run in &runs {
        let ended = host.ended(run).await.completed();
        assert_eq!(ended.outcomes(), [json!("began"), Value::Null, json!("done")], "{ended}");
        let until = ended.statuses("timer")[0]["until"].as_u64().unwrap();
        assert!(ended.at("say done") >= until && until >= ended.at("say began") + 7_900, "{ended}");
        assert_eq!(ended.statuses("timer").len(), 1, "{ended}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_was_killed_before_is_parked_and_wakes_and_is_killed_again() {
    let mut host = host("");
    let run = host.send("say one; await go; sleep 3000; say two; await on; timer 3000; say three").await;
    host.until_step(&run, "say one").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    host.until_status(&run, "waiting").await;
    host.kill_and_revive();
    host.until_step(&run, "say two").await;
    host.kill_and_revive();
    host.take("set on yes").await;
    host.until_status(&run, "waiting").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.outcomes().len(), 7, "{ended}");
    assert_eq!((ended.statuses("woken").len(), ended.statuses("timer").len()), (2, 2), "{ended}");
    // A run that was parked at the kill was not interrupted.
    assert_eq!(ended.resumes(), 2, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parked_run_is_cancelled_at_once() {
    let mut host = host("deadline_ms = 600000\n");
    for dies in [false, true] {
        let run = host.send("say began; sleep 500000; say done").await;
        host.until_status(&run, "waiting").await;
        parked(&host, 1).await;
        if dies {
            host.kill_and_revive();
            assert_eq!(host.run(&run).await["status"], "waiting");
            parked(&host, 1).await;
        }
        let began = Instant::now();
        host.cancel(&run).await;
        let ended = host.ended(&run).await;
        assert_eq!(ended.run["status"], "cancelled", "{ended}");
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
        assert_eq!(ended.message_texts(), ["began"], "its guest went on: {ended}");
        parked(&host, 0).await;
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parked_run_ends_at_its_deadline() {
    let mut host = host("deadline_ms = 4000\n");
    for dies in [false, true] {
        let run = host.send("say began; timer 500000; say done").await;
        let waiting = host.until_status(&run, "waiting").await;
        let deadline = waiting["deadline_at"].as_u64().unwrap();
        if dies {
            host.kill();
            while now() <= deadline {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            host.revive();
        }
        let ended = host.ended(&run).await;
        assert_eq!(ended.run["status"], "timeout", "{ended}");
        let end = ended.events.last().unwrap()["timestamp"].as_u64().unwrap();
        assert!(end >= deadline && Duration::from_millis(end - deadline) < PATIENCE, "{ended}");
        assert_eq!(ended.message_texts(), ["began"], "{ended}");
        parked(&host, 0).await;
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_conversation_waits_behind_its_parked_run() {
    let mut host = host("deadline_ms = 600000\n");
    let first = host.send_in("c", "say first; sleep 500000; say done").await;
    host.until_status(&first, "waiting").await;
    let second = host.send_in("c", "say second").await;
    host.until_status(&second, "queued").await;
    // Others do not.
    assert_eq!(host.take("say other").await.outcomes(), ["other"]);
    let ready = host.get("/readyz").await;
    assert_eq!((&ready["parked_runs"], &ready["waiting_runs"]), (&json!(1), &json!(1)), "{ready}");

    host.kill_and_revive();
    let third = host.send_in("c", "say third").await;
    host.until_status(&third, "queued").await;
    assert_eq!(host.run(&first).await["status"], "waiting");
    assert_eq!(host.run(&second).await["status"], "queued");
    host.until_ready(|ready| ready["parked_runs"] == 1 && ready["waiting_runs"] == 2).await;

    host.cancel(&first).await;
    let ended = [host.ended(&first).await, host.ended(&second).await.completed(), host.ended(&third).await.completed()];
    assert_eq!(ended[0].run["status"], "cancelled", "{}", ended[0]);
    assert_eq!((ended[1].outcomes(), ended[2].outcomes()), (vec![json!("second")], vec![json!("third")]));
    in_order(&ended);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_conversation_goes_on_when_its_parked_run_has_woken_and_ended() {
    let mut host = host("");
    for dies in [false, true] {
        let conversation = format!("c{dies}");
        let first = host.send_in(&conversation, "say first; sleep 4000; say done").await;
        host.until_status(&first, "waiting").await;
        let second = host.send_in(&conversation, "say second").await;
        if dies {
            host.kill_and_revive();
        }
        let third = host.send_in(&conversation, "say third").await;
        let ended =
            [host.ended(&first).await.completed(), host.ended(&second).await.completed(), host.ended(&third).await.completed()];
        assert_eq!(ended[0].outcomes().len(), 3);
        in_order(&ended);
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parked_run_survives_a_host_that_ends_in_good_order() {
    let mut host = host("");
    let run = host.send("say began; sleep 5000; say done").await;
    host.until_status(&run, "waiting").await;
    host.terminate();
    host.revive();
    let ended = host.ended(&run).await.completed();
    assert_eq!((ended.resumes(), ended.outcomes().len()), (0, 3), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_whose_journal_is_full_is_not_parked() {
    let config = "[limits]\nmax_live_runs = 50\npark_after_ms = 300\njournal_bytes = 4096\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let mut host = Host::limited(&["steps"], config);
    // Small enough: parked, and not the worse for it.
    let small = host.send("say small; sleep 1500; say done").await;
    let many = (0..40).map(|n| format!("get k{n}-{}; say {n}; ", "x".repeat(100))).collect::<String>();
    let large = host.send(&format!("{many}sleep 1500; say done; sleep 600000")).await;
    let small = host.ended(&small).await.completed();
    assert_eq!(small.statuses("woken").len(), 1, "{small}");
    host.until_step(&large, "say done").await;
    let events = host.events(&large).await;
    let full: Vec<_> = events.iter().filter(|event| event["type"] == "limit.reached").map(|event| &event["data"]).collect();
    assert_eq!(full.len(), 1, "{}", lines_of(&events));
    assert_eq!((&full[0]["limit"], &full[0]["value"]), (&json!("journal_bytes"), &json!(4096)), "{}", lines_of(&events));
    assert!(events.iter().all(|event| event["type"] != "run.status"), "it was parked: {}", lines_of(&events));
    assert_eq!(host.get("/readyz").await["live_runs"], 1);
    host.kill_and_revive();
    let ended = host.ended(&large).await.failed("host_restarted");
    assert!(ended.run["failure"]["message"].as_str().unwrap().contains("journal_bytes"), "{ended}");
    host.check();
}

/// An event at the moment of parking or waking reaches the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_during_parking_or_waking_are_not_lost() {
    const RUNS: u64 = 60;
    let mut random = Random(7);
    let host = Arc::new(host(""));
    let mut all = Vec::new();
    for n in 0..RUNS {
        // The run is parked soon, and wakes 400 ms later.
        let (pause, more) = (Duration::from_millis(random.below(700)), random.below(2) == 0);
        let host = Arc::clone(&host);
        all.push(tokio::spawn(async move {
            let conversation = format!("c{n}");
            let first = host.send_in(&conversation, "say first; sleep 400; say done").await;
            tokio::time::sleep(pause).await;
            if more {
                let second = host.send_in(&conversation, "say second").await;
                let ended = [host.ended(&first).await.completed(), host.ended(&second).await.completed()];
                in_order(&ended);
            } else {
                host.try_cancel(&first).await;
                let ended = host.ended(&first).await;
                assert!(ended.run["status"] == "cancelled" || ended.run["status"] == "completed", "{ended}");
                // Its turn has ended.
                let second = host.send_in(&conversation, "say second").await;
                host.ended(&second).await.completed();
            }
        }));
    }
    for one in all {
        one.await.unwrap();
    }
    parked(&host, 0).await;
    Arc::into_inner(host).unwrap().check();
}

/// Runs that are parked and wake all the time, and a host that goes and comes all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_may_go_at_any_moment_of_parking_and_waking() {
    const RUNS: u64 = 40;
    let mut random = Random(8);
    let mut host = host("max_attempts = 100\n");
    let mut runs = Vec::new();
    for n in 0..RUNS {
        let steps: Vec<_> =
            (0..8).map(|step| format!("{} {}; say {step}", ["sleep", "timer"][step % 2], 250 + (n * 37) % 200)).collect();
        runs.push(host.send_in(&format!("c{}", n % (RUNS / 2)), &steps.join("; ")).await);
    }
    for round in 0..12 {
        tokio::time::sleep(Duration::from_millis(random.below(600))).await;
        if round % 4 == 3 {
            host.terminate();
        } else {
            host.kill();
        }
        host.revive();
    }
    let mut ended = Vec::new();
    for run in &runs {
        let run = host.ended(run).await.completed();
        let known_outcomes: Vec<_> = run.outcomes().into_iter().filter(|outcome| !outcome.is_null()).collect();
        assert_eq!(known_outcomes, (0..8).map(|n| json!(n.to_string())).collect::<Vec<_>>(), "{run}");
        ended.push(run);
    }
    for (first, second) in ended[..ended.len() / 2].iter().zip(&ended[ended.len() / 2..]) {
        in_order([first, second]);
    }
    parked(&host, 0).await;
    host.check();
}

/// Far more runs than there are places.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_thousand_parked_runs_wake() {
    const RUNS: u64 = 2_000;
    let mut host = host("deadline_ms = 600000\n");
    let mut runs = Vec::new();
    // On a machine that is slow, those that were sent first wake before the last are parked: then once more, with more
    // time.
    let mut at = 0;
    for time in [20_000, 60_000, 180_000] {
        at = now() + time;
        runs.clear();
        for n in 0..RUNS {
            runs.push(host.send_in(&format!("{time}-{n}"), &format!("say {n}; until {at}; say done")).await);
        }
        while host.get("/readyz").await["parked_runs"] != RUNS && now() < at {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if now() < at {
            break;
        }
        host.until_ready(|ready| ready["parked_runs"] == 0 && ready["live_runs"] == 0).await;
    }
    println!("{RUNS} runs were parked {} ms before they were to wake", at.saturating_sub(now()));
    parked(&host, RUNS).await;
    host.kill_and_revive();
    // In the middle of it.
    host.until_ready(|ready| ready["parked_runs"].as_u64() < Some(RUNS)).await;
    host.kill_and_revive();
    let began = Instant::now();
    let mut late = 0;
    for (n, run) in runs.iter().enumerate() {
        while host.run(run).await["status"] == "waiting" {
            assert!(began.elapsed() < PATIENCE * 3, "{n} does not wake");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ended = host.ended(run).await.completed();
        assert_eq!(ended.outcomes(), [json!(n.to_string()), Value::Null, json!("done")], "{ended}");
        assert!(ended.at("say done") >= at, "{ended}");
        late = late.max(ended.at("say done") - at);
    }
    println!("the last was awake after {late} ms");
    parked(&host, 0).await;
    host.check();
}
