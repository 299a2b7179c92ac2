//! The main way: a runner answers a real event, durably.

use agent_host_protocol::RunStatus;
use agent_host_tests::{
    World,
    world::{bound, in_conversation, limits},
};
use futures_util::future::join_all;

const ECHO: &str = "plugin:agent-host/echo/default";

#[tokio::test]
async fn a_message_is_answered_in_deltas() {
    let world = World::new(&["echo"], ECHO).await;
    let ended = world.say("the quick brown fox").await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    assert!(ended.streamed().contains("the quick brown fox"), "{ended:#?}");
    assert_eq!(ended.kinds().last(), Some(&"run.completed"));
    assert!(ended.kinds().contains(&"message.completed"));
    let sequences: Vec<_> = ended.events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=ended.events.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_message_that_its_runner_forgot_to_finish_is_finished_by_the_sdk() {
    let world = World::new(&["steps"], "plugin:test/steps/default").await;
    let ended = world.say("unfinished half; say whole").await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    let completed: Vec<String> =
        ended.events.iter().filter(|event| event.kind == "message.completed").map(|event| event.data.to_string()).collect();
    assert_eq!(completed.iter().filter(|message| message.contains("half\"")).count(), 1, "{completed:#?}");
    // The run that fails leaves it.
    let failed = world.say("unfinished half; fail").await;
    assert_eq!(failed.run.status, RunStatus::Failed, "{failed:#?}");
    assert!(!failed.kinds().contains(&"message.completed"), "{failed:#?}");
}

#[tokio::test]
async fn a_conversation_is_remembered_across_a_restart() {
    let mut world = World::new(&["echo"], ECHO).await;
    for turn in 1..=3 {
        if turn == 3 {
            world = world.restarted(limits(), vec![bound(ECHO)]).await;
        }
        let ended = world.say_in("c1", "hello").await;
        let context = world.host.ledger().context(ended.run.run_id).unwrap().unwrap();
        let context: serde_json::Value = serde_json::from_str(context.get()).unwrap();
        assert_eq!(context["state"]["conversation"]["turns"].as_u64().unwrap_or(0), turn - 1, "{context:#}");
        assert_eq!(context["context"]["has_history_before"], turn > 1);
    }
    let other = world.say_in("c2", "hello").await;
    let context = world.host.ledger().context(other.run.run_id).unwrap().unwrap();
    assert!(!context.get().contains("turns"), "another conversation has its own state");
}

/// Messages that are sent at the same moment are answered in the order in which they are in the conversation.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn runs_of_messages_that_come_together_take_turns_in_their_order() {
    let world = World::new(&["echo"], ECHO).await;
    for round in 0..20 {
        let conversation = format!("c{round}");
        let sending = (0..8).map(|n| world.send(in_conversation(&conversation, &format!("message {n}"))));
        let mut runs = Vec::new();
        for id in join_all(sending).await {
            world.ended(id).await;
            runs.push(world.host.ledger().run(id).unwrap().unwrap());
        }
        runs.sort_by_key(|record| record.run_no);
        let turns: Vec<_> = runs.iter().map(|record| record.run.turn.unwrap()).collect();
        assert_eq!(turns, (1..=8).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn runs_of_one_conversation_take_turns_in_order() {
    let world = World::new(&["echo"], ECHO).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(world.send(in_conversation("c", &format!("message {n}"))).await);
    }
    let mut last_end = 0;
    for (n, id) in ids.into_iter().enumerate() {
        let ended = world.ended(id).await;
        assert!(ended.streamed().contains(&format!("message {n}")));
        assert!(ended.run.started_at.unwrap() >= last_end, "run {n} started before the one before it ended");
        last_end = ended.run.finished_at.unwrap();
        let context: serde_json::Value = serde_json::from_str(world.host.ledger().context(id).unwrap().unwrap().get()).unwrap();
        assert_eq!(
            context["state"]["conversation"]["turns"].as_u64().unwrap_or(0),
            n as u64,
            "each sees the state that the one before left"
        );
    }
}
