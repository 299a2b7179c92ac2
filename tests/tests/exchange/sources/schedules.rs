//! Schedules.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use agent_host_ledger::EntryWrite;
use agent_host_tests::{process, world::PATIENCE};
use serde_json::{Value, json};

use crate::sources::support::{Host, Random, now};

const BINDING: &str = "[[bindings]]\nid = \"ticks\"\nrunner = \"plugin:agent-host/echo/default\"\n";

/// A host with one schedule.
fn host(schedule: &str) -> Host {
    Host::start(
        &["echo"],
        &format!("[[schedules]]\nid = \"beat\"\nevent = {{ event_type = \"beat.due\" }}\n{schedule}\n{BINDING}"),
    )
}

/// The ticks that became events, from the runs that answer them: how many runs each has.
async fn ticks(host: &Host) -> BTreeMap<u64, usize> {
    let mut ticks = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = host.get(&format!("/api/v1/runs?binding_id=ticks&limit=100{cursor}")).await;
        for run in page["items"].as_array().unwrap() {
            let event = host.get(&format!("/api/v1/events/{}", run["event_id"].as_str().unwrap())).await;
            assert_eq!((&event["event_type"], &event["source"]), (&json!("beat.due"), &json!("scheduler")));
            assert_eq!(event["data"]["schedule"]["id"], "beat");
            *ticks.entry(event["data"]["schedule"]["tick_at"].as_u64().unwrap()).or_insert(0) += 1;
        }
        if page["has_more"] == false {
            return ticks;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
}

async fn until_ticks(host: &Host, count: usize) -> BTreeMap<u64, usize> {
    let began = Instant::now();
    loop {
        let ticks = ticks(host).await;
        if ticks.len() >= count {
            return ticks;
        }
        assert!(began.elapsed() < PATIENCE, "it does not tick: {ticks:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The report on the schedule.
async fn schedule(host: &Host) -> Value {
    host.get("/api/v1/schedules").await["items"][0].clone()
}

/// A dead host believes that its schedule ticked so long ago, last.
async fn backdate(host: &Host, ms: u64, rule: &str) -> u64 {
    let ledger = host.ledger();
    let last = now() - ms;
    let entry = json!({ "last_tick": last, "since": 1, "rule": rule });
    ledger.put_entries(&[EntryWrite::put("schedule/beat", &entry).unwrap()]).await.unwrap();
    ledger.close().await.unwrap();
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_schedule_ticks_and_says_so() {
    let before = now();
    let host = host("every_ms = 1000");
    let ticks = until_ticks(&host, 2).await;
    assert!(ticks.iter().all(|(tick, runs)| tick % 1000 == 0 && *tick > before && *runs == 1), "{ticks:?}");
    let shown = schedule(&host).await;
    assert_eq!((&shown["id"], &shown["every_ms"], &shown["enabled"]), (&json!("beat"), &json!(1000), &json!(true)));
    assert!(shown["next_tick_at"].as_u64() > shown["last_tick_at"].as_u64(), "{shown:#}");
    let event = host.get(&format!("/api/v1/events/{}", shown["last_event_id"].as_str().unwrap())).await;
    assert_eq!(event["data"]["schedule"]["tick_at"], shown["last_tick_at"]);
    assert_eq!(event["event_time"], shown["last_tick_at"]);

    let url = host.urls().borrow().clone();
    let cli = process::command(host.dir()).args(["schedules", "list", "--server", url.as_str()]).output().unwrap();
    let printed = String::from_utf8(cli.stdout).unwrap();
    assert!(cli.status.success() && printed.contains("beat") && printed.contains("every 1000 ms"), "{printed}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_killed_ticks_no_time_twice() {
    let mut host = host("every_ms = 1000\nmissed = \"all\"");
    let first = *until_ticks(&host, 1).await.first_key_value().unwrap().0;
    let mut random = Random(11);
    for _ in 0..8 {
        // Some of them around the full second.
        let to_the_second = 1000 - now() % 1000;
        tokio::time::sleep(Duration::from_millis(to_the_second.saturating_sub(15) + random.below(30))).await;
        host.kill_and_revive();
    }
    let last = now() / 1000 * 1000;
    let began = Instant::now();
    let ticks = loop {
        let ticks = ticks(&host).await;
        if ticks.last_key_value().is_some_and(|(tick, _)| *tick >= last) {
            break ticks;
        }
        assert!(began.elapsed() < PATIENCE, "{ticks:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(ticks.values().all(|runs| *runs == 1), "{ticks:?}");
    let expected: Vec<_> = (first..=last).step_by(1000).collect();
    let made: Vec<_> = ticks.keys().copied().filter(|tick| *tick <= last).collect();
    assert_eq!(made, expected, "none is lost where all are made up for");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ticks_that_were_missed_are_dealt_with_as_the_schedule_says() {
    // Long enough that no tick comes during the test, except at a full hour.
    const HOUR: u64 = 3_600_000;
    for (missed, expected) in [("skip", 0), ("once", 1), ("all", 5)] {
        let mut host = host(&format!("every_ms = {HOUR}\nmissed = \"{missed}\""));
        host.terminate();
        let last = backdate(&host, 5 * HOUR, &format!("every {HOUR} ms")).await;
        host.revive();
        let passed: Vec<_> = (last / HOUR + 1..=now() / HOUR).map(|nth| nth * HOUR).collect();
        let made = until_ticks(&host, expected).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let made_later = ticks(&host).await;
        assert_eq!(made.len(), made_later.len(), "{missed}: no more than that");
        let made: Vec<_> = made.into_keys().collect();
        assert_eq!(made, passed[passed.len() - expected..], "{missed}");
        host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_very_many_that_were_missed_the_newest_are_made_up_for() {
    const MINUTE: u64 = 60_000;
    let mut host = host("cron = \"* * * * *\"\nmissed = \"all\"");
    host.terminate();
    backdate(&host, 1000 * MINUTE, "* * * * * UTC").await;
    host.revive();
    let made = until_ticks(&host, 100).await;
    // The minute may have changed meanwhile.
    assert!(made.len() <= 102, "{}", made.len());
    let (first, last) = (made.first_key_value().unwrap().0, made.last_key_value().unwrap().0);
    assert_eq!((last - first) / MINUTE + 1, made.len() as u64);
    assert!(now() - last < 2 * MINUTE);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_schedule_that_is_off_or_was_another_one_has_missed_nothing() {
    let mut host = host("every_ms = 3600000\nmissed = \"all\"\nenabled = false");
    assert_eq!(schedule(&host).await["next_tick_at"], Value::Null);
    host.terminate();
    backdate(&host, 10 * 3_600_000, "every 60000 ms").await;
    host.revive();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(ticks(&host).await.is_empty());
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_clock_that_is_set_back_ticks_no_time_twice() {
    let mut host = host("every_ms = 1000");
    until_ticks(&host, 1).await;
    host.terminate();
    // For the host, the clock has gone back by a minute since its last tick.
    let ledger = host.ledger();
    let ahead = now() + 60_000;
    let entry = json!({ "last_tick": ahead, "since": 1, "rule": "every 1000 ms" });
    ledger.put_entries(&[EntryWrite::put("schedule/beat", &entry).unwrap()]).await.unwrap();
    ledger.close().await.unwrap();
    host.revive();
    let before = ticks(&host).await.len();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(ticks(&host).await.len(), before);
    assert!(schedule(&host).await["next_tick_at"].as_u64().unwrap() > ahead);
    host.check();
}
