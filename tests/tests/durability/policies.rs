//! The binding decides on the runs of a stopped host.

use std::time::Duration;

use serde_json::json;

use crate::support::{Host, now};

const STEPS: &str = "attempt; say began; await go; attempt";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_to_be_retried_begins_anew_and_knows_it() {
    let mut host = Host::steps("durability = \"retry\"\n");
    let run = host.send(STEPS).await;
    host.until_step(&run, "say began").await;
    host.kill_and_revive();
    host.until(&run, |event| event["type"] == "x.step" && event["data"]["outcome"] == 2).await;
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!((&ended.run["attempt"], ended.resumes()), (&json!(2), 0), "{ended}");
    let [retried] = &*ended.statuses("retried") else { panic!("{ended}") };
    assert_eq!((&retried["attempt"], &retried["status"]), (&json!(2), &json!("running")), "{ended}");
    // The output of the first attempt stays, and the second attempt repeats all of it.
    let step_outcomes: Vec<_> = ended.of("x.step").iter().map(|data| data["outcome"].clone()).collect();
    assert_eq!(step_outcomes, [json!(1), json!("began"), json!(2), json!("began"), json!(null), json!(2)], "{ended}");
    assert_eq!(*ended.message_texts().last().unwrap(), r#"[2,"began",null,2]"#);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_is_not_retried_for_ever() {
    let mut host = Host::steps("durability = \"retry\"\nmax_attempts = 2\n");
    let run = host.send(STEPS).await;
    host.until_step(&run, "say began").await;
    host.kill_and_revive();
    host.until(&run, |event| event["type"] == "x.step" && event["data"]["outcome"] == 2).await;
    host.kill_and_revive();
    let ended = host.ended(&run).await.failed("host_restarted");
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    assert!(ended.run["failure"]["message"].as_str().unwrap().contains("2 attempts"), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_to_fail_fails() {
    let mut host = Host::steps("durability = \"fail\"\n");
    let run = host.send(STEPS).await;
    let behind = host.send_in("c", "await go; attempt").await;
    let waits = host.send_in("c", "attempt").await;
    host.until_step(&run, "say began").await;
    host.until_status(&behind, "running").await;
    host.kill_and_revive();
    host.ended(&run).await.failed("host_restarted");
    host.ended(&behind).await.failed("host_restarted");
    // The run had not begun, so nothing is lost.
    assert_eq!(host.ended(&waits).await.completed().outcomes(), [1]);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_kills_its_host_each_time_it_comes_back_is_given_up() {
    // The run waits in memory without output, so no execution of it makes progress.
    let config = "[limits]\nmax_live_runs = 50\npark_after_ms = 3600000\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nmax_attempts = 2\n";
    let mut host = Host::limited(&["steps"], config);
    let run = host.send("say began; sleep 600000").await;
    host.until_step(&run, "say began").await;
    let mut resumes = 0;
    while resumes < 2 {
        host.kill_and_revive();
        resumes += 1;
        let resumed = |event: &serde_json::Value| event["data"]["reason"] == "resumed" && event["data"]["resumes"] == resumes;
        host.until(&run, resumed).await;
    }
    host.kill_and_revive();
    let ended = host.ended(&run).await.failed("host_restarted");
    assert_eq!(ended.resumes(), 2, "{ended}");
    assert!(ended.run["failure"]["message"].as_str().unwrap().contains("2 times in a row"), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn runs_on_their_last_try_come_back_one_at_a_time_and_behind_others() {
    let config = "[limits]\nmax_live_runs = 50\npark_after_ms = 3600000\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nmax_attempts = 2\n";
    let mut host = Host::limited(&["steps"], config);
    let mut suspects = Vec::new();
    for _ in 0..3 {
        let run = host.send("say began; sleep 600000").await;
        host.until_step(&run, "say began").await;
        suspects.push(run);
    }
    let other = host.send("say began; await go; say more; sleep 600000").await;
    host.until_step(&other, "say began").await;
    host.kill_and_revive();
    let resumed =
        |times: u64| move |event: &serde_json::Value| event["data"]["reason"] == "resumed" && event["data"]["resumes"] == times;
    for run in suspects.iter().chain([&other]) {
        host.until(run, resumed(1)).await;
    }
    // This one gets further, and the others do not.
    host.take("set go yes").await;
    host.until_step(&other, "say more").await;
    host.kill_and_revive();
    host.until(&other, resumed(2)).await;
    let back = async |host: &Host| {
        let mut back = 0;
        for run in &suspects {
            back += usize::from(host.run(run).await["resumes"] == 2);
        }
        back
    };
    while back(&host).await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(back(&host).await, 1, "the first is to be survived");
    for run in &suspects {
        host.until(run, resumed(2)).await;
        host.cancel(run).await;
    }
    host.cancel(&other).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_deadline_of_a_run_passes_while_its_host_is_dead_and_a_cancel_is_not_forgotten() {
    let mut host = Host::steps("deadline_ms = 4000\n");
    let late = host.send("say began; await go").await;
    host.until_step(&late, "say began").await;
    let deadline = host.run(&late).await["deadline_at"].as_u64().unwrap();
    host.kill();
    while now() <= deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    host.revive();
    let ended = host.ended(&late).await;
    assert_eq!(ended.run["status"], "timeout", "{ended}");

    // The host is killed right after the acknowledged cancel.
    for _ in 0..5 {
        let run = host.send("say began; await go").await;
        host.until_step(&run, "say began").await;
        host.cancel(&run).await;
        host.kill_and_revive();
        let ended = host.ended(&run).await;
        assert_eq!(ended.run["status"], "cancelled", "{ended}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_asked_to_end_puts_its_runs_down_and_takes_them_up_again() {
    let mut host = Host::steps("");
    let run = host.send("say began; await go; say done").await;
    host.until_step(&run, "say began").await;
    host.terminate();
    {
        let ledger = host.ledger();
        let record = ledger.run(run.parse().unwrap()).unwrap().unwrap();
        assert!(!record.run.status.is_terminal(), "it was not put down: {:?}", record.run);
        ledger.close().await.unwrap();
    }
    host.revive();
    host.until(&run, |event| event["data"]["reason"] == "resumed").await;
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.outcomes(), [json!("began"), json!(null), json!("done")], "{ended}");
    assert_eq!(ended.resumes(), 1, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_to_be_retried_is_so_after_a_host_that_ended_in_good_order() {
    let mut host = Host::steps("durability = \"retry\"\n");
    let run = host.send(STEPS).await;
    host.until_step(&run, "say began").await;
    host.terminate();
    host.revive();
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    host.check();
}

/// A parked run did not crash its host.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_waits_long_outlives_more_stops_in_good_order_than_it_has_attempts() {
    let config = "[limits]\nmax_live_runs = 50\npark_after_ms = 3600000\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nmax_attempts = 1\n";
    let mut host = Host::limited(&["steps"], config);
    // Longer than anything takes here: it is still asleep when the host has stopped three times.
    let run = host.send("say began; sleep 280000; say done").await;
    host.until_step(&run, "say began").await;
    for times in 1..=3 {
        host.terminate();
        host.revive();
        host.until(&run, |event| event["data"]["reason"] == "resumed" && event["data"]["resumes"] == times).await;
    }
    host.cancel(&run).await;
    let ended = host.ended(&run).await;
    assert_eq!((ended.run["status"].as_str(), ended.resumes()), (Some("cancelled"), 3), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_comes_back_though_some_of_its_writes_were_refused() {
    let config = "[limits]\nmax_live_runs = 50\nstate_scope_bytes = 1000\n\
                  [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
    let mut host = Host::limited(&["steps"], config);
    let refused: String = (0..5).map(|n| format!("fill-state k{n} 2000; ")).collect();
    let run = host.send(&format!("{refused}say began; await go; {refused}say done")).await;
    host.until_step(&run, "say began").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    let ended = host.ended(&run).await.completed();
    assert_eq!((ended.outcomes().len(), ended.resumes()), (13, 1), "{ended}");
    host.check();
}

/// A write to the state that is refused takes its entry of the journal back; what fills the journal is not that entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_journal_that_is_full_is_known_to_be_so_whatever_filled_it() {
    for journal_bytes in [2_000, 2_100, 2_200, 2_300, 2_400, 2_500] {
        let config = format!(
            "[limits]\nmax_live_runs = 50\njournal_bytes = {journal_bytes}\nstate_scope_bytes = 1000\n\
             [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n"
        );
        let mut host = Host::limited(&["steps"], &config);
        let refused: String = (0..20).map(|n| format!("fill-state k{n} 2000; ")).collect();
        let run = host.send(&format!("{refused}say began; await go; say done")).await;
        host.until_step(&run, "say began").await;
        host.until(&run, |event| event["type"] == "limit.reached").await;
        host.kill_and_revive();
        let ended = host.ended(&run).await.failed("host_restarted");
        assert_eq!(ended.of("x.step").len(), 21, "steps were taken again: {ended}");
        host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_of_a_live_run_are_in_the_audit_and_survive_a_kill() {
    let mut host = Host::steps("durability = \"fail\"\n");
    let run = host.send("say began; await go").await;
    host.until_step(&run, "say began").await;
    // No event of the run takes the records along: the run reads state until it is set.
    let reads = async |host: &Host| {
        let audit = host.get(&format!("/api/v1/runs/{run}/audit?limit=100")).await;
        let items = audit["items"].as_array().unwrap();
        items.iter().filter(|record| record["action"] == "state.get" && record["outcome"] == "ok").count()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(2);
    let mut seen = 0;
    while seen < 4 {
        assert!(std::time::Instant::now() < deadline, "{seen} reads are in the audit of the live run");
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen = reads(&host).await;
    }
    host.kill_and_revive();
    host.ended(&run).await.failed("host_restarted");
    assert!(reads(&host).await >= seen);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refusal_is_in_the_audit_before_the_runner_hears_of_it() {
    let binding = "[[bindings]]\nid = \"stage\"\nrunner = \"plugin:test/stage/default\"\ndurability = \"fail\"\n";
    let mut host = Host::start(&["stage"], binding);
    // The binding grants no action. The runner says what came of it, and waits.
    let script = json!([{ "do": "act", "action": "message.edit" }, { "do": "sleep", "ms": 600_000 }]);
    let run = host.send(&script.to_string()).await;
    host.until(&run, |event| event["type"] == "message.completed").await;
    host.kill_and_revive();
    host.ended(&run).await.failed("host_restarted");
    let audit = host.get(&format!("/api/v1/runs/{run}/audit?limit=100")).await;
    let refused =
        |record: &&serde_json::Value| record["action"] == "platform.request-action" && record["outcome"] == "unauthorized";
    assert_eq!(audit["items"].as_array().unwrap().iter().filter(refused).count(), 1, "{audit:#}");
    host.check();
}
