//! Guests that break every rule: each ends in the documented way, and the host is unharmed.

use std::time::{Duration, Instant};

use agent_host_protocol::{Limits, RefusalCode, RunStatus, event::Envelope};
use agent_host_runs::{Config, Quotas};
use agent_host_tests::{
    World,
    world::{bound, in_conversation, limits},
};
use serde_json::json;

const HOSTILE: &str = "plugin:test/hostile/default";

async fn world() -> World {
    World::new(&["hostile"], HOSTILE).await
}

async fn world_with(limits: Limits, deadline_ms: u64) -> World {
    let mut binding = bound(HOSTILE);
    binding.deadline_ms = Some(deadline_ms);
    World::with(&["hostile"], limits, vec![binding]).await
}

/// The host still answers, and has the places of all guests again.
async fn is_unharmed(world: &World) {
    assert_eq!(world.say("ok still here").await.answer_text(), "ok still here");
    let began = Instant::now();
    while world.host.readiness().live_runs > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "{} guests have a place", world.host.readiness().live_runs);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_guest_that_breaks_ends_the_run_with_a_code_that_says_how() {
    let world = world().await;
    for (does, code) in [
        ("trap", "runner.trapped"),
        ("panic", "runner.trapped"),
        ("exit 0", "runner.exited"),
        ("exit 3", "runner.exited"),
        ("grow", "runner.memory_exceeded"),
        ("recurse", "runner.stack_exceeded"),
        ("fail acme.broken it broke", "acme.broken"),
        ("bad-completion", "runner.invalid_result"),
        ("bad-message-tool-calls", "runner.invalid_result"),
    ] {
        let ended = world.say(does).await;
        assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, code), "{does}: {ended:#?}");
        assert_eq!(ended.kinds().last(), Some(&"run.failed"), "{does}");
        let violated = ended.kinds().contains(&"sandbox.violation");
        assert_eq!(violated, code.starts_with("runner.") && code != "runner.invalid_result", "{does}: {:?}", ended.kinds());
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_guest_that_calls_below_its_bindings_traps_and_nothing_of_it_reaches_the_host() {
    let world = World::new(&["abuse"], "plugin:test/abuse/default").await;
    for does in ["pointer", "length", "text", "case", "outcome", "handle", "drop", "dropped", "dropped twice"] {
        let ended = world.say(does).await;
        assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, "runner.trapped"), "{does}: {ended:#?}");
        assert!(ended.kinds().contains(&"sandbox.violation"), "{does}: {:?}", ended.kinds());
    }
    // What the host would copy for one call is bounded.
    for does in ["large", "texts"] {
        assert_eq!(world.say(does).await.failure(), "runner.limit_exceeded", "{does}");
    }
    // The stack of the host's own code is beside that of the guest.
    assert_eq!(world.say("deep").await.failure(), "runner.stack_exceeded");
    assert_eq!(world.say("nothing").await.answer_text(), "ok the host took it");
}

#[tokio::test]
async fn loops_outside_of_the_code_of_a_runner_are_stopped_too() {
    let mut abuse = bound("plugin:test/abuse/default");
    let mut realloc = bound("plugin:test/realloc-loops/default");
    let mut returned = bound("plugin:test/post-return-loops/default");
    (abuse.deadline_ms, realloc.deadline_ms, returned.deadline_ms) = (Some(500), Some(500), Some(500));
    (abuse.id, realloc.id, returned.id) = ("abuse".into(), "realloc".into(), "returned".into());
    let limits = Limits { manifest_ms: 1_000, ..limits() };
    let components = ["abuse", "realloc_loops", "post_return_loops", "start_loops"];
    let world = World::with(&components, limits, vec![abuse, realloc, returned]).await;
    let start = world.report("start_loops.wasm").unwrap().refusal.unwrap();
    assert_eq!(start.code, RefusalCode::ManifestFailed, "{start:?}");
    for does in ["fill", "copy"] {
        let began = Instant::now();
        let accepted = world.host.accept(Envelope::message(does, "api"), None).await.unwrap();
        assert_eq!(accepted.runs.len(), 3);
        for run in accepted.runs {
            let ended = world.ended(run).await;
            assert_eq!((ended.run.status, ended.failure()), (RunStatus::Timeout, "deadline_exceeded"), "{does}: {:?}", ended.run);
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{does}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn the_last_words_of_a_panic_are_in_the_record() {
    let ended = world().await.say("panic").await;
    let log = ended.end()["details"]["log"].as_str().unwrap_or_default().to_owned();
    assert!(log.contains("hostile was asked to panic"), "{ended:#?}");
}

#[tokio::test]
async fn a_guest_that_loops_is_stopped_at_its_deadline_and_delays_nobody() {
    let world = world_with(limits(), 500).await;
    let looping: Vec<_> = [
        world.send(Envelope::message("loop", "api")).await,
        world.send(Envelope::message("loop-calls", "api")).await,
        world.send(Envelope::message("ignore-cancel", "api")).await,
    ]
    .into();
    // An honest run continues beside them: it needs their time, not their end.
    let honest = world.say("ok beside them").await;
    assert_eq!(honest.run.status, RunStatus::Completed, "{honest:#?}");
    for id in looping {
        let ended = world.ended(id).await;
        assert_eq!((ended.run.status, ended.failure()), (RunStatus::Timeout, "deadline_exceeded"), "{:?}", ended.run);
        let took = ended.run.finished_at.unwrap() - ended.run.started_at.unwrap();
        assert!((500..10_000).contains(&took), "stopped after {took} ms of 500");
        assert!(ended.kinds().contains(&"limit.reached"));
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_guest_has_so_much_cpu_time_and_waiting_takes_none() {
    let world = World::with(&["hostile"], Limits { tree_cpu_ms: 300, ..limits() }, vec![bound(HOSTILE)]).await;
    let patient = world.send(Envelope::message("sleep 1000", "api")).await;
    for does in ["loop", "loop-calls", "ignore-cancel"] {
        let ended = world.say(does).await;
        assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, "cpu_exceeded"), "{does}: {:?}", ended.run);
        let reached =
            ended.events.iter().find(|event| event.kind == "limit.reached" && event.data_value()["limit"] == "tree_cpu_ms");
        assert_eq!(reached.unwrap_or_else(|| panic!("{ended:#?}")).data_value()["value"], 300, "{does}");
    }
    assert_eq!(world.ended(patient).await.run.status, RunStatus::Completed);
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_guest_is_cancelled_wherever_it_is() {
    let world = world().await;
    for does in ["loop", "loop-calls", "ignore-cancel", "sleep 600000"] {
        let id = world.send(Envelope::message(does, "api")).await;
        // Cancel it while it runs, not while it waits.
        while world.host.ledger().run(id).unwrap().unwrap().run.started_at.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = Instant::now();
        world.host.cancel(id, "enough".into()).await.unwrap();
        let ended = world.ended(id).await;
        assert_eq!((ended.run.status, ended.failure()), (RunStatus::Cancelled, "cancelled"), "{does}");
        assert_eq!(ended.run.cancel_reason.as_deref(), Some("enough"));
        assert!(ended.run.cancel_requested_at.is_some());
        assert!(asked.elapsed() < Duration::from_secs(30), "{does} took {:?} to end", asked.elapsed());
        let again = world.host.cancel(id, "again".into()).await.unwrap_err();
        assert_eq!(again.code(), "conflict");
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn a_run_whose_instance_is_being_made_is_cancelled() {
    let slow = "plugin:test/start-slow/default";
    let world = World::with(&["start_slow"], Limits { manifest_ms: 60_000, ..limits() }, vec![bound(slow)]).await;
    for _ in 0..3 {
        let id = world.send(Envelope::message("hi", "api")).await;
        while world.host.ledger().run(id).unwrap().unwrap().run.started_at.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.host.cancel(id, "enough".into()).await.unwrap();
        let ended = world.ended(id).await;
        assert_eq!((ended.run.status, ended.answer_text().as_str()), (RunStatus::Cancelled, ""), "{ended:#?}");
    }
    assert_eq!(world.say("hi").await.answer_text(), "ok begun");
}

#[tokio::test]
async fn a_run_that_waits_in_line_is_cancelled_without_starting() {
    let world = world().await;
    let first = world.send(in_conversation("c", "sleep 600000")).await;
    let second = world.send(in_conversation("c", "ok never said")).await;
    let third = world.send(in_conversation("c", "ok third")).await;
    world.host.cancel(second, "not needed".into()).await.unwrap();
    let ended = world.ended(second).await;
    assert_eq!((ended.run.status, ended.run.started_at, ended.kinds()), (RunStatus::Cancelled, None, vec!["run.failed"]));
    world.host.cancel(first, String::new()).await.unwrap();
    assert_eq!(world.ended(third).await.answer_text(), "ok third");
}

#[tokio::test]
async fn results_that_break_a_rule_are_refused_whole_and_by_name() {
    let world = world().await;
    for (does, code) in [
        ("emit-bad-json", "error invalid_argument"),
        ("emit-large 40000", "error payload_too_large"),
        ("emit-many 65", "error payload_too_large"),
        ("emit-many 0", "error invalid_argument"),
        ("emit-bytes-batch", "error payload_too_large"),
        ("emit-terminal", "error invalid_argument"),
        ("emit-unknown message.delta", "error invalid_argument"),
        ("emit-unknown permission.denied", "error invalid_argument"),
        ("emit-unknown not..a..name", "error invalid_argument"),
        ("deep-json 65", "error invalid_argument"),
        ("deep-json 10000", "error invalid_argument"),
    ] {
        let ended = world.say_in("c", does).await;
        assert!(ended.answer_text().starts_with(code), "{does}: {}", ended.answer_text());
        assert_eq!(ended.run.status, RunStatus::Completed, "a refusal is no trap");
        assert_eq!(ended.kinds(), ["message.completed", "run.completed"], "{does} left something behind");
    }
}

#[tokio::test]
async fn odd_data_of_a_result_is_refused_or_kept_as_data() {
    let world = world().await;
    for not_json in ["NaN", "{\"a\":Infinity}", "{\"a\":1,}", "[1e999999]", "\u{202e}{}"] {
        let answer = world.say(&format!("emit-data {not_json}")).await.answer_text();
        assert!(answer.starts_with("error invalid"), "{not_json}: {answer}");
    }
    for (data, is) in [
        (r#"{"a":"\u0000\u202e"}"#, json!({ "a": "\u{0}\u{202e}" })),
        (r#"{"a":1,"a":2}"#, json!({ "a": 2 })),
        ("{\"\u{202e}\":\"<script>\"}", json!({ "\u{202e}": "<script>" })),
    ] {
        let ended = world.say(&format!("emit-data {data}")).await;
        let kept = ended.events.iter().find(|event| event.kind == "x.odd").unwrap_or_else(|| panic!("{data}: {ended:#?}"));
        assert_eq!(kept.data_value(), is, "{data}");
    }
}

#[tokio::test]
async fn results_at_the_limit_and_of_unknown_type_are_kept() {
    let world = world().await;
    let ended = world.say("emit-many 64").await;
    assert_eq!(ended.kinds().iter().filter(|kind| **kind == "message.delta").count(), 64);
    let ended = world.say("emit-unknown acme.progress").await;
    let event = ended.events.iter().find(|event| event.kind == "acme.progress").expect("it is kept");
    assert_eq!(event.data_value()["from"], "hostile");
    assert_eq!(ended.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_run_emits_so_many_bytes_and_no_more() {
    let limits = Limits { run_record_bytes: 2_000, ..limits() };
    let world = World::with(&["hostile"], limits, vec![bound(HOSTILE)]).await;
    let ended = world.say("emit-n 1000").await;
    let emitted = ended.kinds().iter().filter(|kind| **kind == "message.delta").count();
    assert!((5..1000).contains(&emitted), "{emitted}");
    let bytes: usize =
        ended.events.iter().filter(|event| event.kind == "message.delta").map(|event| event.data.get().len()).sum();
    assert!(bytes <= 2_000, "{bytes}");
    assert_eq!(ended.failure(), "payload_too_large");
    assert!(ended.end()["message"].as_str().unwrap().contains("run_record_bytes"), "{}", ended.end());
    // Each run has its own.
    assert_eq!(world.say("ok").await.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_full_workspace_takes_nothing_more_and_others_go_on() {
    let quotas = Quotas { workspace_bytes: None, workspaces: [("w".to_owned(), 60_000)].into() };
    let world = World::configured(&["hostile"], |config| Config { quotas, bindings: vec![bound(HOSTILE)], ..config }).await;
    let in_workspace = |workspace: &str, text: &str| {
        let mut envelope = in_conversation("c", text);
        envelope.conversation.as_mut().unwrap().workspace_id = Some(workspace.to_owned());
        envelope
    };
    let greedy = world.ended(world.send(in_workspace("w", "emit-n 4000")).await).await;
    let emitted = greedy.kinds().iter().filter(|kind| **kind == "message.delta").count();
    assert!((10..4000).contains(&emitted), "{emitted}");
    assert_eq!((greedy.run.status, greedy.failure()), (RunStatus::Failed, "workspace_full"), "{:?}", greedy.run.failure);
    let audit = world.host.ledger().audit_page(greedy.run.run_id, None, 100).unwrap().items;
    assert!(audit.iter().any(|record| record.action == "results.emit" && record.outcome == "payload_too_large"), "{audit:#?}");

    let refused = world.host.accept(in_workspace("w", "ok"), None).await.unwrap_err();
    assert_eq!(refused.code(), "workspace_full", "{refused}");
    assert!(refused.to_string().contains("[quotas]"), "{refused}");
    // Another workspace, and what has none.
    for envelope in [in_workspace("v", "ok here"), in_conversation("c", "ok here")] {
        assert_eq!(world.ended(world.send(envelope).await).await.answer_text(), "ok here");
    }
}

#[tokio::test]
async fn refusals_are_slowed_down_and_counted() {
    let limits = Limits { host_calls_per_second: 100, host_calls_burst: 20, ..limits() };
    let world = World::with(&["hostile"], limits, vec![bound(HOSTILE)]).await;
    let began = Instant::now();
    // No actor is known, so its state cannot be read.
    let ended = world.say("state-in-vain 80").await;
    assert_eq!(ended.answer_text(), "ok refused");
    assert!(began.elapsed() >= Duration::from_millis(590), "60 of them wait: {:?}", began.elapsed());
    let audit = world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap().items;
    let [first, others] = audit.as_slice() else { panic!("{audit:#?}") };
    assert_eq!((&first.action, &first.outcome, &first.details), (&others.action, &others.outcome, &None), "{audit:#?}");
    assert_eq!(others.details, Some(serde_json::json!({ "count": 79 })));
    // No line of the record is written for each.
    assert!(ended.events.len() < 10, "{:?}", ended.kinds());
}

#[tokio::test]
async fn a_guest_that_calls_too_often_is_told_so() {
    let limits =
        Limits { host_calls_per_second: 10, host_calls_burst: 20, results_per_second: 64, results_burst: 100, ..limits() };
    let world = World::with(&["hostile"], limits.clone(), vec![bound(HOSTILE)]).await;
    let ended = world.say_in("c", "state-get-n 100").await;
    assert!(ended.answer_text().starts_with("error rate_limited"), "{}", ended.answer_text());
    let reached = ended.events.iter().find(|event| event.kind == "limit.reached").expect("it is a fact of the run").data_value();
    assert_eq!((&reached["limit"], &reached["value"]), (&"host_calls_per_second".into(), &10.into()), "{reached}");
    let audit = world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap();
    assert!(audit.items.iter().any(|record| record.outcome == "rate_limited" && record.action == "state.get"), "{audit:#?}");
    // Results have a rate of their own, and none is lost: the guest waits, for 64 a second after the first 100.
    let began = Instant::now();
    let ended = world.say("emit-n 150").await;
    assert_eq!(ended.kinds().iter().filter(|kind| **kind == "message.delta").count(), 150);
    assert!(began.elapsed() >= Duration::from_millis(750), "{:?}", began.elapsed());
    assert!(world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap().items.is_empty());
    // A batch as large as the burst passes at once.
    let limits = Limits { results_per_second: 64, results_burst: 64, ..limits };
    let world = World::with(&["hostile"], limits, vec![bound(HOSTILE)]).await;
    assert_eq!(world.say("emit-many 64").await.kinds().iter().filter(|kind| **kind == "message.delta").count(), 64);
}

#[tokio::test]
async fn thousands_of_quick_results_fail_no_run() {
    let world = World::with(&["hostile"], Limits::default(), vec![bound(HOSTILE)]).await;
    let ended = world.say("emit-n 4000").await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{:?}", ended.run.failure);
    assert_eq!(ended.kinds().iter().filter(|kind| **kind == "message.delta").count(), 4000);
}

#[tokio::test]
async fn state_is_kept_in_its_scope_and_within_its_bounds() {
    let world = world().await;
    for (conversation, does, says) in [
        ("a", "state-set conversation color \"red\"", "ok"),
        ("a", "state-get conversation color", "ok \"red\""),
        ("b", "state-get conversation color", "ok none"),
        ("a", "state-set runner shared 1", "ok"),
        ("b", "state-get runner shared", "ok 1"),
        ("a", "state-list conversation", "ok color"),
        ("a", "state-delete conversation color", "ok"),
        ("a", "state-get conversation color", "ok none"),
        ("a", "state-set actor x 1", "error unauthorized"),
        ("a", "state-set subject x 1", "error unauthorized"),
        ("a", "state-set conversation  1", "error invalid_argument"),
        ("a", "state-set conversation bad {not json", "error invalid_argument"),
        ("a", "state-huge", "error payload_too_large"),
        ("a", "emit-state actor x 1", "error unauthorized"),
    ] {
        let ended = world.say_in(conversation, does).await;
        assert!(ended.answer_text().starts_with(says), "{does} in {conversation}: {}", ended.answer_text());
    }
    for key in ["x".repeat(257), "tab\tkey".into()] {
        let ended = world.say_in("a", &format!("state-set conversation {key} 1")).await;
        assert!(ended.answer_text().starts_with("error invalid_argument"), "{key:?}: {}", ended.answer_text());
    }
}

#[tokio::test]
async fn a_guest_reads_its_own_writes_and_the_next_run_does_too() {
    let world = world().await;
    for turn in 1..=20 {
        assert_eq!(world.say_in("c", "count-state n").await.answer_text(), format!("ok {turn}"));
    }
}

#[tokio::test]
async fn history_is_the_own_conversation_by_pages_of_one_to_a_hundred() {
    let world = world().await;
    for n in 0..3 {
        world.say_in("a", &format!("ok {n}")).await;
    }
    for (conversation, does, says) in [
        ("a", "history-page", "ok 7 items, more: false"),
        ("a", "history-limit 1", "ok 1 items, more: true"),
        ("a", "history-limit 100", "ok 11 items, more: false"),
        ("a", "history-limit 0", "error invalid_argument"),
        ("a", "history-limit 101", "error invalid_argument"),
        ("a", "history-foreign b", "error unauthorized"),
        ("a", "history-foreign a", "ok"),
        ("a", "history-cursor nonsense", "error invalid_argument"),
        ("b", "history-page", "ok 1 items, more: false"),
    ] {
        let ended = world.say_in(conversation, does).await;
        assert!(ended.answer_text().starts_with(says), "{does} in {conversation}: {}", ended.answer_text());
    }
    let alone = world.say("history-page").await;
    assert!(alone.answer_text().starts_with("error unauthorized"), "{}", alone.answer_text());

    // A cursor of one conversation means nothing in another.
    let other = world.say_in("b", "ok").await;
    let context: serde_json::Value =
        serde_json::from_str(world.host.ledger().context(other.run.run_id).unwrap().unwrap().get()).unwrap();
    let cursor = context["context"]["latest_cursor"].as_str().unwrap();
    assert!(world.say_in("b", &format!("history-cursor {cursor}")).await.answer_text().starts_with("ok"));
    assert!(world.say_in("a", &format!("history-cursor {cursor}")).await.answer_text().starts_with("error invalid_argument"));
}

#[tokio::test]
async fn a_guest_sees_nothing_of_the_machine() {
    let world = world().await;
    let answer = world.say("probe-env").await.answer_text();
    let found: serde_json::Value = serde_json::from_str(answer.strip_prefix("ok ").unwrap()).unwrap();
    for (what, result) in found.as_object().unwrap() {
        let result = result.as_str().unwrap();
        let nothing = ["ok []", "ok \"\"", "ok \"/\"", "error "].iter().any(|fine| result.starts_with(fine));
        assert!(nothing, "{what}: {result}");
    }
    assert!(!std::path::Path::new("/tmp/agent-host-was-here").exists());
}

#[tokio::test]
async fn floods_are_bounded() {
    let world = world().await;
    for does in ["log-flood 20000", "stdout-flood 20000000"] {
        let ended = world.say(does).await;
        assert_eq!(ended.run.status, RunStatus::Completed, "{does}: {ended:#?}");
        let (mut bytes, mut mentioned, mut after) = (0, false, None);
        loop {
            let page = world.host.run_log(ended.run.run_id, after.as_deref(), 100).unwrap();
            bytes += page.items.iter().map(|line| serde_json::to_vec(line).unwrap().len()).sum::<usize>();
            mentioned |= page.items.iter().any(|line| line.dropped_bytes.is_some());
            after = page.next_cursor;
            if !page.has_more {
                break;
            }
        }
        assert!((1..=Limits::default().log_bytes).contains(&bytes) && mentioned, "{does}: {bytes} bytes, {mentioned}");
    }
    assert_eq!(world.say("pollables 1000000").await.failure(), "runner.limit_exceeded");
    assert_eq!(world.say("pollables 10").await.answer_text(), "ok 10");
    let greedy = world.say("random 1073741824").await;
    assert_eq!(greedy.run.status, RunStatus::Failed, "{greedy:#?}");
    assert!(world.say("random 16").await.answer_text().starts_with("ok "));
    is_unharmed(&world).await;
}

#[tokio::test]
async fn as_many_guests_as_there_may_be_have_the_tables_that_each_may_have() {
    const GUESTS: u32 = 20;
    let world = World::with(&["hostile"], Limits { max_live_runs: GUESTS, ..limits() }, vec![bound(HOSTILE)]).await;
    let mut ids = Vec::new();
    for _ in 0..GUESTS {
        ids.push(world.send(Envelope::message("sleep 3000", "api")).await);
    }
    let began = Instant::now();
    while world.host.readiness().live_runs < GUESTS as usize {
        assert!(began.elapsed() < Duration::from_secs(60), "{} are live", world.host.readiness().live_runs);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for id in ids {
        let ended = world.ended(id).await;
        assert_eq!(ended.run.status, RunStatus::Completed, "{:?}", ended.run.failure);
    }
}

#[tokio::test]
async fn many_runs_wait_for_a_place_and_none_is_refused() {
    let world = World::with(&["hostile"], Limits { max_live_runs: 5, ..limits() }, vec![bound(HOSTILE)]).await;
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(world.send(Envelope::message("sleep 20", "api")).await);
    }
    assert!(world.host.readiness().live_runs <= 5);
    for id in ids {
        assert_eq!(world.ended(id).await.run.status, RunStatus::Completed);
    }
}

/// An honest run beside hostile ones takes less than this, on a machine that has much else to do.
const BESIDE_OTHERS: Duration = Duration::from_secs(10);

/// Sends so many honest runs one after the other, beside so many hostile ones that are under way; gives the time of the slowest.
async fn slowest_beside(does: &str, hostile: usize, honest: usize) -> Duration {
    let mut others = bound(HOSTILE);
    (others.id, others.deadline_ms) = ("others".into(), Some(600_000));
    let limits = Limits { max_live_runs: 200, ..limits() };
    let world = World::with(&["hostile"], limits, vec![others]).await;
    let mut under_way = Vec::new();
    for _ in 0..hostile {
        under_way.push(world.send(Envelope::message(does, "api")).await);
    }
    let began = Instant::now();
    for id in &under_way {
        while world.host.ledger().run(*id).unwrap().unwrap().run.started_at.is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "{does}: not all have begun");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..honest {
        let began = Instant::now();
        assert_eq!(world.say("ok beside them").await.answer_text(), "ok beside them");
        slowest = slowest.max(began.elapsed());
    }
    for id in under_way {
        assert!(
            !world.host.ledger().run(id).unwrap().unwrap().run.status.is_terminal(),
            "{does}: it is not beside them any more"
        );
        world.host.cancel(id, "enough".into()).await.unwrap();
    }
    slowest
}

#[tokio::test]
async fn a_hundred_honest_runs_beside_guests_that_call_without_end_are_answered_soon() {
    let slowest = slowest_beside("ignore-cancel", 8, 100).await;
    assert!(slowest < BESIDE_OTHERS, "the slowest took {slowest:?}");
}

#[tokio::test]
async fn what_guests_emit_without_end_is_no_long_line_before_other_writes() {
    const GUESTS: usize = 8;
    /// The share of a run in the queue, as small writes.
    const SHARE: usize = 8;
    /// Writes of the host itself: audit records, usage of keys.
    const OTHERS: usize = 16;
    let world = World::with(&["hostile"], limits(), vec![bound(HOSTILE)]).await;
    let mut guests = Vec::new();
    for _ in 0..GUESTS {
        guests.push(world.send(Envelope::message("emit-n 1000000000", "api")).await);
    }
    let emitted = || guests.iter().map(|id| world.host.ledger().run(*id).unwrap().unwrap().run.last_sequence).sum::<u64>();
    let (began, mut longest) = (Instant::now(), 0);
    while emitted() < 20_000 {
        assert!(began.elapsed() < Duration::from_secs(60), "they have emitted {}", emitted());
        longest = longest.max(world.host.ledger().activity().waiting);
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    assert!((1..=GUESTS * SHARE + OTHERS).contains(&longest), "{longest} writes waited");
    for id in guests {
        world.host.cancel(id, "enough".into()).await.unwrap();
    }
    is_unharmed(&world).await;
}

#[tokio::test]
async fn ten_honest_runs_beside_150_that_compute_are_answered_soon() {
    let slowest = slowest_beside("loop", 150, 10).await;
    assert!(slowest < BESIDE_OTHERS, "the slowest took {slowest:?}");
}
